"""What every verifier promises, on every registered one and on a user's function."""

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from quatrain.config import VerifierConfig
from quatrain.rewards import VERIFIERS, Example, Verifier, build_verifier, text_rollout
from quatrain.sandbox import why_not
from quatrain.types import Rollout, Score
from tests.rewards.judge_server import stand_in
from tests.tiny import direct_score, save_tiny, tiny_reward_model

NEEDS = {"language": "py3langid"}  # optional packages
DEADLINE_S = 20.0  # generous: this is not a benchmark, and a worker of `math` may have to start

FUNCTION = """
def reward(prompt, completion, answer):
    lines = completion.strip().splitlines()
    return bool(lines) and lines[-1].strip() == answer
"""

GARBAGE = [
    "\\boxed{",
    "<think><answer>####",
    "\ud800\x00\u202e",
    "{}[]()$$$",
    "\\frac{}{}",
    "9" * 5000,
    "1e999999999",
    "nan",
]


@dataclass(frozen=True)
class Subject:
    name: str
    verifier: Verifier
    kind: str
    examples: tuple[Example, ...]

    def score(self, rollouts: list[Rollout]) -> list[Score]:
        return list(asyncio.run(self.verifier.score(rollouts)))


@pytest.fixture(scope="module", params=[*VERIFIERS.names(), "function"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    kind = request.param
    if kind == "function":
        path = tmp_path_factory.mktemp("user") / "user_reward.py"
        path.write_text(FUNCTION)
        kind = f"{path}:reward"
    if kind in NEEDS and find_spec(NEEDS[kind]) is None:
        pytest.skip(f"{NEEDS[kind]} is not installed")
    if kind == "code" and why_not():
        pytest.skip(f"no isolation here: {why_not()}")
    started = ExitStack()
    settings: dict[str, Any] = {"kind": kind, "timeout_s": 5.0}
    if kind == "judge":
        settings["address"] = started.enter_context(stand_in()).address
    if kind == "reward_model":
        folder = tiny_reward_model(tmp_path_factory.mktemp("reward"))
        settings |= {"path": str(folder), "device": "cpu", "too_long": "cut"}
    if kind == "local_judge":
        folder = save_tiny(tmp_path_factory.mktemp("judge"), max_position_embeddings=2048)
        settings |= {"path": str(folder), "device": "cpu", "mode": "scale", "max_characters": 200}
    verifier = build_verifier(VerifierConfig.model_validate(settings), kind)
    if request.param == "function":
        examples = (
            Example(prompt="6*12?", completion="I think\n72", columns={"answer": "72"}, value=1.0),
            Example(completion="73", columns={"answer": "7"}, value=0.0),
        )
        yield Subject("function", verifier, "correctness", examples)
    elif kind == "reward_model":  # what it says of a text depends on the model
        said = [(text, direct_score(folder, f"what? {text}<eos>")[0]) for text in ("good", "fine", "rude")]
        examples = tuple(Example(prompt="what? ", completion=text, value=value) for text, value in said)
        yield Subject(kind, verifier, verifier.kind, examples)
    elif kind == "local_judge":
        examples = (*verifier.examples, Example(completion="good", value=direct_yes(verifier, "good")))
        yield Subject(kind, verifier, verifier.kind, examples)
    else:
        yield Subject(kind, verifier, verifier.kind, verifier.examples)
    verifier.close()
    started.close()


@torch.no_grad()
def direct_yes(verifier: Any, text: str) -> float:
    """P(yes) / (P(yes) + P(no)) of the local judge's model, by transformers alone."""
    judge = verifier.inner
    question = judge._single(text_rollout(text))
    said = []
    for word in (" yes", " no"):
        ids = [judge.lm.tokenizer.encode(one, add_special_tokens=False) for one in (question, word)]
        logprobs = judge.lm.module(torch.tensor([ids[0] + ids[1]])).logits[0].log_softmax(-1)
        said.append(math.exp(sum(float(logprobs[len(ids[0]) - 1 + n, token]) for n, token in enumerate(ids[1]))))
    return said[0] / sum(said)


def rollout_of(example: Example, completion: str | None = None, index: int = 0) -> Rollout:
    text = example.completion if completion is None else completion
    tokens = example.tokens if completion is None else tuple(range(min(len(text), 64)))
    return text_rollout(text, example.columns, prompt=example.prompt, tokens=tokens, index=index)


def test_its_own_examples_earn_what_they_say(subject: Subject) -> None:
    scores = subject.score([rollout_of(example, index=i) for i, example in enumerate(subject.examples)])
    expected = [example.value for example in subject.examples]
    assert [score.value for score in scores] == pytest.approx(expected, abs=1e-5)
    assert len({example.value for example in subject.examples}) > 1


def bad_completions(example: Example) -> list[str]:
    return ["", " \n\t ", "I do not know.", *GARBAGE, "x" * 1_000_000, "( " * 500_000, example.prompt]


def test_correctness_pays_nothing_else(subject: Subject) -> None:
    if subject.kind != "correctness":
        pytest.skip("no correctness verifier")
    paid = [example for example in subject.examples if example.value == 1.0]
    assert any(example.prompt for example in paid)
    for example in paid[:1]:
        rollouts = [rollout_of(example, text) for text in bad_completions(example)]
        assert [score.value for score in subject.score(rollouts) if score.status == "ok"] == [0.0] * len(rollouts)


def test_correctness_does_not_pay_another_rows_gold(subject: Subject) -> None:
    if subject.kind != "correctness":
        pytest.skip("no correctness verifier")
    paid = [example for example in subject.examples if example.value == 1.0]
    gold = "D" if subject.name == "choice" else "987654321"
    other = replace(paid[0], columns={**paid[0].columns, "answer": gold})
    assert [score.value for score in subject.score([rollout_of(paid[0]), rollout_of(other)])] == [1.0, 0.0]
    if len(paid) > 1:
        crossed = replace(paid[0], columns=paid[1].columns)
        assert subject.score([rollout_of(crossed)])[0].value == 0.0


def test_one_finite_score_per_rollout_in_order_within_the_deadline(subject: Subject) -> None:
    example = subject.examples[0]
    batch = [rollout_of(example, text) for text in bad_completions(example)] + [rollout_of(example)] * 5
    started = time.monotonic()
    scores = subject.score(batch)
    assert time.monotonic() - started < DEADLINE_S
    assert len(scores) == len(batch)
    assert all(math.isfinite(score.value) for score in scores if score.usable)
    assert all(score.status in ("ok", "abstained") for score in scores)
    if subject.verifier.scope == "completion":  # in a group, it depends on the others
        assert [score.value for score in scores[-5:]] == pytest.approx([example.value] * 5, abs=1e-5)
    assert subject.score([]) == []


def test_the_same_score_again_also_from_threads(subject: Subject) -> None:
    batch = [rollout_of(example, index=i) for i, example in enumerate(subject.examples)]
    expected = subject.score(batch)
    results: list[list[Score]] = []
    threads = [threading.Thread(target=lambda: results.append(subject.score(batch))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(scores == expected for scores in results)


def test_the_prompt_is_not_scored(subject: Subject) -> None:
    """A prompt that mentions \\boxed{}, a gold or a format earns nothing for the completion."""
    if subject.name in ("reward_model", "local_judge"):
        pytest.skip("it judges an answer to its prompt")
    example = subject.examples[0]
    plain = rollout_of(example, "nothing of the sort")
    echo = f"Write \\boxed{{{example.columns.get('answer', '')}}} or <think>a</think>b. {example.completion}"
    loaded = text_rollout("nothing of the sort", example.columns, prompt=echo, tokens=range(len("nothing of the sort")))
    assert subject.score([plain]) == subject.score([loaded])


def test_a_file_can_name_a_verifier_class(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "from quatrain.config import Section\n"
        "from quatrain.types import Score\n"
        "class Longest:\n"
        "    class Settings(Section):\n"
        "        bonus: float = 1.0\n"
        "    scope, kind, examples = 'group', 'shaping', ()\n"
        "    def __init__(self, settings, limits): self.settings = settings\n"
        "    async def score(self, rollouts):\n"
        "        top = max(len(rollout.text) for rollout in rollouts)\n"
        "        return [Score(value=self.settings.bonus * (len(rollout.text) == top)) for rollout in rollouts]\n"
        "    def close(self): pass\n"
    )
    verifier = build_verifier(VerifierConfig.model_validate({"kind": f"{path}:Longest", "bonus": 0.5}))
    scores = asyncio.run(verifier.score([text_rollout("a"), text_rollout("bbb")]))
    assert [score.value for score in scores] == [0.0, 0.5]
