"""Calling a user's function: which columns it takes, and what its result means; used on both sides of the pipe."""

import asyncio
import inspect
import json
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from quatrain.errors import SettingError
from quatrain.rewards.verifier import missing_column, scored_text
from quatrain.types import Rollout, Score

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes by name (`accepts` is None for **columns), what it cannot do without, if it is awaited."""

    accepts: tuple[str, ...] | None
    required: tuple[str, ...]
    is_async: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of one call. `fatal`: a fault in the function itself, which no `on_error` may hide."""

    score: Score
    fatal: bool = False

    def to_json(self) -> bytes:
        """Plain data for the pipe; text with lone surrogates survives as escapes."""
        return json.dumps({"score": asdict(self.score), "fatal": self.fatal}).encode("ascii")

    @classmethod
    def from_json(cls, data: bytes) -> "Answer":
        """The inverse of `to_json`."""
        plain = json.loads(data)
        score = plain["score"]
        score["placed"] = tuple((int(position), float(reward)) for position, reward in score["placed"])
        return cls(Score(**score), plain["fatal"])


def describe(function: Callable[..., Any], setting: str, got: str) -> Signature:
    """The signature of a reward function; SettingError for something that cannot be called by names."""
    if isinstance(function, type) or not callable(function):
        raise SettingError(setting, got, "a function (prompt, completion, **columns) -> float", "name a function")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise SettingError(setting, got, "a function with a Python signature", "wrap it in a def") from None
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise SettingError(
                setting, got, "arguments that can be passed by name", f"free {parameter.name!r} of the /"
            )
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return Signature(
        accepts=None if takes_all else tuple(one.name for one in named),
        required=tuple(one.name for one in named if one.default is one.empty),
        is_async=inspect.iscoroutinefunction(call),
    )


def arguments(signature: Signature, rollout: Rollout, name: str) -> dict[str, Any]:
    """prompt and completion (always strings) and those of the row's own columns that the function takes."""
    given = {**rollout.prompt.columns, "prompt": rollout.prompt.text, "completion": scored_text(rollout)}
    for column in signature.required:
        if column not in given:
            raise missing_column(name, rollout, column, "a function takes prompt, completion and columns by name")
    return {key: value for key, value in given.items() if signature.accepts is None or key in signature.accepts}


def call_now(function: Callable[..., Any], given: Mapping[str, Any]) -> Answer:
    """Call a plain function; an awaitable result is awaited. What the function raises becomes an error answer."""
    try:
        result = function(**given)
        return as_answer(asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the boundary around a verifier's call
        return raised(error)


async def call_async(function: Callable[..., Any], given: Mapping[str, Any], timeout_s: float) -> Answer:
    """Await a coroutine function for at most `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return as_answer(await function(**given))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the boundary around a verifier's call
        return timed_out(timeout_s) if limit.expired() else raised(error)


def to_end(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine, also for a caller inside a running event loop (a notebook's)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def failed(error: str) -> Answer:
    """Could not judge."""
    return Answer(Score(status="error", error=error))


def raised(error: BaseException) -> Answer:
    """The function raised."""
    return failed(f"{type(error).__name__}: {error}"[:2000])


def timed_out(timeout_s: float) -> Answer:
    """The function did not answer in time."""
    return failed(f"timeout after {timeout_s:g} s")


def as_answer(result: Any) -> Answer:
    """A number is the value, a bool 0 or 1, None abstains, a Score stands as it is; any other type is fatal."""
    if result is None:
        return Answer(Score(status="abstained"))
    if isinstance(result, Score):
        placed = tuple((int(position), float(reward)) for position, reward in result.placed)
        parts = {str(name): float(part) for name, part in result.parts.items()}
        weights = {str(name): float(weight) for name, weight in result.weights.items()}
        answer = None if result.answer is None else str(result.answer)
        return Answer(Score(value=float(result.value), parts=parts, weights=weights, status=result.status,
                            error=str(result.error), placed=placed, answer=answer, right=result.right))  # fmt: skip
    if not isinstance(result, (bool, int, float)) and hasattr(result, "item") and getattr(result, "size", 1) in (0, 1):
        result = result.item()  # a numpy or torch scalar
    if not isinstance(result, (bool, int, float)):
        return Answer(Score(status="error", error=f"returned {type(result).__name__}, need float, bool or None"), True)
    value = float(result)
    return Answer(Score(value=value)) if math.isfinite(value) else failed(f"returned {value}, need a finite number")
