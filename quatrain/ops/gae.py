"""Rewards per token, generalised advantage estimation and whitening, in float64 numpy.

One trajectory at a time, its T trained tokens only: whatever is not trained (padding, prompt, tool output) has no slot
here, so it can neither receive the score nor bootstrap into a neighbour. V_t is the value of the state before token t.
"""

from collections.abc import Iterable

import numpy as np

from quatrain.ops.advantages import Floats, normalise, return_to_go


def token_rewards(penalties_T: Floats, score: float, placed: Iterable[tuple[int, float]] = ()) -> Floats:
    """r_t = -penalty_t + [t is the last trained token] score + the rewards placed at t (Ziegler et al. 2019).

    `penalties_T`: beta times the KL estimate, in reward units. `placed`: (trained-token position, reward) of process
    and turn rewards. Without trained tokens the result is empty: there is nothing that the score could teach.
    Raises ValueError for a position outside the trained tokens.
    """
    rewards = np.subtract(0.0, penalties_T, dtype=np.float64)
    for position, reward in placed:
        if not 0 <= position < len(rewards):
            raise ValueError(f"placed: got position {position}, need one of the {len(rewards)} trained tokens")
        rewards[position] += reward
    if len(rewards):
        rewards[-1] += score
    return rewards


def next_values(values_T: Floats, after: float = 0.0) -> Floats:
    """V_{t+1} for every t: the values shifted by one, then `after` (0 at an end, or the bootstrap value)."""
    return np.append(np.asarray(values_T, dtype=np.float64), after)[1:]


def gae(
    rewards_T: Floats, values_T: Floats, next_values_T: Floats, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Floats, Floats]:
    """Advantages and returns: Schulman et al. 2015, arXiv:1506.02438 eq. 16, as A_t = delta_t + gamma lambda A_{t+1}.

        delta_t = r_t + gamma V_{t+1} - V_t        A_t = sum_l (gamma lambda)^l delta_{t+l}        R_t = A_t + V_t

    lambda 0 is the TD error, lambda 1 the Monte-Carlo return minus the value: a higher lambda has less bias and more
    variance. The returns are the critic's targets and are taken before any whitening.
    """
    values = np.asarray(values_T, dtype=np.float64)
    advantages = return_to_go(rewards_T + gamma * np.asarray(next_values_T, dtype=np.float64) - values, gamma * lam)
    return advantages, advantages + values


def whiten(values: Floats, mean: bool = True) -> Floats:
    """(v - mean v) / (sigma + 1e-8) over all values given, sigma the population deviation; a new array.

    With `mean` false the mean is added back, so that only the spread is normalised. Zero values or one are returned
    unchanged; uniform values become exactly 0 (unchanged with `mean` false).
    """
    values = np.array(values, dtype=np.float64)
    if len(values) < 2:
        return values
    whitened = normalise(values, epsilon=1e-8)
    return whitened if mean else whitened + values.mean()
