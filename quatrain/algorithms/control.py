"""The KL coefficient between steps: what it is steered by, and what is shown of it."""

from collections.abc import Sequence

import numpy as np

from quatrain.config import KLConfig
from quatrain.ops.controllers import AdaptiveKL, FixedKL, KLController
from quatrain.telemetry.metrics import Last, Max, Mean, Metric
from quatrain.types import Sample

CONTROL_DOCUMENTED: dict[str, str] = {
    "kl/coefficient": "beta of the step; algorithm.kl.target steers it.",
    "kl/per_token": "k1 estimate of KL(policy at sampling || reference) before the step's updates, mean over its "
    "trained tokens (nats); with algorithm.kl.target_per token what the coefficient answers to.",
    "kl/per_sequence": "The same, mean over completions of the sum over their tokens (nats).",
    "kl/token_max": "Largest k1 of a token (nats).",
    "kl/restarts": "How often a step above algorithm.kl.spike has put the coefficient back, over the whole run.",
}


def build_controller(kl: KLConfig) -> KLController:
    """Fixed, or adaptive when there is a target (Ziegler et al. 2019, arXiv:1909.08593 section 2.2)."""
    if kl.target is None:
        return FixedKL(kl.coefficient)
    return AdaptiveKL(kl.coefficient, kl.target, kl.horizon, kl.spike)


def steer(controller: KLController, kl: KLConfig, samples: Sequence[Sample]) -> dict[str, Metric]:
    """One step of the controller on the k1 estimate of KL(policy at sampling || reference); returns kl/....

    Per token it is the mean over the step's trained tokens, per sequence the mean over completions of their sums. A
    policy that is still the reference, token for token (before its first update, as a critic warms up), steers nothing.
    """
    gaps = [sample.streams["old_logprobs"] - sample.streams["reference_logprobs"] for sample in samples]
    if not gaps:
        return {}
    completions = len({sample.completion for sample in samples})
    together = np.concatenate(gaps)
    per_token = float(together.mean())
    per_sequence = float(together.sum()) / completions
    before = controller.coefficient
    if together.any():
        controller.update(per_token if kl.target_per == "token" else per_sequence, completions, per_token)
    return {
        "kl/coefficient": Last(before),
        "kl/per_token": Mean(float(together.sum()), len(together)),
        "kl/per_sequence": Mean(float(together.sum()), completions),
        "kl/token_max": Max(float(together.max())),
        "kl/restarts": Last(controller.restarts),
    }
