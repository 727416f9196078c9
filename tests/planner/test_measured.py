"""The planner against live tensor storages: whole steps under fake tensors, and a real round of work on CPU."""

from dataclasses import replace

import pytest

from benchmarks import planner_cpu, planner_fake
from benchmarks.planner_storages import Storages, head_logits
from quatrain.planner.job import Lora

FAKE = [
    planner_fake.Case("llama-3-8b", 1, 1024, layers=1),
    planner_fake.Case("qwen2.5-1.5b", 4, 1024, checkpointing=True, layers=2, share=0.1),
    planner_fake.Case("qwen2.5-1.5b", 2, 512, "master", layers=2, share=0.5),
    planner_fake.Case("qwen3-30b-a3b", 1, 256, layers=1),
    planner_fake.Case("phi-3-mini", 1, 512, lora=Lora(16), layers=1),
]


@pytest.mark.parametrize("case", FAKE, ids=lambda case: case.label)
def test_a_step_of_a_large_model(case: planner_fake.Case) -> None:
    ours, theirs = planner_fake.predicted(case), planner_fake.measured(case)
    for phase in ("loss", "backward", "step"):
        assert sum(ours[phase].values()) == pytest.approx(sum(theirs[phase].values()), rel=0.05), phase
    for name in ("optimizer moments", "gradients"):
        assert ours["step"].get(name, 0) == pytest.approx(theirs["step"].get(name, 0), rel=0.05), name
    assert ours["backward"].get("logits", 0) == pytest.approx(theirs["backward"].get("logits", 0), rel=0.05)


def test_a_sharded_step() -> None:
    case = planner_fake.Case("qwen2.5-1.5b", 1, 512, world=8, layers=1)
    ours, theirs = planner_fake.predicted(case), planner_fake.measured(case)
    assert sum(ours["backward"].values()) == pytest.approx(sum(theirs["backward"].values()), rel=0.05)
    assert ours["step"]["gradients"] == pytest.approx(theirs["step"]["gradients"], rel=0.05)


@pytest.mark.parametrize("case", [
    planner_cpu.Case("llama", prompt=32, completion=6, layers=1),
    planner_cpu.Case("qwen2", "bfloat16", prompt=32, completion=6, layers=1, builder="shared"),
], ids=lambda case: case.label)  # fmt: skip
def test_a_round_of_the_real_engine_and_learner(case: planner_cpu.Case) -> None:
    row = planner_cpu.run(case)
    for phase in row.measured:
        assert abs(row.peak_error(phase)) < 0.10, (phase, row.predicted[phase], row.measured[phase])
    errors = row.component_errors()
    assert len(errors) >= 5
    assert all(abs(error) < 0.05 for error in errors.values()), errors


def test_the_counter_counts_a_storage_once_and_forgets_it() -> None:
    import torch

    storages = Storages(head_logits(7))
    with storages, storages.phase("all"):
        rows = torch.zeros(3, 7)
        view = rows[1:].t()
        sum_ = rows + 1
        assert storages.live["logits"] == 2 * 3 * 7 * 4
        del rows
        assert storages.live["logits"] == 2 * 3 * 7 * 4  # the view holds it
        del view, sum_
        other = torch.zeros(5)
    assert storages.live == {"logits": 0, "activations": 20}
    assert storages.peaks["all"] == {"logits": 168}
    del other


def test_a_prediction_of_another_model_would_fail() -> None:
    case = FAKE[0]
    wrong = planner_fake.predicted(replace(case, length=2048))
    right = planner_fake.measured(case)
    assert sum(wrong["backward"].values()) > 1.05 * sum(right["backward"].values())
