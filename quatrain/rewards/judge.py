"""`judge`: a language model judges, one answer on a scale or the answers of a group in pairs."""

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from quatrain.config import Positive, Section
from quatrain.errors import SettingError, VerifierError
from quatrain.rewards.chat_client import ChatClient, Refused, Unreachable
from quatrain.rewards.judge_prompts import RUBRIC, Question, pair, read_choice, read_number, shorten, single
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, missing_column, scored_text
from quatrain.types import Rollout, Score

T = TypeVar("T")


class NoVerdict(Exception):
    """The judge did not say anything that counts."""


Ask = Callable[[list[dict[str, str]]], Awaitable[str]]  # messages in, the judge's reply out


class JudgeSettings(Section):
    """Settings of `judge`."""

    address: str = Field("http://127.0.0.1:8000/v1", description="OpenAI-compatible; a local server's or a service's")
    model: str = Field("judge", description="the name that the server knows the judge by")
    mode: Literal["scale", "pairs"] = Field("scale", description="one answer on a scale, or the group's in pairs")
    rubric: str = Field(RUBRIC, min_length=1, description="what makes an answer good")
    scale: tuple[float, float] = Field((1.0, 10.0), description="worst and best number; mapped to 0 and 1")
    opponents: Positive | None = Field(None, description="pairs: compare with so many of the group; null: with all")
    reference_column: str | None = Field(None, description="column with a reference answer that the judge is shown")
    max_characters: Positive = Field(20_000, description="the middle of a longer answer is left out")
    temperature: Annotated[float, Field(ge=0)] = 0.0
    max_tokens: Positive = Field(1024, description="of the judge's reply")
    key_env: str = Field("OPENAI_API_KEY", description="environment variable with the key; empty: none")
    cache: str | None = Field(None, description="folder that keeps the judge's replies by content; null: none")
    tries: Positive = Field(3, description="for a lost connection, an overloaded server or a reply without a verdict")
    concurrency: Positive = Field(8, description="questions at the same time")

    @model_validator(mode="after")
    def _usable(self) -> "JudgeSettings":
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise SettingError("address", self.address, "http://HOST:PORT/v1 or https://HOST/v1", "give the base path")
        if not self.scale[0] < self.scale[1]:
            raise SettingError("scale", self.scale, "worst below best", "e.g. [1, 10]")
        return self


