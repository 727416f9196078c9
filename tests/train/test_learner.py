"""An update: independent of how it is split, absent without a signal, stopped by what is not finite."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from quatrain.algorithms import LossSums
from quatrain.config import TrainConfig
from quatrain.errors import NonFiniteError
from quatrain.telemetry.metrics import Sum
from quatrain.train.optimizer import learning_rate
from quatrain.types import Sample
from tests.tiny import tiny_lm
from tests.train.synthetic import algorithm, credited, exact_lm, learner, nothing, weights

REWARDS = [[1.0, 0.0, 0.5, 0.0], [0.0, 0.0, 1.0, 1.0], [0.3, 0.3, 0.3, 0.3]]
METHODS: dict[str, dict[str, Any]] = {
    "no KL": {"kl": {"placement": "none"}},
    "k3": {"kl": {"placement": "loss", "estimator": "k3", "coefficient": 0.1}},
    "full KL and entropy": {
        "kl": {"placement": "loss", "estimator": "full", "coefficient": 0.1},
        "entropy_coefficient": 0.01,
        "aggregate": "token",
    },
}


def after_updates(name: str, **settings: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """Weights after two updates on the same samples (the second has ratios other than 1)."""
    lm, reference = exact_lm(), exact_lm(seed=1)
    learning, method = learner(lm, reference, **settings), algorithm(**METHODS[name])
    samples = credited(method, learning, REWARDS)
    for step in (1, 2):
        found = learning.update(samples, method, step, nothing)
    return weights(lm), found


@pytest.mark.parametrize("name", METHODS)
def test_weights_do_not_depend_on_builder_or_micro_batches(name: str) -> None:
    expected, metrics = after_updates(name, builder="padded")
    assert (expected - weights(exact_lm())).abs().max() > 1e-3
    assert metrics["train/micro_batches"] == Sum(1)
    for builder in ("padded", "packed", "shared"):
        for tokens in (1, 24, 4096):
            found, split = after_updates(name, builder=builder, tokens_per_micro_batch=tokens)
            assert split["train/micro_batches"].value > 1 or tokens == 4096
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
            for key in ("train/loss", "train/grad_norm", "train/learning_rate", "train/tokens"):
                assert split[key].value == pytest.approx(metrics[key].value, abs=1e-10), key


def test_annotations_do_not_depend_on_the_split_and_keep_the_order() -> None:
    lm, reference = exact_lm(), exact_lm(seed=1)
    streams = frozenset({"old_logprobs", "reference_logprobs", "reference_kl"})
    samples = credited(algorithm(), learner(lm, reference), REWARDS)
    one = learner(lm, reference, builder="padded").annotate(samples, streams, nothing)
    other = learner(lm, reference, builder="shared", tokens_per_micro_batch=1).annotate(samples, streams, nothing)
    for sample, first, second in zip(samples, one, other, strict=True):
        assert first.label == second.label == sample.label
        for name in streams:
            assert second.streams[name] == pytest.approx(first.streams[name], abs=1e-10), name
    assert abs(one[0].streams["old_logprobs"] - one[0].streams["reference_logprobs"]).max() > 1e-2


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("size", [3, 8, 16])
def test_case_c02_equal_fractional_rewards_move_nothing(reward: float, size: int) -> None:
    lm = tiny_lm()
    before = weights(lm)
    learning, method = learner(lm, learning_rate=1e-2), algorithm(kl={"placement": "none"})
    samples = credited(method, learning, [[reward] * size])
    assert learning.update(samples, method, 1, nothing) == {"train/updates_skipped": Sum(1)}
    assert torch.equal(weights(lm), before)
    assert not learning.roles["policy"].optimizer.state


def test_no_signal_after_an_update_does_not_let_the_moments_move_the_weights() -> None:
    lm = tiny_lm()
    learning, method = learner(lm), algorithm(kl={"placement": "none"})
    learning.update(credited(method, learning, [[1.0, 0.0]]), method, 1, nothing)
    moved = weights(lm)
    learning.update(credited(method, learning, [[0.1, 0.1]]), method, 2, nothing)
    assert torch.equal(weights(lm), moved)


def test_case_c99_the_first_update_has_ratio_one_and_loss_zero_but_a_gradient() -> None:
    learning, method = learner(exact_lm()), algorithm(kl={"placement": "none"})
    metrics = learning.update(credited(method, learning, REWARDS), method, 1, nothing)
    assert metrics["policy/ratio_min"].value == pytest.approx(1.0, abs=1e-12)
    assert metrics["policy/ratio_max"].value == pytest.approx(1.0, abs=1e-12)
    assert metrics["train/loss"].value == pytest.approx(0.0, abs=1e-6)
    assert metrics["train/grad_norm"].value > 1e-3


def test_case_c80_every_completion_token_is_in_the_loss() -> None:
    learning, method = learner(exact_lm(), tokens_per_micro_batch=8), algorithm(kl={"placement": "none"})
    samples = credited(method, learning, [[1.0, 0.0, 0.0, 0.5]])
    metrics = learning.update(samples, method, 1, nothing)
    assert metrics["train/tokens"].value == sum(sample.num_tokens for sample in samples)


def test_the_rate_is_that_of_the_step_and_the_gradient_is_clipped() -> None:
    config = TrainConfig(learning_rate=1e-2, schedule="linear", steps=10, max_grad_norm=1e-6, adam_epsilon=1.0)
    lm = exact_lm()
    before = weights(lm)
    learning = learner(lm, **config.model_dump(include={"schedule", "steps", "max_grad_norm", "adam_epsilon"}))
    method = algorithm(kl={"placement": "none"})
    metrics = learning.update(credited(method, learning, REWARDS), method, 4, nothing)
    assert metrics["train/learning_rate"].value == learning_rate(config, 4) == pytest.approx(7e-3)
    assert metrics["train/grad_norm"].value > 1e-3  # before clipping
    # with an epsilon of 1 Adam's first step is rate * gradient, and the gradient's norm is the limit
    assert float((weights(lm) - before).norm()) == pytest.approx(7e-3 * 1e-6, rel=1e-2)


@dataclasses.dataclass(frozen=True)
class Broken:
    """An algorithm whose loss (or gradient) is not finite for one sample."""

    inner: Any
    label: str
    in_gradient: bool = False
    role = "policy"

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        return list(samples)

    @property
    def needs(self) -> Any:
        return self.inner.needs

    def contributes(self, sample: Sample) -> bool:
        return sample.num_tokens > 0

    def denominators(self, samples: Sequence[Sample]) -> dict[str, float]:
        return self.inner.denominators(samples)

    def loss(self, batch: Any, outputs: Any) -> LossSums:
        sums = self.inner.loss(batch, outputs)
        if self.label not in [sample.label for sample in batch.samples]:
            return sums
        zero = (outputs.logprobs_N - outputs.logprobs_N.detach()).sum()
        bad = zero.abs().sqrt() if self.in_gradient else zero * float("nan")  # the root's slope at 0 is infinite
        return LossSums(terms={name: term + bad for name, term in sums.terms.items()}, statistics=sums.statistics)


@pytest.mark.parametrize("in_gradient", [False, True])
def test_what_is_not_finite_stops_before_any_weight_moves(in_gradient: bool) -> None:
    lm = tiny_lm()
    learning, method = learner(lm, tokens_per_micro_batch=1, builder="padded"), algorithm(kl={"placement": "none"})
    samples = credited(method, learning, REWARDS)
    before = weights(lm)
    label = samples[5].label
    with pytest.raises(NonFiniteError) as caught:
        learning.update(samples, Broken(method, label, in_gradient), 1, nothing)
    assert torch.equal(weights(lm), before)
    assert not learning.roles["policy"].optimizer.state
    assert all(parameter.grad is None for parameter in lm.module.parameters())
    assert "\n" not in str(caught.value)
    if in_gradient:
        assert "gradient norm: got nan" in str(caught.value) and "and 8 more" in str(caught.value)
        assert caught.value.samples == tuple(samples)
    else:
        assert str(caught.value).startswith("loss: got nan, need a finite number") and label in str(caught.value)
        assert caught.value.samples == (samples[5],)


def test_after_a_stop_the_learner_still_works() -> None:
    lm, twin = tiny_lm(), tiny_lm()
    method = algorithm(kl={"placement": "none"})
    learning, clean = learner(lm), learner(twin)
    samples = credited(method, learning, REWARDS)
    with pytest.raises(NonFiniteError):
        learning.update(samples, Broken(method, samples[0].label, True), 1, nothing)
    for one in (learning, clean):
        one.update(samples, method, 1, nothing)
    assert torch.equal(weights(lm), weights(twin))


def test_bfloat16_weights_keep_small_steps(tmp_path: Any) -> None:
    """AdamW steps of 1e-6 on weights of 0.2 are below bfloat16's resolution, so the weights must not be bfloat16."""
    from quatrain.config import ModelConfig
    from quatrain.models.load import load_language_model
    from tests.tiny import save_tiny

    lm = load_language_model(ModelConfig(path=str(save_tiny(tmp_path)), dtype="bfloat16", device="cpu"))
    learning, method = learner(lm, learning_rate=1e-6), algorithm(kl={"placement": "none"})
    samples = credited(method, learning, REWARDS)
    before = weights(lm)
    learning.update(samples, method, 1, nothing)
    assert ((weights(lm) - before).abs() > 1e-7).float().mean() > 0.5
