"""Accuracy on held-out prompts, with intervals; nothing of a run's state is touched."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatrain.config import SamplingConfig
from quatrain.rewards.rubric import Verifiers
from quatrain.rollout import Request, RolloutEngine
from quatrain.telemetry.catalogue import part_name
from quatrain.telemetry.files import replace_text
from quatrain.telemetry.metrics import Last, Metric
from quatrain.types import Prompt, Rollout, Score

Floats = NDArray[np.float64]
EVALUATION_STREAM = 1  # second word of every seed: evaluation never shares a random stream with training (0)
RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Answer:
    """One held-out completion."""

    prompt_index: int
    source: str
    prompt: str
    question: str  # the prompt without its template, for showing
    completion: str
    tokens: int
    stop_reason: str
    reward: float  # this and the next two are NaN where the verifier could not judge
    correct: float  # 1 when every correctness part is fully paid, whatever the form
    in_form: float  # 1 when correct and every format part is fully paid
    parts: Mapping[str, float]  # what each part of the rubric said, before its weight
    answer: str | None = None  # what the verifier read out of the completion, where it tells
    error: str = ""  # why the verifier could not judge


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All answers of one evaluation; `samples` completions per prompt stand next to each other."""

    step: int
    samples: int
    answers: tuple[Answer, ...]
    asked: str = ""  # see `question_key`
    sampling: Mapping[str, Any] = field(default_factory=dict)  # settings of SamplingConfig

    def per_prompt(self, name: str) -> Floats:
        """Mean of an answer's field over each prompt's judged completions (NaN: none was judged)."""
        values = np.array([_field(answer, name) for answer in self.answers], dtype=np.float64)
        return np.array([mean(row) for row in values.reshape(-1, self.samples)])

    def sources(self) -> list[str]:
        """Names of the sources, in the order of their prompts."""
        return list(dict.fromkeys(answer.source for answer in self.answers))

    def of(self, source: str) -> "Evaluation":
        """The part of the evaluation that asked one source."""
        return replace(self, answers=tuple(answer for answer in self.answers if answer.source == source))

    def parts(self) -> list[str]:
        """Names of the rubrics' parts, as `per_prompt("part NAME")` takes them."""
        return list(dict.fromkeys(f"part {name}" for answer in self.answers for name in answer.parts))

    def metrics(self) -> dict[str, Metric]:
        """`eval/...` metrics."""
        return {
            **{
                f"eval/{part_name(name.removeprefix('part '))}": Last(mean(self.per_prompt(name)))
                for name in self.parts()
            },
            "eval/accuracy": Last(mean(self.per_prompt("correct"))),
            "eval/accuracy_in_form": Last(mean(self.per_prompt("in_form"))),
            "eval/reward": Last(mean(self.per_prompt("reward"))),
            "eval/length": Last(mean(self.per_prompt("tokens"))),
            "eval/truncated": Last(float(np.mean([answer.stop_reason == "length" for answer in self.answers]))),
        }

    def save(self, folder: Path) -> None:
        """RUN/evaluations/step-000040.json."""
        path = evaluation_path(folder, self.step)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(self.to_json(), indent=1))

    def to_json(self) -> dict[str, Any]:
        """Plain data, in which NaN is null."""
        return without_nan(asdict(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Evaluation":
        """The inverse of `to_json`. Raises KeyError or TypeError for data that is none."""
        judged = {name: float("nan") for name in ("reward", "correct", "in_form")}
        answers = tuple(
            Answer(**{**row, **{name: nan for name, nan in judged.items() if row[name] is None}})
            for row in data["answers"]
        )
        return cls(data["step"], data["samples"], answers, data["asked"], data.get("sampling", {}))


def without_nan(value: Any) -> Any:
    """Plain data for JSON, which has no NaN: null in its place."""
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def _field(answer: Answer, name: str) -> float:
    part = name.removeprefix("part ")
    return float(getattr(answer, name) if part == name else answer.parts.get(part, float("nan")))


def evaluation_path(folder: Path, step: int) -> Path:
    """File of an evaluation."""
    return folder / "evaluations" / f"step-{step:06d}.json"


def load_evaluation(folder: Path, step: int) -> Evaluation | None:
    """A saved evaluation with answers, or None (an offline run's has measures alone)."""
    path = evaluation_path(folder, step)
    if not path.is_file():
        return None
    data = json.loads(path.read_text(encoding="utf-8"))
    return None if "measures" in data else Evaluation.from_json(data)


def question_key(prompts: Sequence[Prompt], sampling: SamplingConfig, samples: int) -> str:
    """Digest of what an evaluation asks and how: equal keys mean evaluations that can be compared."""
    asked = [sampling.model_dump(mode="json"), samples, [[prompt.index, *prompt.token_ids] for prompt in prompts]]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def evaluate(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    verifiers: Verifiers,
    sampling: SamplingConfig,
    *,
    samples: int = 1,
    seed: int = 0,
    step: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Evaluation:
    """Complete every prompt `samples` times, in one submission to the engine, and score the completions."""
    engine.submit(
        [
            Request(prompt=prompt, group=group, index=index, sampling=sampling,
                    seed=(seed, EVALUATION_STREAM, group, index))
            for group, prompt in enumerate(prompts)
            for index in range(samples)
        ]
    )  # fmt: skip
    rollouts: list[Rollout] = []
    while batch := engine.completed():
        rollouts += batch
        progress(len(rollouts), len(prompts) * samples)
    rollouts.sort(key=lambda rollout: (rollout.group, rollout.index))
    scores = verifiers.score(rollouts)
    answers = [_answer(rollout, score, verifiers) for rollout, score in zip(rollouts, scores, strict=True)]
    key = question_key(prompts, sampling, samples)
    return Evaluation(step, samples, tuple(answers), key, SamplingConfig.model_dump(sampling, mode="json"))


def _answer(rollout: Rollout, score: Score, verifiers: Verifiers) -> Answer:
    rubric = verifiers.rubric_of(rollout)
    parts, told = rubric.parts, score.usable and not rubric.graded
    form = [score.parts[name] for name, part in parts.items() if part.measures == "format" and name in score.parts]
    return Answer(
        prompt_index=rollout.prompt.index,
        source=rollout.prompt.source,
        prompt=rollout.prompt.text,
        question=rollout.prompt.question or rollout.prompt.text,
        completion=rollout.text,
        tokens=rollout.num_tokens,
        stop_reason=rollout.stop_reason,
        reward=score.value,
        correct=float(score.correct) if told else float("nan"),
        in_form=float(score.correct and all(paid >= 1 - 1e-9 for paid in form)) if told else float("nan"),
        answer=score.answer,
        error=score.error if score.status == "error" else "",
        parts=dict(score.parts),
    )


def mean(values: Floats) -> float:
    """Mean of what was judged."""
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if len(kept) else float("nan")


def interval(values: Floats, seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the mean over prompts (percentiles of RESAMPLES resamples; Efron 1979)."""
    kept = values[~np.isnan(values)]
    if not len(kept):
        return float("nan"), float("nan")
    generator, rows = np.random.default_rng(seed), max(1, 2_000_000 // len(kept))  # a stretch of resamples at a time
    means = [kept[generator.integers(0, len(kept), size=(min(rows, RESAMPLES - start), len(kept)))].mean(1)
             for start in range(0, RESAMPLES, rows)]  # fmt: skip
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


def compare(before: Evaluation, after: Evaluation, name: str) -> dict[str, Any]:
    """Means before and after with intervals, and the interval of the paired difference over prompts."""
    first, second = before.per_prompt(name), after.per_prompt(name)
    if [a.prompt_index for a in before.answers[:: before.samples]] != [
        a.prompt_index for a in after.answers[:: after.samples]
    ]:
        raise ValueError("evaluations: got different prompts, need the same ones in the same order")
    difference = second - first
    return {
        "before": mean(first),
        "before_interval": interval(first),
        "after": mean(second),
        "after_interval": interval(second),
        "difference": mean(difference),
        "difference_interval": interval(difference),
        "prompts": len(first),
    }