@VERIFIERS.register("judge")
class Judge:
    """`scale`: (number - worst) / (best - worst). `pairs`: mean over opponents of 1 for a win and 1/2 for a tie.

    In `pairs` each question is asked twice with the answers swapped; a verdict that changes with the order is a tie.
    A blank answer earns 0 and loses every pair unasked; equal answers tie. The verdict must stand on the last line of
    the judge's own reply, with a code made from the texts: nothing inside an answer can pass for it. A reply without
    it is asked for again; then the score is an error, as it is at `timeout_s`. A refusal (wrong key, unknown model)
    stops the run. From Python, `ask` (messages to reply) puts any other model in the place of the address.
    """

    Settings: ClassVar[type[Section]] = JudgeSettings
    default_timeout_s: ClassVar[float] = 60.0
    kind: ClassVar[Kind] = "shaping"
    uses_network: ClassVar[bool] = True
    examples: ClassVar[tuple[Example, ...]] = (  # what any fair judge says
        Example(prompt="What is 2 + 2? Answer with the number alone.", completion="4", value=1.0),
        Example(prompt="What is 2 + 2? Answer with the number alone.", completion="Paris", value=0.0),
        Example(prompt="What is 2 + 2? Answer with the number alone.", completion=" ", value=0.0),
    )

    def __init__(self, settings: JudgeSettings, limits: Limits, ask: Ask | None = None) -> None:
        self._settings, self._limits, self._own = settings, limits, ask
        self._threads = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="judge")
        self._client = ChatClient(
            address=settings.address, key_env=settings.key_env, deadline_s=limits.timeout_s, tries=settings.tries,
            cache=None if settings.cache is None else Path(settings.cache).expanduser(), threads=self._threads,
        )  # fmt: skip

    @property
    def scope(self) -> Scope:
        """Pairs are made within a group."""
        return "group" if self._settings.mode == "pairs" else "completion"

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout; VerifierError when the address refuses."""
        if self._settings.mode == "pairs":
            return await self._rank(rollouts)
        return await together(map(self._grade, rollouts))

    async def _grade(self, rollout: Rollout) -> Score:
        if not rollout.text.strip():
            return Score(value=0.0)
        own = self._settings
        question = single(own.rubric, self._task(rollout), self._text(rollout), self._reference(rollout), own.scale)
        try:
            return Score(value=await self._answer(question, lambda reply: read_number(reply, question.code, own.scale)))
        except NoVerdict as error:
            return Score(status="error", error=str(error))

    async def _rank(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Mean result per rollout over its pairs; an error for one with a pair that the judge said nothing about."""
        pairs = paired(len(rollouts), self._settings.opponents)
        results = await together(self._compare(rollouts[one], rollouts[other]) for one, other in pairs)
        won: list[list[float]] = [[] for _ in rollouts]
        faults = [""] * len(rollouts)
        for (one, other), result in zip(pairs, results, strict=True):
            if isinstance(result, NoVerdict):
                faults[one] = faults[other] = str(result)
            else:
                won[one].append(result)
                won[other].append(1 - result)
        return [_ranked(results, fault) for results, fault in zip(won, faults, strict=True)]

    def preferences(self, pairs: Sequence[tuple[Rollout, Rollout]], rubrics: Sequence[str] = ()) -> list[float]:
        """1 when the first is better, 0 when the second is, 1/2 for a tie, NaN without a verdict; blocks.

        `rubrics` has one text per pair, by default the setting's.
        """

        async def ask() -> list[float | NoVerdict]:
            texts = rubrics or [self._settings.rubric] * len(pairs)
            asked = (self._compare(*pair, text) for pair, text in zip(pairs, texts, strict=True))
            return await together(asked)

        return [math.nan if isinstance(found, NoVerdict) else found for found in asyncio.run(ask())]

    async def _compare(self, one: Rollout, other: Rollout, rubric: str | None = None) -> float | NoVerdict:
        """1 when `one` is better, 0 when `other` is, 1/2 for a tie."""
        texts = self._text(one), self._text(other)
        filled = [bool(rollout.text.strip()) for rollout in (one, other)]
        if texts[0] == texts[1] or not all(filled):
            return 0.5 + (filled[0] - filled[1]) / 2
        try:
            said = await together(self._choose(one, *order, rubric) for order in (texts, texts[::-1]))
        except NoVerdict as error:
            return error
        return {("first", "second"): 1.0, ("second", "first"): 0.0}.get((said[0], said[1]), 0.5)

    async def _choose(self, rollout: Rollout, first: str, second: str, rubric: str | None) -> str:
        question = pair(rubric or self._settings.rubric, self._task(rollout), first, second, self._reference(rollout))
        return await self._answer(question, lambda reply: read_choice(reply, question.code))

    async def _answer(self, question: Question, read: Callable[[str], T]) -> T:
        """What `read` makes of the judge's reply; NoVerdict when there is none, VerifierError when it refuses."""
        own = self._settings
        try:
            if self._own is not None:
                async with asyncio.timeout(self._limits.timeout_s):
                    return read(await self._own(question.messages()))
            body: dict[str, Any] = {"model": own.model, "messages": question.messages(),
                                    "temperature": own.temperature, "max_tokens": own.max_tokens}  # fmt: skip
            return await self._client.ask(body, read)
        except Refused as error:
            raise VerifierError(f"{self._limits.name}: the judge at {own.address} refuses: {error}; "
                                "check address, model and key_env") from None  # fmt: skip
        except (Unreachable, ValueError, TimeoutError) as error:
            raise NoVerdict(f"judge: {error or 'timeout'}") from None

    def _task(self, rollout: Rollout) -> str:
        return rollout.prompt.question or rollout.prompt.text

    def _text(self, rollout: Rollout) -> str:
        return shorten(scored_text(rollout), self._settings.max_characters)

    def _reference(self, rollout: Rollout) -> str:
        column = self._settings.reference_column
        if column is None:
            return ""
        if column not in rollout.prompt.columns:
            raise missing_column(self._limits.name, rollout, column, "set reference_column")
        return str(rollout.prompt.columns[column])

    def close(self) -> None:
        """Let running questions end by themselves, and start no other."""
        self._threads.shutdown(wait=False, cancel_futures=True)


async def together(work: Iterable[Awaitable[T]]) -> list[T]:
    """All results; what one raises comes only when every one has ended, so that no other is left behind unseen."""

    async def held(one: Awaitable[T]) -> tuple[T | None, NoVerdict | VerifierError | None]:
        try:
            return await one, None
        except (NoVerdict, VerifierError) as error:
            return None, error

    ended = await asyncio.gather(*map(held, work))
    for _, error in ended:
        if error is not None:
            raise error
    return [cast(T, result) for result, _ in ended]


def _ranked(results: Sequence[float], fault: str) -> Score:
    """The mean; nobody to compare with is not judged."""
    if fault:
        return Score(status="error", error=fault)
    return Score(value=sum(results) / len(results)) if results else Score(status="abstained")


def paired(count: int, opponents: int | None) -> list[tuple[int, int]]:
    """Pairs of positions: all, or on a ring each with its neighbours, half of `opponents` (rounded up) on each side."""
    if opponents is None or opponents >= count - 1:
        return list(itertools.combinations(range(count), 2))
    steps = range(1, -(-opponents // 2) + 1)
    ring = {(one, (one + step) % count) for one in range(count) for step in steps}
    return sorted({(min(two), max(two)) for two in ring})
