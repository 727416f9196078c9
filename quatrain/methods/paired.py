"""Two policies on the same prompts: the difference of every measure, prompt by prompt."""

import math
from typing import Any

import numpy as np

from quatrain.errors import SettingError
from quatrain.methods.evaluate import Evaluation, Floats
from quatrain.methods.measures import cell, measures

Comparison = dict[str, dict[str, Any]]


def paired(target: Evaluation, against: Evaluation) -> Comparison:
    """Per measure both means and their difference (target - against), with paired 95 % bootstrap intervals.

    `higher`, `lower` and `equal` count the prompts on which the target has more, less or as much; `win_rate` is the
    share of `higher` among those that are not equal, with its interval over these; `p` is the exact sign test on the
    first two (for 0/1 values McNemar's), None for measures that are not 0 or 1 on every prompt.
    Raises SettingError for different prompts.
    """
    check_same_prompts(target, against)
    first, second = measures(target), measures(against)
    return {name: _compared(first[name], second[name]) for name in first if name in second}


def _compared(first: Floats, second: Floats) -> dict[str, Any]:
    difference = first - second
    wins, losses = difference > 1e-12, difference < -1e-12
    higher, lower = int(wins.sum()), int(losses.sum())
    judged = ~np.isnan(difference)
    binary = np.isin([first[judged], second[judged]], (0.0, 1.0)).all()
    return {
        "target": cell(first),
        "against": cell(second),
        "difference": cell(difference),
        "higher": higher,
        "lower": lower,
        "equal": int(judged.sum()) - higher - lower,
        "win_rate": cell(wins[wins | losses].astype(np.float64)),
        "p": sign_test(higher, lower) if binary else None,
    }


def by_source(target: Evaluation, against: Evaluation) -> dict[str, Comparison]:
    """`paired` for each source when there are several; else nothing."""
    names = target.sources()
    return {name: paired(target.of(name), against.of(name)) for name in names} if len(names) > 1 else {}


def sign_test(higher: int, lower: int) -> float:
    """Two-sided exact p-value: min(1, 2 P(X <= min(higher, lower))), X ~ Binomial(higher + lower, 1/2).

    On the discordant pairs of two 0/1 measurements this is McNemar's exact test.
    """
    n = higher + lower
    tail = sum(math.comb(n, count) for count in range(min(higher, lower) + 1))
    return min(1.0, 2 * tail / 2**n)


def check_same_prompts(target: Evaluation, against: Evaluation) -> None:
    """SettingError with the first difference."""
    first, second = ([(answer.source, answer.prompt_index, answer.question) for answer in one.answers[:: one.samples]]
                     for one in (target, against))  # fmt: skip
    if first == second:
        return
    number = next((i for i, (one, other) in enumerate(zip(first, second, strict=False)) if one != other), None)
    got = f"{len(first)} and {len(second)} prompts" if number is None else f"another question as prompt {number + 1}"
    raise SettingError("--against", got, "the same prompts in the same order",
                       "evaluate both with the same prompts, --task and --limit")  # fmt: skip


def differing(target: Evaluation, against: Evaluation) -> list[str]:
    """What was not the same besides the policy, in words: `max_tokens 256 and 128`."""
    first, second = ({"completions a prompt": one.samples, **one.sampling} for one in (target, against))
    return [f"{name} {first[name]} and {second[name]}" for name in first
            if name in second and first[name] != second[name]]  # fmt: skip
