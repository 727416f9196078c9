"""Weighted parts to one score, and rows to their rubric."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from quatrain.config import VerifierConfig
from quatrain.errors import VerifierError
from quatrain.rewards.build import build_verifier
from quatrain.rewards.calling import to_end
from quatrain.rewards.verifier import Kind, Verifier, label
from quatrain.types import Rollout, Score


@dataclass(frozen=True, slots=True)
class Part:
    """One named verifier of a rubric, its weight, and what it counts as in evaluations."""

    verifier: Verifier
    weight: float = 1.0
    measures: Kind = "shaping"


@dataclass(frozen=True, slots=True)
class Rubric:
    """value = sum over parts of weight * part; right when every correctness part pays in full, whatever the form.

    A part that abstains is left out; when all but the length penalty do, so does the rubric. When a part could not
    judge, neither could the rubric: the score is an error that names the part, never a smaller number. What a part says
    of several parts of its own (the heads of a reward model) is kept as `part/inner` with weight 0.
    """

    parts: Mapping[str, Part]

    async def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """One score per rollout, in order; the parts score side by side."""
        columns = await asyncio.gather(*(_score_part(part.verifier, rollouts) for part in self.parts.values()))
        return [self._combine(row) for row in zip(*columns, strict=True)]

    def _combine(self, row: Sequence[Score]) -> Score:
        named = dict(zip(self.parts, row, strict=True))
        notes = "; ".join(f"{name}: {score.error}" for name, score in named.items() if score.error)
        if any(score.status == "error" for score in row):
            return Score(status="error", error=notes)
        said = {name: score.value for name, score in named.items() if score.usable}
        if not any(name in said for name in self._judging()):
            return Score(status="abstained")
        weights = {name: self.parts[name].weight for name in said}
        value = math.fsum(weights[name] * part for name, part in said.items())
        correctness = [name for name, part in self.parts.items() if part.measures == "correctness" and part.weight]
        paid = [said[name] >= 1 - 1e-9 for name in correctness if name in said]
        placed = tuple(
            (position, self.parts[name].weight * reward)
            for name, score in named.items()
            if score.usable
            for position, reward in score.placed
        )
        inner = {f"{name}/{part}": value for name, score in named.items() if score.usable and len(score.parts) > 1
                 for part, value in score.parts.items()}  # fmt: skip
        return Score(
            value=value, parts=said | inner, weights=weights | dict.fromkeys(inner, 0.0), error=notes, placed=placed,
            answer=next((named[name].answer for name in correctness if named[name].answer is not None), None),
            right=bool(paid) and all(paid) if correctness else None,
        )  # fmt: skip

    def correctness(self, score: Score) -> float:
        """Weighted sum of the parts that measure correctness; where none does, of all but the length penalty."""
        parts = [name for name, part in self.parts.items() if part.measures == "correctness" and part.weight]
        parts = parts or self._judging()
        return sum(self.parts[name].weight * score.parts.get(name, 0.0) for name in parts) if parts else score.value

    def _judging(self) -> list[str]:
        """All parts but the length penalty, which says something about every row; that one where it is alone."""
        return [name for name in self.parts if name != "soft_overlong"] or list(self.parts)

    @property
    def graded(self) -> bool:
        """True when all that is paid for is a degree of which no value means right (a reward model's score)."""
        paid = [self.parts[name] for name in self._judging() if self.parts[name].weight]
        return bool(paid) and all(getattr(getattr(p.verifier, "inner", None), "graded", False) for p in paid)

    def close(self) -> None:
        """Close every part."""
        for part in self.parts.values():
            part.verifier.close()


async def _score_part(verifier: Verifier, rollouts: Sequence[Rollout]) -> list[Score]:
    """Scores in order; a verifier of scope `group` gets one call per group."""
    if verifier.scope == "completion":
        return list(await verifier.score(rollouts))
    members: dict[int, list[int]] = {}
    for position, rollout in enumerate(rollouts):
        members.setdefault(rollout.group, []).append(position)
    answers = await asyncio.gather(
        *(verifier.score([rollouts[position] for position in positions]) for positions in members.values())
    )
    placed = {
        position: score
        for positions, scores in zip(members.values(), answers, strict=True)
        for position, score in zip(positions, scores, strict=True)
    }
    return [placed[position] for position in range(len(rollouts))]


class Verifiers:
    """The rubrics of a recipe by name. `rollout.prompt.verifier` routes a row; empty means the only one.

    Example: `with build_verifiers(recipe.verifiers) as verifiers: scores = verifiers.score(rollouts)`
    """

    def __init__(self, rubrics: Mapping[str, Rubric]) -> None:
        self.rubrics = dict(rubrics)

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """One score per rollout, in order; runs an event loop until all are there (also from a notebook's)."""
        return to_end(self.score_async(rollouts))

    async def score_async(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """`score` for a caller that has an event loop."""
        routes: dict[str, list[int]] = {}
        for position, rollout in enumerate(rollouts):
            routes.setdefault(self._route(rollout), []).append(position)
        answers = await asyncio.gather(
            *(self.rubrics[name].score([rollouts[p] for p in positions]) for name, positions in routes.items())
        )
        scores: dict[int, Score] = {}
        for positions, part in zip(routes.values(), answers, strict=True):
            scores.update(zip(positions, part, strict=True))
        return [scores[position] for position in range(len(rollouts))]

    def rubric_of(self, rollout: Rollout) -> Rubric:
        """The rubric that scores this rollout."""
        return self.rubrics[self._route(rollout)]

    def _route(self, rollout: Rollout) -> str:
        name = rollout.prompt.verifier
        if not name and len(self.rubrics) == 1:
            return next(iter(self.rubrics))
        if name not in self.rubrics:
            known = ", ".join(sorted(self.rubrics))
            raise VerifierError(f"{label(rollout)} asks for verifier {name!r}, need one of: {known}")
        return name

    def close(self) -> None:
        """End every worker process."""
        for rubric in self.rubrics.values():
            rubric.close()

    def __enter__(self) -> "Verifiers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def build_verifiers(sections: Mapping[str, Mapping[str, VerifierConfig]], setting: str = "verifiers") -> Verifiers:
    """The verifiers of a recipe; when one cannot be built, those built before are closed."""
    rubrics: dict[str, dict[str, Part]] = {}
    try:
        for name, parts in sections.items():
            rubrics[name] = {}
            for part, config in parts.items():
                verifier = build_verifier(config, f"{setting}.{name}.{part}")
                rubrics[name][part] = Part(verifier, config.weight, config.measures or verifier.kind)
    except BaseException:
        for built in rubrics.values():
            Rubric(built).close()
        raise
    return Verifiers({name: Rubric(parts) for name, parts in rubrics.items()})
