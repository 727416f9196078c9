"""`code`: a Python program against tests, run where it can do no harm and judged where it cannot reach."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field

from quatrain.config import Positive, Section
from quatrain.errors import SettingError, VerifierError
from quatrain.rewards import code_inside
from quatrain.rewards.code_compare import equals, matches, same_output
from quatrain.rewards.code_extract import extract_program, sources
from quatrain.rewards.code_inside.frames import frames
from quatrain.rewards.code_inside.values import NotPlain
from quatrain.rewards.code_rows import Asserts, Call, Calls, NoTests, Streams, Suite, read_suite
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, label, scored_text
from quatrain.sandbox import (
    CannotIsolate,
    Choice,
    Isolation,
    Outcome,
    SandboxError,
    Task,
    build_backend,
)
from quatrain.sandbox import Limits as JobLimits
from quatrain.types import Rollout, Score

MAX_PROGRAM = 1 << 20  # characters
MAX_TIMEOUTS = 3  # a program that missed the limit on so many of its tests has failed those that are left
LONG_OUTPUT = 1 << 15  # bytes
T = TypeVar("T")
_INSIDE = ("code_inside", str(Path(code_inside.__file__).parent))
_RUN_CALLS = b"from code_inside.calls import run_calls\nrun_calls()"
_SERVE_CALLS = b"from code_inside.calls import serve_calls\nserve_calls()"
_RUN_SUITE = b"from code_inside.suite import main\nmain()"

_ONE = "```python\ndef add(a, b):\n    return a + b\n```"


class CodeSettings(Section):
    """Settings of `code`; `timeout_s` is the wall clock of one run of the program."""

    reward: Literal["all", "share"] = Field("all", description="1 when all tests pass, or the share of them that do")
    isolation: Isolation = Field("namespace", description="what keeps programs from this machine; see docs/sandbox.md")
    runtime: str | None = Field(None, description="of `isolation: oci`: runsc, kata, runc, or a path with options")
    address: str | None = Field(None, description="of `isolation: remote`: http://HOST:PORT of the service")
    token_env: str = Field("QUATRAIN_SANDBOX_TOKEN", description="environment variable with the service's token")
    workers: Positive = 2
    memory_mib: Positive = 512
    output_kib: Positive = Field(1024, description="a program that writes more has failed")
    tolerance: Annotated[float, Field(ge=0)] = Field(
        1e-6, description="of decimals in outputs and returned JSON values"
    )
    packages: tuple[str, ...] = Field((), description="installed packages that programs may import, e.g. [numpy]")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which tests passed, and in a word why others did not: fail, error, timeout, memory, output_limit, bad_result."""

    passed: tuple[bool, ...]
    reason: str


class BrokenTests(Exception):
    """The statements before a row's tests fail on their own, whatever the candidate is."""


