"""Laws of reward-model over-optimisation and their fits, in float64 numpy: Gao et al. 2022, arXiv:2210.10760.

d = sqrt(KL(policy || initial policy)), KL in nats. Gold rewards R are measured from the initial policy: R = 0 at d = 0.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from quatrain.ops.advantages import Floats

Law = Literal["bon", "rl"]


@dataclass(frozen=True, slots=True)
class LawFit:
    """a (reward per sqrt nat) and b of a law, with their standard errors over prompts."""

    a: float
    b: float
    a_error: float
    b_error: float


def gold_bon(d: Floats | float, a: float, b: float) -> Floats:
    """R = d (a - b d), best-of-n; the peak is at d = a / (2 b)."""
    return _terms("bon", d) @ np.array([a, b])


def gold_rl(d: Floats | float, a: float, b: float) -> Floats:
    """R = d (a - b ln d), reinforcement learning, 0 at d = 0; the peak is at ln d = a / b - 1."""
    return _terms("rl", d) @ np.array([a, b])


def bon_kl(n: Floats | float) -> Floats:
    """KL of best-of-n from the sampled policy: ln n - (n - 1) / n nats (an upper bound where samples repeat)."""
    return np.log(n) - (np.asarray(n, dtype=np.float64) - 1) / n


def best_of_n(proxy_N: Floats, gold_N: Floats, n: int) -> float:
    """Expected gold score of the best of n by the proxy, from N >= n scored samples of one prompt.

        sum_{i=n..N} C(i-1, n-1) / C(N, n) gold_(i)        (i) in ascending order of the proxy

    The mean over all subsets of n samples, hence unbiased (J. Hilton, L. Gao, "Measuring Goodhart's law", 2022).
    Samples of equal proxy share their weight, as if the winner were drawn among them. With `gold_N` = `proxy_N` it is
    the proxy's own expectation. Raises ValueError unless 1 <= n <= N.
    """
    count = len(proxy_N)
    if not 1 <= n <= count:
        raise ValueError(f"n: got {n}, need 1 to {count}, the samples of the prompt")
    _, level_N, size_L = np.unique(proxy_N, return_inverse=True, return_counts=True)
    mean_L = np.bincount(level_N, weights=gold_N) / size_L
    # From the best downwards: n / N, then times (i - n) / (i - 1) for each further place i - 1.
    places = np.arange(count, 1, -1, dtype=np.float64)
    weights = n / count * np.concatenate([[1.0], np.cumprod((places - n).clip(min=0) / (places - 1))])
    return float(weights @ np.repeat(mean_L, size_L)[::-1])


def fit_law(law: Law, d_K: Floats, gold_QK: Floats, resamples: int = 1000, seed: int = 0) -> LawFit:
    """Least squares of a and b to the gold rewards of Q prompts at K distances, averaged over the prompts.

    Both laws are linear in a and b, so the fit of the mean curve is the mean of the prompts' own fits; the standard
    errors are the deviations of that mean over bootstrap resamples of the prompts (NaN for one prompt).
    Raises ValueError for shapes that do not agree or distances that do not determine both numbers.
    """
    d, gold = np.asarray(d_K, dtype=np.float64), np.asarray(gold_QK, dtype=np.float64)
    if gold.ndim != 2 or d.shape != gold.shape[1:] or not len(gold):
        raise ValueError(f"d, gold: got {d.shape}, {gold.shape}, need (K,), (Q, K) with Q >= 1")
    terms = _terms(law, d)
    if np.linalg.matrix_rank(terms) < 2:
        raise ValueError(f"d: got {d.tolist()}, need at least two different distances above 0")
    fits_Q2 = gold @ np.linalg.pinv(terms).T
    a, b = fits_Q2.mean(axis=0)
    if len(gold) == 1:
        return LawFit(float(a), float(b), np.nan, np.nan)
    drawn = np.random.default_rng(seed).integers(len(gold), size=(resamples, len(gold)))
    a_error, b_error = fits_Q2[drawn].mean(axis=1).std(axis=0, ddof=1)
    return LawFit(float(a), float(b), float(a_error), float(b_error))


def _terms(law: Law, d: Floats | float) -> Floats:
    """What a and b multiply, on a last axis of two: d and -d^2, or d and -d ln d (0 at d = 0)."""
    d = np.asarray(d, dtype=np.float64)
    second = d * d if law == "bon" else d * np.log(np.where(d > 0, d, 1.0))
    return np.stack([d, -second], axis=-1)
