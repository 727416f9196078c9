"""`math`: the answer is mathematically equal to the gold (Math-Verify and sympy, in worker processes)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from quatrain.config import Section
from quatrain.errors import VerifierError
from quatrain.rewards.extract import AnswerSettings, extract_answer, gold_answer
from quatrain.rewards.math_text import MAX_ANSWER_LENGTH, MAX_DEPTH, clean, depth, final_answer, rational, squeezed
from quatrain.rewards.pool import Pool
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, scored_text
from quatrain.types import Rollout, Score


class MathSettings(AnswerSettings):
    """Settings of `math`; `auto` takes the last of boxes, '####' lines and "answer is" phrases."""

    extract: Literal["auto", "whole", "last_line", "last_number", "first_number", "boxed", "hashes", "tag"] = "auto"  # type: ignore[assignment]


def quick_verdict(gold: str, answer: str) -> bool | None:
    """Equality that needs no algebra: the same cleaned text, or two rational numbers; None when it is neither."""
    if len(answer) > MAX_ANSWER_LENGTH:
        return False
    gold, answer = clean(gold), clean(answer)
    if not answer or not gold:
        return False
    if squeezed(gold) == squeezed(answer):
        return True
    if depth(answer) > MAX_DEPTH:
        return False
    left, right = rational(gold), rational(answer)
    return None if left is None or right is None else left == right


@VERIFIERS.register("math")
class MathEqual:
    """1 when the final answer equals the gold as mathematics, else 0.

    Equal text and rational numbers are decided here, exactly; everything else by sympy in a worker process that is
    killed at `timeout_s`: such an answer is an error (by `on_error`), since it has not been judged.
    """

    Settings: ClassVar[type[Section]] = MathSettings
    default_timeout_s: ClassVar[float] = 1.0
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
        unsure: dict[int, dict[str, str]] = {}
        for position, rollout in enumerate(rollouts):
            gold = gold_answer(rollout, self._settings.answer_column, self._limits.name)
            answer = self._answer(rollout)
            verdict = False if answer is None else quick_verdict(gold, answer)
            if verdict is None and answer is not None:
                unsure[position] = {"gold": gold, "answer": answer}
            else:
                scores[position] = Score(value=float(bool(verdict)))
        answers = await self._pool.call(list(unsure.values())) if unsure else []
        for position, judged in zip(unsure, answers, strict=True):
            if judged.fatal:
                raise VerifierError(f"{self._limits.name}: {judged.score.error}")
            scores[position] = judged.score
        return [scores[position] for position in range(len(rollouts))]

    def _answer(self, rollout: Rollout) -> str | None:
        text = scored_text(rollout)
        if not rollout.text.strip():
            return None
        if self._settings.extract == "auto":
            return final_answer(text)
        return extract_answer(text, self._settings)

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()
