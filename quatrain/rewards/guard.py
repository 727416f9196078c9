"""The boundary around a verifier's call: what it raises or cannot judge becomes what `on_error` says."""

from collections.abc import Sequence
from dataclasses import dataclass

from quatrain.errors import QuatrainError, VerifierError
from quatrain.rewards.verifier import Example, Kind, Limits, Scope, Verifier, label
from quatrain.types import Rollout, Score


@dataclass(frozen=True)
class Guarded:
    """A verifier that returns one score per rollout or raises VerifierError, and nothing else.

    A sample that cannot be judged is, by `limits.on_error`: `skip` an error score (left out of its group), `zero` the
    value 0 with the error kept beside it, `stop` a VerifierError that names verifier, sample and inner error. Faults of
    the data or of the verifier itself (missing column, empty gold, wrong type, wrong count) always raise.
    """

    inner: Verifier
    limits: Limits

    @property
    def scope(self) -> Scope:
        """The inner verifier's."""
        return self.inner.scope

    @property
    def kind(self) -> Kind:
        """The inner verifier's."""
        return self.inner.kind

    @property
    def examples(self) -> tuple[Example, ...]:
        """The inner verifier's."""
        return self.inner.examples

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout, in order."""
        scores = await self._scores(rollouts)
        return [self._policy(score, rollout) for score, rollout in zip(scores, rollouts, strict=True)]

    async def _scores(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        try:
            scores = await self.inner.score(rollouts)
        except QuatrainError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary around a verifier's call
            if self.scope == "completion" and len(rollouts) > 1:  # find the culprit
                return [score for rollout in rollouts for score in await self._scores([rollout])]
            return [Score(status="error", error=f"{type(error).__name__}: {error}")] * len(rollouts)
        if len(scores) != len(rollouts):
            raise VerifierError(f"{self.limits.name}: gave {len(scores)} scores for {len(rollouts)} rollouts")
        return scores

    def _policy(self, score: Score, rollout: Rollout) -> Score:
        if score.status != "error" or self.limits.on_error == "skip":
            return score
        if self.limits.on_error == "zero":
            return Score(value=0.0, error=score.error)
        raise VerifierError(f"{self.limits.name}: {label(rollout)}: {score.error}")

    def close(self) -> None:
        """Close the inner verifier."""
        self.inner.close()
