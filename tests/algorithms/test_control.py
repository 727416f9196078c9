"""What steers the KL coefficient."""

import numpy as np
import pytest

from quatrain.algorithms.control import build_controller, steer
from quatrain.config import KLConfig
from quatrain.telemetry.metrics import Mean
from quatrain.types import Sample

KL = KLConfig(coefficient=0.1, target=0.05, horizon=10)


def sample(completion: int, *gaps: float) -> Sample:
    reference = np.full(len(gaps), -2.0)
    streams = {"old_logprobs": reference + gaps, "reference_logprobs": reference}
    ids = np.arange(len(gaps) + 1)
    return Sample(token_ids=ids, trained=ids > 0, group=0, completion=completion, prompt_length=1, streams=streams)


def test_a_policy_that_is_still_the_reference_does_not_lower_beta() -> None:
    controller = build_controller(KL)
    shown = steer(controller, KL, [sample(0, 0.0, 0.0), sample(1, 0.0)])
    assert controller.coefficient == 0.1 and shown["kl/per_token"] == Mean(0.0, 3)


def test_the_first_step_away_from_it_steers() -> None:
    controller = build_controller(KL)
    steer(controller, KL, [sample(0, 0.04, 0.0), sample(1, 0.02)])  # 0.02 per token: 60 % below, counted as 20 %
    assert controller.coefficient == pytest.approx(0.1 * (1 - 0.2 * 2 / 10), rel=1e-12)
