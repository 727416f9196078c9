"""Listed cases on rewards: what a function may answer, what it is given, and that length never pays."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from quatrain.config import VerifierConfig
from quatrain.errors import SettingError, VerifierError
from quatrain.recipe_file import validate_recipe
from quatrain.rewards import Verifier, build_verifier, build_verifiers, text_rollout
from quatrain.types import Rollout, Score
from tests.runs import recipe, recipe_data

FUNCTIONS = """
import asyncio, time

def text(completion):
    return "1"

def boolean(completion):
    return completion == "right"

def given(**columns):
    assert "input_ids" not in columns and columns["completion"] == "text", columns
    return float(len(columns))

def cheap(completion):
    time.sleep(0.01)
    return 1.0

async def first(completion):
    await asyncio.sleep(1.0)
    return 1.0

async def second(completion):
    await asyncio.sleep(1.0)
    return 2.0
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Verifier]]:
    """Verifiers by the function's name; closed at the end."""
    file = tmp_path_factory.mktemp("cases") / "mine.py"
    file.write_text(FUNCTIONS)
    built: list[Verifier] = []

    def make(name: str, **settings: Any) -> Verifier:
        kind = f"{file}:{name}" if f"def {name}(" in FUNCTIONS else name
        built.append(build_verifier(VerifierConfig.model_validate({"kind": kind, **settings}), "verifiers.main.mine"))
        return built[-1]

    yield make
    for verifier in built:
        verifier.close()


def scores(verifier: Verifier, rollouts: Sequence[Rollout]) -> list[Score]:
    return list(asyncio.run(verifier.score(rollouts)))


def values(verifier: Verifier, *texts: str, **columns: Any) -> list[float]:
    return [one.value for one in scores(verifier, [text_rollout(text, columns, index=i)
                                                   for i, text in enumerate(texts)])]  # fmt: skip


def test_case_c13_a_text_is_no_reward_and_a_bool_is(build: Callable[..., Verifier]) -> None:
    with pytest.raises(VerifierError, match=r"mine \(text\): prompt 0, completion 0: returned str, need float, bool"):
        values(build("text"), "a", "b", "c", "d")
    assert values(build("boolean"), "right", "wrong") == [1.0, 0.0]


def test_case_c15_coroutines_are_awaited_side_by_side(build: Callable[..., Verifier]) -> None:
    verifiers = [build("first"), build("second")]
    rollouts = [text_rollout("a"), text_rollout("b", index=1)]
    for verifier in verifiers:
        scores(verifier, rollouts[:1])  # the workers are started before the clock

    async def both() -> list[Sequence[Score]]:
        return list(await asyncio.gather(*(verifier.score(rollouts) for verifier in verifiers)))

    began = time.monotonic()
    found = asyncio.run(both())
    assert time.monotonic() - began < 1.9  # one after the other: 4 s
    assert [[one.value for one in part] for part in found] == [[1.0, 1.0], [2.0, 2.0]]


def test_case_c17_waiting_in_the_queue_is_not_the_calls_time(build: Callable[..., Verifier]) -> None:
    """200 calls of 10 ms on two workers take as long as the limit of one call."""
    found = scores(build("cheap", timeout_s=1.0), [text_rollout("a", index=i) for i in range(200)])
    assert [one.error for one in found if one.error] == []
    assert [one.value for one in found] == [1.0] * 200


def test_case_c18_a_text_without_an_answer_has_one_score(build: Callable[..., Verifier]) -> None:
    texts = ("x = 5", "no answer", "it is 5", "none here", "5")
    assert values(build("numeric"), *texts, answer="5") == [1.0, 0.0, 1.0, 0.0, 1.0]


def test_case_c19_the_prompt_is_not_scored(build: Callable[..., Verifier]) -> None:
    prompt = "Put the answer into \\boxed{}, e.g. \\boxed{5}. <think> first."
    for verifier in (build("numeric", extract="boxed"), build("format", tags=["think"])):
        for text in ("the answer is six", ""):
            with_prompt = scores(verifier, [text_rollout(text, {"answer": "5"}, prompt=prompt)])
            assert [one.value for one in with_prompt] == [0.0]
            assert with_prompt == scores(verifier, [text_rollout(text, {"answer": "5"})])


@pytest.mark.parametrize("base", [-0.2, 0.0, 1.0])
def test_case_c26_longer_never_scores_higher(base: float) -> None:
    """A length penalty is added: no factor can turn a negative base round."""
    sections = {"main": {"length": VerifierConfig.model_validate(
        {"kind": "soft_overlong", "max_tokens": 100, "cache_tokens": 20, "weight": 0.6}),
        "base": VerifierConfig.model_validate({"kind": "exact", "weight": base})}}  # fmt: skip
    with build_verifiers(sections) as verifiers:
        rollouts = [text_rollout("a", {"answer": "a"}, tokens=[5] * n, index=n) for n in range(0, 160, 5)]
        found = [one.value for one in verifiers.score(rollouts)]
    assert found[0] == pytest.approx(base)
    assert all(later <= earlier for earlier, later in itertools.pairwise(found))
    assert found[-1] == pytest.approx(base - 0.6)


def test_case_c27_the_length_penalty_ends_at_minus_one(build: Callable[..., Verifier]) -> None:
    verifier = build("soft_overlong", max_tokens=100, cache_tokens=20)
    found = [scores(verifier, [text_rollout("x", tokens=[5] * n)])[0].value for n in (0, 80, 90, 100, 101, 150)]
    assert found == [0.0, 0.0, -0.5, -1.0, -1.0, -1.0]


def test_case_c27_the_presets_slope_ends_at_the_limit(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, algorithm={"preset": "dapo", "kl": {"placement": "none"}}, rollout={"max_tokens": 100})
    part = wanted.rubrics["default"]["soft_overlong"].model_dump(exclude_none=True)
    assert (part["max_tokens"], part["cache_tokens"], part["weight"]) == (100, 20, 1.0)


def test_case_c28_repeated_characters_without_spaces_are_penalised(build: Callable[..., Verifier]) -> None:
    text = "你好" * 20
    assert scores(build("repetition"), [text_rollout(text, tokens=[7, 8] * 20)])[0].value < -0.9
    assert scores(build("repetition", unit="word"), [text_rollout(text)])[0].value < -0.9
    assert scores(build("repetition"), [text_rollout("x", tokens=list(range(40)))])[0].value == 0.0


def test_case_c89_a_function_gets_the_rows_own_columns_alone(build: Callable[..., Verifier]) -> None:
    """prompt and completion are those of the rollout, also where the data has columns of that name."""
    row = {"answer": "7", "completion": "gold text", "prompt": "raw"}
    assert values(build("given"), "text", **row) == [3.0]  # answer, completion, prompt; no token ids
    assert values(build("given"), "text") == [2.0]


def test_case_c89_no_reward_function_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^verifiers: got \{\}, need .*at least 1"):
        validate_recipe({**recipe_data(tmp_path), "verifiers": {}})
    with pytest.raises(SettingError, match=r"^verifiers\.default: got \{\}, need at least one part"):
        recipe(tmp_path, verifiers={"default": {}})
