"""Dynamic sampling: groups that teach nothing make room for those of further prompts (DAPO, arXiv:2503.14476)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from quatrain.config import AlgorithmConfig
from quatrain.ops.advantages import is_uniform
from quatrain.rewards.rubric import Verifiers
from quatrain.telemetry.metrics import Mean, Metric, Sum
from quatrain.types import Prompt, Rollout, Score


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """The completions of one prompt with their scores; informative when they differ in correctness and in score."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    scores: tuple[Score, ...]
    informative: bool


def attempts(
    prompts: Sequence[Prompt],
    rollouts: Sequence[Rollout],
    scores: Sequence[Score],
    verifiers: Verifiers,
    config: AlgorithmConfig,
) -> list[Attempt]:
    """An attempt per prompt; `rollouts` are sorted by group, and the groups follow `prompts`.

    Correctness is the weighted sum of the parts that measure it, or where the rubric has none of all but the length
    penalty: a length or format part alone does not make a group informative. The scores must differ too, because a
    penalty can cancel what correctness pays.
    """
    size = len(rollouts) // len(prompts)
    cut_costs = config.truncation_penalty if config.truncated == "penalise" else 0.0
    result = []
    for number, prompt in enumerate(prompts):
        own = slice(number * size, (number + 1) * size)
        judged = [pair for pair in zip(rollouts[own], scores[own], strict=True) if pair[1].usable]
        correctness = np.array([verifiers.rubric_of(rollout).correctness(score) for rollout, score in judged])
        values = np.array([score.value - cut_costs * (one.stop_reason == "length") for one, score in judged])
        informative = not is_uniform(correctness) and not is_uniform(values)
        result.append(Attempt(prompt=prompt, rollouts=tuple(rollouts[own]), scores=tuple(scores[own]),
                              informative=informative))  # fmt: skip
    return result


def missing(tried: Sequence[Attempt], wanted: int) -> int:
    """Informative groups that a step of `wanted` groups still lacks."""
    return wanted - sum(attempt.informative for attempt in tried)


def chosen(tried: Sequence[Attempt], wanted: int) -> list[Attempt]:
    """`wanted` attempts in the order of their prompts: the informative ones, then others while places are left.

    Their rollouts are numbered anew, so that group g is the g-th attempt.
    """
    order = sorted(range(len(tried)), key=lambda place: (not tried[place].informative, place))[:wanted]
    return [
        replace(tried[place], rollouts=tuple(replace(rollout, group=group) for rollout in tried[place].rollouts))
        for group, place in enumerate(sorted(order))
    ]


def refill_metrics(tried: Sequence[Attempt], wanted: int) -> dict[str, Metric]:
    """refill/...: what was sampled for the step's groups, those that were left out included."""
    values = [score.value for attempt in tried for score in attempt.scores if score.usable]
    uniform = len(tried) - sum(attempt.informative for attempt in tried)
    return {
        "refill/groups": Sum(len(tried)),
        "refill/uniform": Mean(uniform, len(tried)),
        "refill/unfilled": Sum(missing(tried, wanted)),
        "refill/reward_mean": Mean(sum(values), len(values)),
    }
