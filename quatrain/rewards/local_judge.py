"""`local_judge`: a language model on this machine compares answers by the probabilities of its verdicts."""

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from quatrain.config import ModelConfig, Positive, Section
from quatrain.rewards.judge import paired
from quatrain.rewards.judge_prompts import RUBRIC, SYSTEM, marked, shorten
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, missing_column, scored_text
from quatrain.types import Rollout, Sample, Score

if TYPE_CHECKING:
    from quatrain.models.load import LanguageModel

PAIR = (" A", " B")  # what the verdict line of a pair may say
SINGLE = (" yes", " no")


class LocalJudgeSettings(Section):
    """Settings of `local_judge`."""

    path: str = Field("smollm2-135m", description="the judge: smollm2-135m, a Hugging Face folder, a run, or an id")
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"
    mode: Literal["scale", "pairs"] = Field("pairs", description="is one answer good, or which of two is better")
    rubric: str = Field(RUBRIC, min_length=1, description="what makes an answer good")
    opponents: Positive | None = Field(None, description="pairs: compare with so many of the group; null: with all")
    reference_column: str | None = Field(None, description="column with a reference answer that the judge is shown")
    max_characters: Positive = Field(4000, description="the middle of a longer answer is left out")
    tokens_per_batch: Positive = Field(8192, description="positions read at once")


