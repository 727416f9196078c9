"""A user's function: what it is given, what its answers mean, and that its deadline holds."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quatrain.config import VerifierConfig
from quatrain.errors import SettingError, VerifierError
from quatrain.rewards import Verifier, build_verifier, text_rollout
from quatrain.rewards.guard import Guarded
from quatrain.rewards.verifier import OnError
from quatrain.types import Prompt, Rollout, Score

FUNCTIONS = """
import asyncio, os, sys, time
import sibling                     # a file beside this one
from quatrain.types import Score
print("printed while importing")   # must not disturb the answers

def keyed(prompt, completion, answer, unit="none"):
    print("printed"); sys.stdout.flush(); os.write(1, b"raw bytes")
    return sibling.ONE if (prompt, completion, answer, unit) == ("Q", "C", 5, "m") else 0.0

def names(**given):
    return Score(value=1.0, parts={name: 1.0 for name in given})

def mixed(completion):
    return {"none": None, "true": True, "one": 1, "half": 0.5, "nan": float("nan"), "text": "1", "list": [1.0],
            "score": Score(value=0.25)}[completion]

def flaky(completion):
    return 1 / int(completion)

def slow(completion):
    if completion == "hang":
        while True:
            pass
    if completion == "die":
        os._exit(3)
    if completion == "exit":
        sys.exit(0)
    return 1.0

async def waits(completion):
    if completion == "block":
        time.sleep(60)
    await asyncio.sleep(60 if completion == "hang" else 1.0)
    return 1.0

async def waits_too(completion):
    await asyncio.sleep(1.0)
    return 2.0

not_a_function = 3
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    (folder / "sibling.py").write_text("ONE = 1.0\n")
    (folder / "mine.py").write_text(FUNCTIONS)
    return folder / "mine.py"


@pytest.fixture(scope="module")
def build(file: Path) -> Iterator[Callable[..., Verifier]]:
    """Verifiers by function name and settings, each started once and closed at the end."""
    built: dict[str, Verifier] = {}

    def make(name: str, **settings: Any) -> Verifier:
        key = f"{name} {settings}"
        if key not in built:
            config = VerifierConfig.model_validate({"kind": f"{file}:{name}", **settings})
            built[key] = build_verifier(config, "verifiers.main.mine")
        return built[key]

    yield make
    for verifier in built.values():
        verifier.close()


def with_policy(verifier: Verifier, on_error: OnError) -> Verifier:
    """The same worker processes under another policy."""
    assert isinstance(verifier, Guarded)
    return replace(verifier, limits=replace(verifier.limits, on_error=on_error))


def score(verifier: Verifier, *texts: str) -> list[Score]:
    return list(asyncio.run(verifier.score([text_rollout(text, index=i) for i, text in enumerate(texts)])))


def test_strings_and_the_rows_own_columns(build: Callable[..., Verifier]) -> None:
    row = {"answer": 5, "unit": "m", "prompt": [{"role": "user"}], "completion": "not this one", "extra": 1}
    rollout = text_rollout("C", row, prompt="Q")
    assert asyncio.run(build("keyed").score([rollout]))[0].value == 1.0
    assert set(asyncio.run(build("names").score([rollout]))[0].parts) == set(row)


def test_a_missing_column_lists_those_there_are(build: Callable[..., Verifier]) -> None:
    with pytest.raises(
        VerifierError, match=r"mine \(keyed\): prompt 3, completion 0 has no column 'answer'.*: gold, unit"
    ):
        asyncio.run(build("keyed").score([text_rollout("C", {"gold": 1, "unit": 2}, index=3)]))


def test_the_prefill_is_part_of_the_completion(build: Callable[..., Verifier]) -> None:
    prompt = Prompt(index=0, token_ids=(0,), text="Q", prefill="h")
    rollout = Rollout(prompt=prompt, group=0, index=0, trajectories=(), text="alf", stop_reason="eos")
    assert asyncio.run(build("mixed").score([rollout]))[0].value == 0.5


def test_what_answers_mean(build: Callable[..., Verifier]) -> None:
    verifier = build("mixed")
    scores = score(verifier, "none", "true", "one", "half", "nan", "score")
    assert [one.status for one in scores] == ["abstained", "ok", "ok", "ok", "error", "ok"]
    assert [one.value for one in scores if one.usable] == [1.0, 1.0, 0.5, 0.25]
    assert scores[4].error == "returned nan, need a finite number"
    with pytest.raises(VerifierError, match=r"mine \(mixed\): prompt 1, completion 0: returned str, need float"):
        score(verifier, "half", "text")
    with pytest.raises(VerifierError, match="returned list"):
        score(verifier, "list")


def test_an_exception_by_policy(build: Callable[..., Verifier]) -> None:
    skipped = score(build("flaky"), "1", "0", "2")
    assert [one.status for one in skipped] == ["ok", "error", "ok"]
    assert skipped[1].error == "ZeroDivisionError: division by zero"
    zeroed = score(with_policy(build("flaky"), "zero"), "1", "0", "2")
    assert [one.value for one in zeroed] == [1.0, 0.0, 0.5]
    assert "ZeroDivisionError" in zeroed[1].error
    with pytest.raises(
        VerifierError, match=r"mine \(flaky\): prompt 1, completion 0: ZeroDivisionError: division by zero"
    ):
        score(with_policy(build("flaky"), "stop"), "1", "0", "2")


