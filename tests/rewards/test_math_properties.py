"""Properties of `math` on random rationals: rewriting never changes a verdict, distinct values are distinct."""

import asyncio
import random
from collections.abc import Callable
from fractions import Fraction

import pytest

from quatrain.config import VerifierConfig
from quatrain.rewards import build_verifier, text_rollout
from quatrain.rewards.math_equal import quick_verdict
from quatrain.rewards.math_text import finite_decimal

PAIRS = 400


def decimal(value: Fraction) -> str:
    """The decimal of a value that has one that ends."""
    places = 0
    while (value * 10**places).denominator != 1:
        places += 1
    digits = f"{abs(int(value * 10**places)):0{places + 1}d}"
    sign = "-" if value < 0 else ""
    return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)


def mixed(value: Fraction) -> str:
    whole, rest = divmod(abs(value), 1)
    return f"{'-' if value < 0 else ''}{whole}\\frac{{{rest.numerator}}}{{{rest.denominator}}}"


def repeating(value: Fraction) -> str:
    """Long division until a remainder comes back."""
    whole, rest = divmod(abs(value.numerator), value.denominator)
    digits, seen = "", {}
    while rest not in seen:
        seen[rest] = len(digits)
        digit, rest = divmod(rest * 10, value.denominator)
        digits += str(digit)
    start = seen[rest]
    return f"{'-' if value < 0 else ''}{whole}.{digits[:start]}\\overline{{{digits[start:]}}}"


def writings(value: Fraction, rng: random.Random) -> list[str]:
    """Ways to write one value."""
    top, bottom, factor = value.numerator, value.denominator, rng.randint(2, 9)
    found = [f"\\frac{{{top}}}{{{bottom}}}", f"\\frac{{{top * factor}}}{{{bottom * factor}}}", f"{top}/{bottom}",
             f"\\dfrac{{{-top}}}{{-{bottom}}}", f"\\left(\\frac{{{top}}}{{{bottom}}}\\right)",
             f"$\\frac{{{top}}}{{{bottom}}}$", f"\\text{{{top}/{bottom}}}"]  # fmt: skip
    if abs(value) > 1 and bottom > 1:
        found.append(mixed(value))
    if finite_decimal(value):
        plain = decimal(value)
        found += [plain, plain + ("0" if "." in plain else ".00"), f"{decimal(value * 100)}\\%"]
        found += [f"{decimal(value / 10**3)} \\times 10^{{3}}", f"{decimal(value * 100)}e-2"]
    elif bottom < 400:
        found.append(repeating(value))
    if bottom == 1 and abs(top) >= 1000:
        found += [f"{top:,}", f"{top:,}".replace(",", "{,}"), f"{top:,}".replace(",", "\\,")]
    return found


def random_rational(rng: random.Random) -> Fraction:
    bottom = rng.choice([1, 1, 2, 4, 5, 8, 10, 16, 100, 1000, rng.randint(1, 999)])
    return Fraction(rng.choice([rng.randint(-50, 50), rng.randint(-(10**9), 10**9)]), bottom)


def close_by(value: Fraction, rng: random.Random) -> Fraction:
    """Another value, often one that differs late."""
    ways: list[Callable[[], Fraction]] = [
        lambda: value + Fraction(1, 10 ** rng.randint(1, 14)),
        lambda: -value,
        lambda: value + 1,
        lambda: Fraction(value.numerator + 1, value.denominator),
        lambda: Fraction(value.numerator, value.denominator + 1),
        lambda: value * 100,
        lambda: random_rational(rng),
    ]
    other = rng.choice(ways)()
    return other if other != value else value + 1


@pytest.fixture(scope="module")
def drawn() -> list[tuple[str, str, bool]]:
    rng = random.Random(20)
    pairs = []
    for _ in range(PAIRS):
        value = random_rational(rng)
        same, other = writings(value, rng), writings(close_by(value, rng), rng)
        pairs.append((rng.choice(same), rng.choice(same), True))
        pairs.append((rng.choice(same), rng.choice(other), False))
    return pairs


def test_rewriting_keeps_the_verdict_and_distinct_values_are_distinct(drawn: list[tuple[str, str, bool]]) -> None:
    verifier = build_verifier(VerifierConfig(kind="math", timeout_s=10.0))
    try:
        rollouts = [text_rollout(f"So $\\boxed{{{answer}}}$.", {"answer": gold}) for gold, answer, _ in drawn]
        scores = asyncio.run(verifier.score(rollouts))
    finally:
        verifier.close()
    wrong = [(pair, score) for pair, score in zip(drawn, scores, strict=True) if (score.value == 1.0) is not pair[2]]
    assert wrong == []


def test_most_pairs_need_no_worker(drawn: list[tuple[str, str, bool]]) -> None:
    quick = [quick_verdict(gold, answer, 15) for gold, answer, _ in drawn]
    assert sum(verdict is None for verdict in quick) < 0.3 * len(quick)
    assert all(verdict in (None, pair[2]) for verdict, pair in zip(quick, drawn, strict=True))


@pytest.mark.parametrize("digits", [None, 15])
def test_symmetric_and_reflexive(drawn: list[tuple[str, str, bool]], digits: int | None) -> None:
    for gold, answer, _ in drawn[:200]:
        assert quick_verdict(gold, gold, digits) is True
        assert quick_verdict(gold, answer, digits) == quick_verdict(answer, gold, digits)
