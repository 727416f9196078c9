"""Schedules by hand, and which weights decay."""

import math

import pytest
import torch
from torch import nn

from quatrain.config import TrainConfig
from quatrain.train.optimizer import build_optimizer, learning_rate


def rates(**settings: object) -> list[float]:
    config = TrainConfig.model_validate({"learning_rate": 1.0, "steps": 6, **settings})
    return [learning_rate(config, step) for step in range(1, 7)]


def test_constant() -> None:
    assert rates() == [1.0] * 6


def test_warm_up_then_constant() -> None:
    assert rates(warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_falls_to_zero_after_the_last_step() -> None:
    assert rates(schedule="linear") == pytest.approx([1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    assert rates(schedule="linear", warmup_steps=2) == pytest.approx([0.5, 1, 1, 0.75, 0.5, 0.25])


def test_cosine() -> None:
    expected = [0.5, 1.0, 1.0, *(0.5 * (1 + math.cos(math.pi * part)) for part in (0.25, 0.5, 0.75))]
    assert rates(schedule="cosine", warmup_steps=2) == pytest.approx(expected)


def test_more_warm_up_than_steps() -> None:
    assert rates(warmup_steps=12, schedule="linear") == pytest.approx([step / 12 for step in range(1, 7)])


def test_vectors_do_not_decay_and_frozen_weights_are_left_out() -> None:
    module = nn.ModuleDict({"product": nn.Linear(3, 3), "norm": nn.LayerNorm(3), "frozen": nn.Linear(3, 3)})
    module["frozen"].requires_grad_(False)
    config = TrainConfig(learning_rate=0.1, weight_decay=0.5, adam_betas=(0.8, 0.9), adam_epsilon=1e-6)
    optimizer = build_optimizer(module, config)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay == {
        id(module["product"].weight): 0.5,
        id(module["product"].bias): 0.0,
        id(module["norm"].weight): 0.0,
        id(module["norm"].bias): 0.0,
    }
    assert {(group["lr"], group["betas"], group["eps"]) for group in optimizer.param_groups} == {
        (0.1, (0.8, 0.9), 1e-6)
    }


def test_decay_shrinks_a_matrix_without_gradient_by_rate_times_decay() -> None:
    module = nn.Linear(2, 2)
    before = module.weight.detach().clone()
    optimizer = build_optimizer(module, TrainConfig(learning_rate=0.1, weight_decay=0.5))
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(module.weight.detach(), before * (1 - 0.1 * 0.5))