@VERIFIERS.register("local_judge")
class LocalJudge:
    """P(verdict) read off the judge's next-token probabilities, so that even a small model always has one.

    Pairs: p(first is better) = e^a / (e^a + e^b), a and b the log-probabilities of the two verdicts; the mean over both
    orders of the answers, so that a preference for a position cancels. A completion earns its mean over opponents.
    Scale: the probability of yes against no. Soft labels of this kind are those of Bai et al. 2022, arXiv:2212.08073.
    A blank answer earns 0 and loses every pair unasked; equal answers tie.
    """

    graded: ClassVar[bool] = True  # no value of it means right
    Settings: ClassVar[type[Section]] = LocalJudgeSettings
    default_timeout_s: ClassVar[float] = 600.0
    kind: ClassVar[Kind] = "shaping"
    examples: ClassVar[tuple[Example, ...]] = (Example(prompt="What is 2 + 2?", completion=" ", value=0.0),)

    def __init__(self, settings: LocalJudgeSettings, limits: Limits) -> None:
        from quatrain.models.load import load_language_model

        self._settings, self._limits = settings, limits
        self.lm: LanguageModel = load_language_model(
            ModelConfig(path=settings.path, dtype=settings.dtype, device=settings.device), trainable=False
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="local-judge")

    @property
    def scope(self) -> Scope:
        """Pairs are made within a group."""
        return "group" if self._settings.mode == "pairs" else "completion"

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score in [0, 1] per rollout; alone in its group it is not judged."""
        loop = asyncio.get_running_loop()
        if self._settings.mode == "scale":
            values = await loop.run_in_executor(self._thread, self.grades, rollouts)
            return [Score(value=value) for value in values]
        places = paired(len(rollouts), self._settings.opponents)
        pairs = [(rollouts[one], rollouts[other]) for one, other in places]
        results = await loop.run_in_executor(self._thread, self.preferences, pairs)
        won: list[list[float]] = [[] for _ in rollouts]
        for (one, other), result in zip(places, results, strict=True):
            won[one].append(result)
            won[other].append(1 - result)
        return [Score(value=sum(own) / len(own)) if own else Score(status="abstained") for own in won]

    def preferences(self, pairs: Sequence[tuple[Rollout, Rollout]], rubrics: Sequence[str] = ()) -> list[float]:
        """P(the first is better) of every pair; `rubrics` has one text per pair, by default the setting's."""
        asked: list[tuple[int, str]] = []
        found = [0.5] * len(pairs)
        for number, (one, other) in enumerate(pairs):
            first, second = self._text(one), self._text(other)
            filled = [bool(rollout.text.strip()) for rollout in (one, other)]
            if first == second or not all(filled):
                found[number] = 0.5 + (filled[0] - filled[1]) / 2
                continue
            rubric = rubrics[number] if rubrics else self._settings.rubric
            asked += [(number, self._pair(rubric, one, *texts)) for texts in ((first, second), (second, first))]
        said = self._verdicts([text for _, text in asked], PAIR)
        for place in range(0, len(asked), 2):
            found[asked[place][0]] = (said[place] + 1 - said[place + 1]) / 2
        return found

    def grades(self, rollouts: Sequence[Rollout]) -> list[float]:
        """P(yes, it is good) of every answer."""
        filled = [number for number, rollout in enumerate(rollouts) if rollout.text.strip()]
        said = self._verdicts([self._single(rollouts[number]) for number in filled], SINGLE)
        found = dict(zip(filled, said, strict=True))
        return [found.get(number, 0.0) for number in range(len(rollouts))]

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _verdicts(self, questions: Sequence[str], words: tuple[str, str]) -> list[float]:
        """P(the first word) against the second, behind the opened verdict of every question."""
        from quatrain.batch import build, split_by_tokens
        from quatrain.models.forward import token_outputs

        samples = [self._sample(number, question, word) for number, question in enumerate(questions) for word in words]
        sums: dict[int, float] = {}
        numbers = {id(sample): number for number, sample in enumerate(samples)}
        with self.lm.inference():
            for micro in split_by_tokens(samples, self._settings.tokens_per_batch, "shared") if samples else []:
                logprobs_N = token_outputs(self.lm, build(micro, "shared"), 1.0).logprobs_N.double().cpu()
                for sample, own in zip(micro, logprobs_N.split([one.num_tokens for one in micro]), strict=True):
                    sums[numbers[id(sample)]] = float(own.sum())
        return [1 / (1 + math.exp(min(sums[n + 1] - sums[n], 700.0))) for n in range(0, len(samples), 2)]

    def _sample(self, group: int, question: str, word: str) -> Sample:
        tokenizer = self.lm.tokenizer
        question = question.encode("utf-8", "replace").decode()  # no tokenizer takes half a surrogate pair
        head: list[int] = tokenizer.encode(question, add_special_tokens=not tokenizer.chat_template)
        tail: list[int] = tokenizer.encode(word, add_special_tokens=False)
        head = head[-(self.lm.max_positions - len(tail)) :]
        return Sample(
            token_ids=np.array([*head, *tail]), trained=np.array([False] * len(head) + [True] * len(tail)),
            group=group, completion=group, prompt_length=len(head),
        )  # fmt: skip

    def _pair(self, rubric: str, rollout: Rollout, first: str, second: str) -> str:
        given = [("TASK", self._task(rollout)), ("ANSWER A", first), ("ANSWER B", second), *self._reference(rollout)]
        return self._open(rubric, given, "Which answer is better, A or B?", "The better answer is")

    def _single(self, rollout: Rollout) -> str:
        given = [("TASK", self._task(rollout)), ("ANSWER", self._text(rollout)), *self._reference(rollout)]
        return self._open(self._settings.rubric, given, "Is the answer good, yes or no?", "Is it good?")

    def _open(self, rubric: str, given: Sequence[tuple[str, str]], ask: str, verdict: str) -> str:
        """The question with the beginning of the reply, up to where the verdict follows."""
        parts = "\n\n".join(marked(name, text, "text") for name, text in given)
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{rubric}\n\n{parts}\n\n{ask}"}]
        tokenizer: Any = self.lm.tokenizer
        if not tokenizer.chat_template:
            return "\n\n".join(message["content"] for message in messages) + f"\n\n{verdict}"
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) + verdict

    def _task(self, rollout: Rollout) -> str:
        return shorten(rollout.prompt.question or rollout.prompt.text, self._settings.max_characters)

    def _text(self, rollout: Rollout) -> str:
        return shorten(scored_text(rollout), self._settings.max_characters)

    def _reference(self, rollout: Rollout) -> list[tuple[str, str]]:
        column = self._settings.reference_column
        if column is None:
            return []
        if column not in rollout.prompt.columns:
            raise missing_column(self._limits.name, rollout, column, "set reference_column")
        return [("REFERENCE", str(rollout.prompt.columns[column]))]
