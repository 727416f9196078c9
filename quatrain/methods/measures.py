"""What an evaluation shows: a value per prompt for every measure, and its mean with a 95 % interval over prompts."""

import functools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from quatrain.methods.evaluate import Evaluation, Floats, interval, mean

LABELS = {
    "in_form": "right in the asked form",
    "reward": "mean reward",
    "length": "length (tokens)",
    "truncated": "truncated share",
    "verifier_errors": "verifier errors",
}
Cell = dict[str, Any]  # value, low, high (None: nothing was judged) and the number of prompts behind them


def measures(evaluation: Evaluation) -> dict[str, Floats]:
    """Values per prompt (NaN: not judged) of pass@k, mean@n, majority@k and the means of `LABELS`.

    With n completions a prompt, k runs over 1, 2, 4, ... and n. Parts of the rubric follow where there are several.
    """
    n = evaluation.samples
    correct_PK = np.array([answer.correct for answer in evaluation.answers]).reshape(-1, n)
    sizes = sorted({*(2**power for power in range(n.bit_length())), n})
    found = {f"pass@{k}": pass_at_k(correct_PK, k) for k in sizes}
    if n > 1:
        found[f"mean@{n}"] = evaluation.per_prompt("correct")
        votes = _votes(evaluation)
        if any(row is not None for row in votes):
            found |= {f"majority@{k}": _majorities(votes, correct_PK, k) for k in sizes if k > 2 or k == n}
    found["in_form"] = evaluation.per_prompt("in_form")
    found["reward"] = evaluation.per_prompt("reward")
    found["length"] = evaluation.per_prompt("tokens")
    found["truncated"] = _shares(evaluation, [answer.stop_reason == "length" for answer in evaluation.answers])
    found["verifier_errors"] = _shares(evaluation, [bool(answer.error) for answer in evaluation.answers])
    parts = evaluation.parts()
    return found | {name: evaluation.per_prompt(name) for name in parts if len(parts) > 1}


def pass_at_k(correct_PK: np.ndarray, k: int) -> Floats:
    """1 - C(n - c, k) / C(n, k) per prompt, unbiased for n judged completions of which c are right (NaN when n < k).

    Chen et al. 2021, arXiv:2107.03374, equation 1.
    """
    judged = [row[~np.isnan(row)] for row in correct_PK]
    counts = [(len(row), int(row.sum())) for row in judged]
    return np.array([1 - math.comb(n - c, k) / math.comb(n, k) if n >= k else math.nan for n, c in counts])


def majority_at_k(votes: Sequence[str | None], correct: Sequence[float], k: int) -> float:
    """Expected correctness of the most frequent answer among k of the n completions, drawn without replacement.

    Exact, not sampled. A completion without an answer (None) has no vote; without any vote the outcome is wrong (0).
    Answers that are equally frequent share the outcome. An answer is as right as its completions are on average. NaN
    when fewer than k completions were judged. Self-consistency: Wang et al. 2023, arXiv:2203.11171.

    Each answer's votes among the k are independent Binomial(count, k / n) given that all of them sum to k, so the
    chance of every outcome is a product of polynomials, divided by that of the sum.
    """
    judged = [(vote, right) for vote, right in zip(votes, correct, strict=True) if not math.isnan(right)]
    n = len(judged)
    if n < k:
        return math.nan
    counts = Counter(vote for vote, _ in judged)
    silent = counts.pop(None, 0)
    paid = {vote: sum(right for own, right in judged if own == vote) / count for vote, count in counts.items()}
    total = 0.0
    for vote, share in paid.items():
        others = [count for other, count in counts.items() if other != vote]
        for most in range(1, min(counts[vote], k) + 1 if share else 1):
            ties_T = _ties(others, silent, most, k - most, k / n)
            wins = sum(chance / (1 + ties) for ties, chance in enumerate(ties_T))
            total += share * _binomial(counts[vote], k / n)[most] * wins
    return float(total / _binomial(n, k / n)[k])


def _ties(counts: Sequence[int], silent: int, most: int, votes: int, chance: float) -> np.ndarray:
    """Chances that `votes` votes go to the others, nobody has more than `most`, and exactly t answers have `most`."""
    state_VT = np.zeros((votes + 1, votes // most + 1))
    state_VT[: silent + 1, 0] = _binomial(silent, chance)[: votes + 1]
    for count in counts:
        pmf = _binomial(count, chance)
        new_VT = np.zeros_like(state_VT)
        for own in range(min(count, most, votes) + 1):
            rest_VT = pmf[own] * state_VT[: votes + 1 - own]
            if own < most:
                new_VT[own:] += rest_VT
            else:
                new_VT[own:, 1:] += rest_VT[:, :-1]
        state_VT = new_VT
    return state_VT[votes]


@functools.lru_cache(maxsize=4096)
def _binomial(n: int, chance: float) -> np.ndarray:
    """Probabilities of 0..n successes, by convolution (no factorial that could overflow)."""
    pmf = np.ones(1)
    for _ in range(n):
        pmf = np.convolve(pmf, [1 - chance, chance])
    return pmf


def _votes(evaluation: Evaluation) -> list[list[str | None] | None]:
    """The answers of each prompt; None for a source whose verifier never says what it read."""
    telling = {answer.source for answer in evaluation.answers if answer.answer is not None}
    n = evaluation.samples
    rows = [evaluation.answers[start : start + n] for start in range(0, len(evaluation.answers), n)]
    return [[answer.answer for answer in row] if row[0].source in telling else None for row in rows]


def _majorities(votes: Sequence[list[str | None] | None], correct_PK: np.ndarray, k: int) -> Floats:
    pairs = zip(votes, correct_PK.tolist(), strict=True)
    return np.array([math.nan if own is None else majority_at_k(own, correct, k) for own, correct in pairs])


def _shares(evaluation: Evaluation, flags: Sequence[bool]) -> Floats:
    return np.array(flags, dtype=np.float64).reshape(-1, evaluation.samples).mean(1)


def cell(values: Floats) -> Cell:
    """Mean over prompts with its interval."""
    low, high = interval(values)
    return {"value": mean(values), "low": low, "high": high, "prompts": int((~np.isnan(values)).sum())}


def table(evaluation: Evaluation) -> dict[str, Cell]:
    """Every measure with its interval."""
    return {name: cell(values) for name, values in measures(evaluation).items()}


def by_source(evaluation: Evaluation) -> dict[str, dict[str, Cell]]:
    """`table` of each source when there are several; else nothing."""
    names = evaluation.sources()
    return {name: table(evaluation.of(name)) for name in names} if len(names) > 1 else {}