@VERIFIERS.register("code")
class Code:
    """1 when the completion's program passes its row's tests, else 0; or the share of the tests that it passes.

    What is expected is never in the process of the candidate, and nothing that process says about itself counts: not
    its exit status, not a printed line, not an object with an `==` of its own. It gets inputs and returns plain data.
    """

    Settings: ClassVar = CodeSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "correctness"
    default_timeout_s: ClassVar[float] = 5.0
    runs_code: ClassVar[bool] = True  # `quatrain audit` then adds hostile programs, when it has time for them
    examples: ClassVar = (
        Example(
            prompt="Print 6 * 12.", completion="```python\nprint(6 * 12)\n```", columns={"answer": "72"}, value=1.0
        ),
        Example(completion=_ONE, columns={"test_list": ["assert add(2, 3) == 5", "assert add(0, 0) == 0"]}, value=1.0),
        Example(
            completion="a, b = map(int, input().split())\nprint(a + b)",
            columns={"inputs": ["2 3\n", "-1 1\n"], "outputs": ["5\n", "0\n"]},
            value=1.0,
        ),
        Example(completion=_ONE, columns={"entry_point": "add", "inputs": [[2, 3]], "outputs": [6]}, value=0.0),
        Example(completion="import os; os._exit(0)", columns={"test_list": ["assert add(2, 3) == 5"]}, value=0.0),
    )

    def __init__(self, settings: CodeSettings, limits: Limits) -> None:
        self.settings, self.limits = settings, limits
        job = JobLimits(timeout_s=limits.timeout_s, memory_mib=settings.memory_mib, output_kib=settings.output_kib)
        choice = Choice(
            isolation=settings.isolation,
            runtime=settings.runtime,
            address=settings.address,
            token_env=settings.token_env,
        )
        try:
            self._sandbox = build_backend(
                choice, job, workers=settings.workers, packages=settings.packages, own=(_INSIDE,)
            )
        except CannotIsolate as error:
            do = f"{error}; or accept the risk: isolation: none_i_accept_the_risk"
            raise SettingError(f"{limits.setting}.isolation", settings.isolation, "one that isolates", do) from None
        except SandboxError as error:
            raise SettingError(
                f"{limits.setting}.packages", settings.packages, "installed packages", str(error)
            ) from None

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout; tests of all of them run side by side in the workers."""
        prepared = await asyncio.to_thread(self._prepare, rollouts)  # parsing long rows would hold up the event loop
        scores: list[Score] = [Score(status="error", error="not judged")] * len(rollouts)
        todo = iter(enumerate(prepared))

        async def lane() -> None:
            for index, (suite, program) in todo:
                scores[index] = await self._score(suite, program)

        # a few at a time: beginning with all of them at once would hold it up too
        await asyncio.gather(*(lane() for _ in range(2 * self.settings.workers)))
        return scores

    def _prepare(self, rollouts: Sequence[Rollout]) -> list[tuple[Suite | None, str]]:
        """Each rollout's tests (None: it has none) and program; the tests are read once for a group's completions."""
        suites: dict[int, Suite | None] = {}
        for rollout in rollouts:
            prompt = rollout.prompt
            if id(prompt) not in suites:
                try:
                    suites[id(prompt)] = read_suite(prompt.columns, prompt.text)
                except NoTests:
                    suites[id(prompt)] = None
                except VerifierError as error:
                    raise VerifierError(f"{self.limits.name}: {label(rollout)}: {error}") from None
        return [(suites[id(rollout.prompt)], extract_program(scored_text(rollout))) for rollout in rollouts]

    async def _score(self, suite: Suite | None, program: str) -> Score:
        if suite is None:
            return Score(status="error", error="the row has no tests")
        if not program.strip() or len(program) > MAX_PROGRAM:
            return Score(value=0.0)
        try:
            verdict = await self.judge(suite, program)
        except BrokenTests as error:
            return Score(status="error", error=f"the row's tests cannot run: {error}")
        except SandboxError as error:
            return Score(status="error", error=f"infrastructure: {error}")
        share = sum(verdict.passed) / max(1, len(verdict.passed))
        value = share if self.settings.reward == "share" else float(share == 1.0)
        return Score(value=value, error="" if verdict.reason in ("pass", "fail") else verdict.reason)

    async def judge(self, suite: Suite, program: str) -> Verdict:
        """The verdict on a program; SandboxError when there is none."""
        if isinstance(suite, Streams):
            return await self._judge_streams(suite, program)
        if isinstance(suite, Calls):
            return await self._judge_calls(suite, program)
        return await self._judge_asserts(suite, program)

    async def _judge_streams(self, suite: Streams, program: str) -> Verdict:
        """One run per test. With `all`, the first failure decides."""
        source = program.encode("utf-8", "surrogatepass")
        passed, reason, timeouts = [False] * len(suite.tests), "pass", 0
        for index, (given, expected) in enumerate(suite.tests):
            (outcome,) = await self._sandbox.run([Task(source, given.encode("utf-8", "surrogatepass"))])
            right = outcome.status == "exited" and outcome.exit_status == 0
            if right:
                passed[index] = await _aside(outcome, same_output, outcome.output, expected, self.settings.tolerance)
            if not passed[index]:
                reason = ("fail" if right else _failure(outcome)) if reason == "pass" else reason
                timeouts += outcome.status == "timeout"
                if self.settings.reward == "all" or timeouts == MAX_TIMEOUTS:
                    break
        return Verdict(tuple(passed), reason)

    async def _judge_calls(self, suite: Calls, program: str) -> Verdict:
        """One process for all calls, which answers each in turn; compared here."""
        payload = {"sources": sources(program, suite.context, suite.entry),
                   "calls": [[call.entry, call.packed] for call in suite.calls]}  # fmt: skip
        (outcome,) = await self._sandbox.run([Task(_RUN_CALLS, json.dumps(payload).encode())])
        return await _aside(outcome, self._compare_calls, suite, outcome)

    def _compare_calls(self, suite: Calls, outcome: Outcome) -> Verdict:
        said, sound = frames(outcome.output)
        passed, reason = [False] * len(suite.calls), "pass"
        answers = said[1:] if said[:1] == [["loaded"]] else []
        for index, (call, answer) in enumerate(zip(suite.calls, answers, strict=False)):
            found = self._judge_answer(call, answer)
            passed[index] = found == "pass"
            reason = found if reason == "pass" else reason
        if len(answers) != len(suite.calls):
            reason = "bad_result" if not sound or len(answers) > len(suite.calls) else _failure(outcome)
        if len(answers) > len(suite.calls):  # then nobody can say which answer belongs to which call
            passed = [False] * len(suite.calls)
        return Verdict(tuple(passed), reason)

    def _judge_answer(self, call: Call, answer: Any) -> str:
        try:
            if answer[0] == "raised":
                return "memory" if answer[1] == "MemoryError" else "fail"
            if answer[0] != "value":
                return "error"
            same = equals(answer[1], call.expected) if call.asserted else matches(
                answer[1], call.expected, self.settings.tolerance
            )  # fmt: skip
            return "pass" if same else "fail"
        except (NotPlain, LookupError, TypeError, RecursionError):
            return "bad_result"

    async def _judge_asserts(self, suite: Asserts, program: str) -> Verdict:
        """Two processes: the tests in one, the candidate in the other, plain data between them."""
        tests = {"tests": suite.source, "context": suite.context, "entry": suite.entry}
        candidate = {"sources": sources(program, suite.context, suite.entry)}
        outcome, other = await self._sandbox.run(
            [Task(_RUN_SUITE, json.dumps(tests).encode()), Task(_SERVE_CALLS, json.dumps(candidate).encode())]
        )
        said, _ = frames(outcome.output)
        if said and said[0][0] == "broken":
            raise BrokenTests(said[0][1])
        count = said[0][1] if said else 1
        passed = [one == ["passed"] for one in said[1 : count + 1]]
        reason = "pass" if len(passed) == count and all(passed) else "fail"
        if len(passed) < count:
            reason = _failure(outcome)
        elif reason == "fail" and other.status != "stopped":
            reason = _failure(other)
        return Verdict((*passed, *[False] * (count - len(passed))), reason)

    def close(self) -> None:
        """End the workers."""
        self._sandbox.close()


async def _aside(outcome: Outcome, judge: Callable[..., T], *arguments: Any) -> T:
    """`judge(*arguments)`, in a thread when the output is long enough to hold up the event loop."""
    if len(outcome.output) < LONG_OUTPUT:
        return judge(*arguments)
    return await asyncio.to_thread(judge, *arguments)


def _failure(outcome: Outcome) -> str:
    """Why a program that should have said more did not."""
    return outcome.status if outcome.status in ("timeout", "output_limit", "memory") else "error"