def test_a_hanging_call_is_killed_and_harms_no_other(build: Callable[..., Verifier]) -> None:
    verifier = build("slow", timeout_s=1.0)
    started = time.monotonic()
    scores = score(verifier, "a", "hang", "b", "hang", "c", "d")
    assert time.monotonic() - started < 15
    assert [one.status for one in scores] == ["ok", "error", "ok", "error", "ok", "ok"]
    assert scores[1].error == "timeout after 1 s"
    crashed = score(verifier, "die", "e", "exit", "f")
    assert [one.status for one in crashed] == ["error", "ok", "error", "ok"]
    assert crashed[0].error == "the worker died (exit status 3)"
    assert crashed[2].error == "SystemExit: 0"


def test_the_clock_starts_with_the_call_not_in_the_queue(build: Callable[..., Verifier]) -> None:
    scores = score(build("slow", timeout_s=1.0), *["cheap"] * 200)
    assert [one.value for one in scores] == [1.0] * 200


def test_the_event_loop_is_not_blocked(build: Callable[..., Verifier]) -> None:
    verifier = build("slow", timeout_s=1.0)

    async def both() -> int:
        task = asyncio.ensure_future(verifier.score([text_rollout("hang")]))
        ticks = 0
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert asyncio.run(both()) > 10


def test_coroutines_are_awaited_side_by_side(build: Callable[..., Verifier]) -> None:
    first, second = build("waits"), build("waits_too")

    async def both() -> list[Any]:
        rollouts = [text_rollout("x")] * 8
        return list(await asyncio.gather(first.score(rollouts), second.score(rollouts)))

    started = time.monotonic()
    scores = asyncio.run(both())
    assert time.monotonic() - started < 1.5
    assert [[one.value for one in side] for side in scores] == [[1.0] * 8, [2.0] * 8]


def test_a_coroutine_that_hangs_or_blocks_its_loop(build: Callable[..., Verifier]) -> None:
    scores = score(build("waits", timeout_s=1.5), "a", "hang", "block", "b")
    assert [one.status for one in scores] == ["ok", "error", "error", "ok"]
    assert scores[1].error == scores[2].error == "timeout after 1.5 s"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("keyd", "verifiers.main.mine.kind: got .*mine.py:keyd, need a name defined in mine.py; did you mean 'keyed'"),
        ("not_a_function", "verifiers.main.mine.kind: got .*, need a function"),
    ],
)
def test_a_function_that_cannot_be_loaded(build: Callable[..., Verifier], name: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        build(name)


def test_a_file_that_does_not_import(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import not_there_at_all\n")
    with pytest.raises(SettingError, match="need a file that imports; ModuleNotFoundError"):
        build_verifier(VerifierConfig(kind=f"{tmp_path}/broken.py:f"))


def test_a_function_has_no_settings(file: Path) -> None:
    with pytest.raises(SettingError, match=r"v.bonus: got 1, need no further settings"):
        build_verifier(VerifierConfig.model_validate({"kind": f"{file}:slow", "bonus": 1}), "v")


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


SCRIPT = """
import asyncio, sys, threading, time
from quatrain.config import VerifierConfig
from quatrain.rewards import build_verifier, text_rollout
verifier = build_verifier(VerifierConfig(kind=sys.argv[1], timeout_s=60))   # no main guard
print(" ".join(str(process._process.pid) for process in verifier.inner._pool._running), flush=True)
asyncio.run(verifier.score([text_rollout(text) for text in ("1", "hang")]))
"""


def test_workers_end_with_a_parent_that_is_killed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    parent = subprocess.Popen([sys.executable, str(tmp_path / "script.py"), f"{file}:slow"], stdout=subprocess.PIPE,
                              text=True, env={**os.environ, "PYTHONPATH": root})  # fmt: skip
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert pids
    assert all(alive(pid) for pid in pids)
    time.sleep(0.3)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def test_close_ends_the_workers_also_in_the_middle_of_a_call(file: Path) -> None:
    verifier = build_verifier(VerifierConfig(kind=f"{file}:slow", timeout_s=60.0))
    pool = verifier.inner._pool  # type: ignore[attr-defined]

    async def closed_early() -> None:
        task = asyncio.ensure_future(verifier.score([text_rollout("hang")]))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(verifier.close)
        with pytest.raises(VerifierError, match="closed"):
            await task

    pids = [process._process.pid for process in pool._running]
    asyncio.run(closed_early())
    assert pids
    assert not any(alive(pid) for pid in pids)


def test_an_unexpected_fault_ends_the_call_not_the_pool(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may wait for ever for a thread that met something unforeseen."""
    verifier = build_verifier(VerifierConfig(kind=f"{file}:slow", on_error="stop"))
    try:
        with monkeypatch.context() as patch:
            patch.setattr("quatrain.rewards.pool.Answer.from_json", lambda data: {}[data])
            with pytest.raises(VerifierError, match="KeyError"):
                asyncio.run(asyncio.wait_for(verifier.score([text_rollout("a")]), 60))
        assert score(verifier, "a")[0].value == 1.0
    finally:
        verifier.close()
