"""`math`: the answer is mathematically equal to the gold (Math-Verify and sympy, in worker processes)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from quatrain.config import Section
from quatrain.errors import VerifierError
from quatrain.rewards.extract import boxes, extract_answer, gold_answer
from quatrain.rewards.math_rules import MathSettings, apply_rules
from quatrain.rewards.math_text import (
    MAX_ANSWER_LENGTH,
    MAX_DEPTH,
    clean,
    depth,
    final_answer,
    rational,
    same_rational,
    squeezed,
)
from quatrain.rewards.pool import Pool
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, scored_text
from quatrain.types import Rollout, Score


def quick_verdict(gold: str, answer: str, digits: int | None = None) -> bool | None:
    """Equality that needs no algebra: the same cleaned text, or two rational numbers; None when it is neither."""
    if len(answer) > MAX_ANSWER_LENGTH:
        return False
    gold, answer = clean(gold), clean(answer)
    if not answer or not gold:
        return False
    if squeezed(gold) == squeezed(answer):
        return True
    return False if depth(answer) > MAX_DEPTH else same_rational(gold, answer, digits)


def voted(gold: str, answer: str, right: bool) -> str | None:
    """The answer as a vote: the gold's form when it is right, its exact value or cleaned text; None: not read."""
    if len(answer) > MAX_ANSWER_LENGTH:
        return None
    text = clean(gold if right else answer)
    value = rational(text)
    return (squeezed(text) if value is None else str(value)) or None


@VERIFIERS.register("math")
class MathEqual:
    """1 when the final answer equals the gold as mathematics, else 0.

    Equal text and rational numbers are decided here, exactly; everything else by sympy in a worker process that is
    killed at `timeout_s`: such an answer is an error (by `on_error`), since it has not been judged.
    """

    Settings: ClassVar[type[Section]] = MathSettings
    default_timeout_s: ClassVar[float] = 0.5
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "correctness"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(prompt="Expand.", completion="So $\\boxed{x^2+2x+1}$.", columns={"answer": "(x+1)^2"}, value=1.0),
        Example(prompt="Half?", completion="The answer is 0.5", columns={"answer": "\\frac{1}{2}"}, value=1.0),
        Example(completion="\\boxed{x^2+1}", columns={"answer": "(x+1)^2"}, value=0.0),
        Example(completion="\\boxed{16}, \\boxed{17}", columns={"answer": "17"}, value=0.0),
        Example(completion="\\boxed{3^{-81}}", columns={"answer": "3^{-80}"}, value=0.0),
    )

    def __init__(self, settings: MathSettings, limits: Limits) -> None:
        self._settings, self._limits = settings, limits
        self._pool = Pool("quatrain.rewards.math_worker:equal", setting=limits.setting, timeout_s=limits.timeout_s)

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout; only what is not decided at once goes to a worker."""
        scores: dict[int, Score] = {}
        unsure: dict[int, dict[str, Any]] = {}
        votes: dict[int, tuple[str, str]] = {}
        for position, rollout in enumerate(rollouts):
            gold = gold_answer(rollout, self._settings.answer_column, self._limits.name)
            answer = self._answer(rollout)
            verdict = False if answer is None else self._quick(gold, answer, scored_text(rollout))
            if answer is not None:
                votes[position] = gold, answer
            if isinstance(verdict, bool):
                scores[position] = Score(value=float(verdict))
            else:
                unsure[position] = {**verdict, "digits": self._settings.rounded_digits}
        judged = await self._pool.call(list(unsure.values())) if unsure else []
        for position, outcome in zip(unsure, judged, strict=True):
            if outcome.fatal:
                raise VerifierError(f"{self._limits.name}: {outcome.score.error}")
            scores[position] = outcome.score
        for position, (gold, answer) in votes.items():
            scores[position] = replace(scores[position], answer=voted(gold, answer, scores[position].value == 1.0))
        return [scores[position] for position in range(len(rollouts))]

    def _answer(self, rollout: Rollout) -> str | None:
        text = scored_text(rollout)
        if not rollout.text.strip():
            return None
        if self._settings.extract == "auto":
            return final_answer(text, self._settings.require_marker)
        return extract_answer(text, self._settings)

    def _quick(self, gold: str, answer: str, text: str) -> bool | dict[str, str]:
        """The verdict that needs no algebra, or what the worker is asked."""
        if len(answer) > MAX_ANSWER_LENGTH:
            return False
        in_latex = "$" in answer or any(answer == box.text.strip() for box in boxes(text))
        ruled = apply_rules(gold, answer, self._settings, in_latex)
        if isinstance(ruled, bool):
            return ruled
        verdict = quick_verdict(*ruled, digits=self._settings.rounded_digits)
        return dict(zip(("gold", "answer"), ruled, strict=True)) if verdict is None else verdict

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()
