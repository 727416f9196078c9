"""A user's function as a verifier, called in worker processes."""

from collections.abc import Sequence

from quatrain.errors import VerifierError
from quatrain.rewards.calling import Answer, arguments
from quatrain.rewards.pool import Pool
from quatrain.rewards.verifier import Example, Kind, Limits, Scope, label
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


def accepted(answers: Sequence[Answer], rollouts: Sequence[Rollout], name: str) -> list[Score]:
    """The scores; VerifierError for an answer that is not one."""
    for answer, rollout in zip(answers, rollouts, strict=True):
        if answer.fatal:
            raise VerifierError(f"{name}: {label(rollout)}: {answer.score.error}")
    return [answer.score for answer in answers]
