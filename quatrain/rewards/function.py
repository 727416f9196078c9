"""A user's function as a verifier: by path in worker processes, or a Python object in threads of this one."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

from quatrain.errors import VerifierError
from quatrain.rewards.calling import Answer, arguments, call_now, describe, timed_out
from quatrain.rewards.guard import Guarded
from quatrain.rewards.pool import SIDE_BY_SIDE, Pool
from quatrain.rewards.verifier import Example, Kind, Limits, OnError, Scope, Verifier, label
from quatrain.types import Rollout, Score


class FunctionVerifier:
    """`FILE.py:FUNCTION`, called in worker processes: `(prompt, completion, **columns) -> float | bool | None | Score`.

    Called by names: `prompt` and `completion` are strings, further arguments are the row's own columns. The call that
    misses its deadline is killed. The settings are validated at once: SettingError if the function cannot be loaded.
    """

    scope: Scope = "completion"
    kind: Kind = "shaping"
    examples: tuple[Example, ...] = ()

    def __init__(self, reference: str, limits: Limits) -> None:
        self._limits = limits
        self._pool = Pool(reference, setting=f"{limits.setting}.kind", timeout_s=limits.timeout_s)
        try:
            self.signature = self._pool.signature()
        except BaseException:
            self._pool.close()
            raise

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout; VerifierError for a missing column or an answer of the wrong type."""
        name = self._limits.name
        answers = await self._pool.call([arguments(self.signature, rollout, name) for rollout in rollouts])
        return accepted(answers, rollouts, name)

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()


class ThreadedFunction:
    """A function object (lambda, notebook cell) called in daemon threads of this process.

    The deadline ends the waiting only: Python cannot end a thread, so a call that hangs stays until the process exits.
    """

    scope: Scope = "completion"
    kind: Kind = "shaping"
    examples: tuple[Example, ...] = ()

    def __init__(self, function: Callable[..., Any], limits: Limits) -> None:
        self._function, self._limits = function, limits
        self.signature = describe(function, limits.setting, limits.name)

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout, several side by side; the clock of a call starts with its thread."""
        given = [arguments(self.signature, rollout, self._limits.name) for rollout in rollouts]
        side_by_side = asyncio.Semaphore(SIDE_BY_SIDE)

        async def one(values: dict[str, Any]) -> Answer:
            async with side_by_side:
                return await self._in_thread(values)

        return accepted(await asyncio.gather(*map(one, given)), rollouts, self._limits.name)

    async def _in_thread(self, given: dict[str, Any]) -> Answer:
        future: Future[Answer] = Future()

        def run() -> None:
            answer = call_now(self._function, given)
            with contextlib.suppress(InvalidStateError):  # nobody waits any more
                future.set_result(answer)

        threading.Thread(target=run, daemon=True).start()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._limits.timeout_s)
        except TimeoutError:
            return timed_out(self._limits.timeout_s)

    def close(self) -> None:
        """Nothing can be ended."""


def accepted(answers: Sequence[Answer], rollouts: Sequence[Rollout], name: str) -> list[Score]:
    """The scores; VerifierError for an answer that is not one."""
    for answer, rollout in zip(answers, rollouts, strict=True):
        if answer.fatal:
            raise VerifierError(f"{name}: {label(rollout)}: {answer.score.error}")
    return [answer.score for answer in answers]


def wrap_function(function: Callable[..., Any], timeout_s: float = 5.0, on_error: OnError = "skip") -> Verifier:
    """A verifier from a Python function, for scripts and notebooks: `wrap_function(lambda completion: 1.0)`.

    Prefer `FILE.py:FUNCTION`: only a process can be ended at its deadline.
    """
    name = getattr(function, "__name__", type(function).__name__)
    limits = Limits(name=name, setting="function", timeout_s=timeout_s, on_error=on_error)
    return Guarded(ThreadedFunction(function, limits), limits)
