"""Bytes of phases: hand-worked values, and what must hold for every job."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quatrain.errors import SettingError
from quatrain.planner.accounting import model_states
from quatrain.planner.architecture import Architecture
from quatrain.planner.hardware import GB, GIB, find_device
from quatrain.planner.job import Batch, Job, Lora, Rollout
from quatrain.planner.memory import kv_cache, peak, phases
from quatrain.planner.models import find_model
from quatrain.planner.plan import Plan, gpus_needed, largest, limits
from quatrain.planner.states import base_bytes, resident, shard

LLAMA, MIXTRAL = find_model("Llama-3.1-8B")[0], find_model("Mixtral-8x7B")[0]
H100 = find_device("h100-80g")


def job(**changes: Any) -> Job:
    settings: dict[str, Any] = {"model": LLAMA, "method": "grpo", "device": H100}
    return Job(**{**settings, **changes})


def states(of: Job) -> float:
    """Model states: what stays, and the gradients of the step."""
    return next(phase.total for phase in phases(of) if phase.name == "policy update: step")


def test_full_training_states_are_sixteen_bytes_and_a_reference_two() -> None:
    assert states(job(method="sft")) == pytest.approx(16 * LLAMA.parameters)
    assert states(job()) == pytest.approx(18 * LLAMA.parameters)
    assert states(job(method="sft", precision="bf16")) == pytest.approx(8 * LLAMA.parameters)
    both = job(method="ppo")
    assert sum(resident(both)[0].values()) == pytest.approx((14 + 14 + 2 + 2) * LLAMA.parameters)
    assert states(job(method="ppo_shared")) == pytest.approx(20 * LLAMA.parameters)


@pytest.mark.parametrize(
    ("optimizer", "bytes_"),
    [("adamw", 8), ("adamw_8bit", 2 + 8 / 256), ("sgd_momentum", 4), ("sgd", 0), ("adafactor", 0)],
)
def test_moments(optimizer: Any, bytes_: float) -> None:
    assert states(job(method="sft", optimizer=optimizer)) == pytest.approx((8 + bytes_) * LLAMA.parameters)


def test_zero_stages_divide_moments_then_gradients_then_weights() -> None:
    counts = [states(job(method="sft", sharding=stage, devices=8)) for stage in (0, 1, 2, 3)]
    per = [16, 4 + 12 / 8, 2 + 14 / 8, 16 / 8]
    assert counts == pytest.approx([value * LLAMA.parameters for value in per])


def test_experts_are_divided_by_expert_parallelism() -> None:
    of = job(model=MIXTRAL, method="sft", devices=8, expert_parallel=8)
    dense = MIXTRAL.parameters - MIXTRAL.experts
    assert shard(of, MIXTRAL, 2, 3) == pytest.approx(2 * (dense + MIXTRAL.experts / 8))


def test_nf4_base() -> None:
    """Llama blocks in 4 bits with a float32 scale per 64; embedding, head and norms are not packed."""
    inside = sum(w.d_in * w.d_out * w.count for w in LLAMA.weights if w.role in ("attention", "mlp"))
    rest = LLAMA.parameters - inside
    plain = job(lora=Lora(16), base_bits=4, rest_bytes=4)
    assert base_bytes(plain, LLAMA) == pytest.approx(inside * 0.5625 + 4 * rest)
    twice = job(lora=Lora(16), base_bits=4, double_quant=True)
    assert base_bytes(twice, LLAMA) == pytest.approx(inside * (0.5 + 0.127 / 8) + 2 * rest)


def test_adapters_have_their_own_states_and_need_no_reference() -> None:
    of = job(lora=Lora(16, ["q_proj", "v_proj"]))
    adapters = 32 * 16 * (4096 + 4096 + 4096 + 1024)
    assert states(of) == pytest.approx(2 * LLAMA.parameters + adapters * (4 + 4 + 8))


def test_the_cache_is_rounded_to_blocks_and_holds_a_prompt_once() -> None:
    rollout = Rollout("colocated", rows=16, group=8, prompt=100, completion=50)
    assert kv_cache(job(rollout=rollout)) == (2 * 7 + 16 * 4) * 16 * 131_072
    own = replace(rollout, engine="in_process")
    assert kv_cache(job(rollout=own)) == 16 * 150 * 131_072
    assert kv_cache(job(rollout=replace(rollout, cache_bytes=1))) * 2 == kv_cache(job(rollout=rollout))


def test_an_rl_step_has_its_phases_and_waking_happens_beside_the_training_state() -> None:
    of = job(method="ppo", rollout=Rollout("colocated"), devices=8, sharding=3)
    names = [phase.name for phase in phases(of)]
    assert names == [
        "load", "wake the engine", "rollout", "old and reference logprobs", "reward", "values",
        "critic update: loss", "critic update: backward", "critic update: step", "policy update: loss",
        "policy update: backward", "policy update: step", "weight sync", "checkpoint",
    ]  # fmt: skip
    wake = phases(of)[1].components
    assert wake["engine weights"] == 2 * LLAMA.parameters and wake["optimizer moments"] > 0
    assert [phase.name for phase in phases(job(method="sft"))][1] == "policy update: loss"


def test_offloading_moves_bytes_to_the_host() -> None:
    plain, away = job(), job(offload_optimizer=True, offload_frozen=True)
    moved = sum(resident(plain)[0].values()) - sum(resident(away)[0].values())
    assert moved == pytest.approx(sum(resident(away)[1].values())) == pytest.approx(14 * LLAMA.parameters)
    logprobs = next(phase for phase in phases(away) if "logprobs" in phase.name)
    assert logprobs.components["reference"] == 2 * LLAMA.parameters  # back on the device for its phase


def test_a_chunked_head_bounds_the_logits() -> None:
    few, many = (job(chunked_head=True, batch=Batch(tokens)) for tokens in (8192, 65536))
    for of in (few, many):
        assert max(phase.components.get("logits", 0) for phase in phases(of)) <= 16 * 2**28
    assert max(p.components.get("logits", 0) for p in phases(job(batch=Batch(65536)))) == 16 * 65536 * 128256


jobs = st.builds(
    job,
    model=st.sampled_from([LLAMA, MIXTRAL, find_model("gpt2")[0], find_model("Qwen2.5-0.5B")[0]]),
    method=st.sampled_from(["sft", "dpo", "reward_model", "grpo", "ppo", "ppo_shared"]),
    precision=st.sampled_from(["mixed", "master", "bf16", "fp32"]),
    checkpointing=st.booleans(),
    attention=st.sampled_from(["fused", "repeated", "masked", "eager"]),
    chunked_head=st.booleans(),
    devices=st.sampled_from([2, 8, 64]),
    sharding=st.sampled_from([0, 1, 2, 3]),
    lora=st.sampled_from([None, Lora(8)]),
    offload_frozen=st.booleans(),
    batch=st.builds(Batch, st.sampled_from([512, 4096]), sequence=st.just(512), passes=st.sampled_from([1, 4])),
    rollout=st.builds(Rollout, st.sampled_from(["none", "in_process", "colocated", "apart"])),
)


@settings(max_examples=60, deadline=None)
@given(jobs)
def test_parts_add_up_and_nothing_is_negative(of: Job) -> None:
    plan = Plan(of)
    for phase in plan.phases:
        assert phase.total == pytest.approx(sum(phase.components.values()))
        assert all(value >= 0 for value in [*phase.components.values(), *phase.host.values()])
    assert plan.per_gpu == max(phase.total for phase in plan.phases)
    low, typical, high = plan.bands["process"]
    assert low <= typical <= high and typical == pytest.approx(plan.per_gpu)


@settings(max_examples=60, deadline=None)
@given(jobs)
def test_more_work_never_takes_less(of: Job) -> None:
    before = peak(of).total
    assert peak(replace(of, batch=replace(of.batch, tokens=2 * of.batch.tokens))).total >= before
    longer = replace(of.batch, sequence=2 * of.batch.sequence, tokens=2 * of.batch.tokens)
    assert peak(replace(of, batch=longer)).total >= before
    rollout = replace(of.rollout, completion=2 * of.rollout.completion, rows=2 * of.rollout.rows)
    assert peak(replace(of, rollout=rollout)).total >= before
    if of.lora is not None:
        assert peak(replace(of, lora=replace(of.lora, rank=2 * of.lora.rank))).total >= before


@settings(max_examples=60, deadline=None)
@given(jobs)
def test_a_higher_zero_stage_never_takes_more(of: Job) -> None:
    found = [states(replace(of, sharding=stage)) for stage in (0, 1, 2, 3)]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("model", [LLAMA, MIXTRAL])
def test_a_higher_zero_stage_never_raises_the_peak(model: Architecture) -> None:
    for devices in (2, 8, 64):
        of = job(model=model, method="sft", devices=devices)
        found = [peak(replace(of, sharding=stage)).total for stage in (0, 1, 2, 3)]
        assert found == sorted(found, reverse=True)


def test_units() -> None:
    """GB are 1e9 bytes and GiB 2^30: 79.18 GiB usable of an H100 are 85.02 GB."""
    assert pytest.approx(85.02, abs=0.01) == H100.usable_gb == H100.usable_gib * GIB / GB
    assert model_states(7.24e9, "ppo", H100).total / GB == pytest.approx(260.64)


@pytest.mark.parametrize(
    ("parameters", "ppo", "grpo", "ppo_gpus", "grpo_gpus"),
    [(7.24e9, 260.6, 130.3, 4, 2), (67.1e9, 2415.6, 1207.8, 31, 16), (671e9, 24156.0, 12078.0, 302, 151)],
)
def test_the_published_table_of_model_states(
    parameters: float, ppo: float, grpo: float, ppo_gpus: int, grpo_gpus: int
) -> None:
    for method, total, gpus in (("ppo", ppo, ppo_gpus), ("grpo", grpo, grpo_gpus)):
        found = model_states(parameters, method, H100)  # type: ignore[arg-type]
        assert found.total / GB == pytest.approx(total, abs=0.05) and found.gpus_needed == gpus


def test_limits_and_devices_needed_are_the_edge() -> None:
    of = job(method="sft", devices=8, sharding=3, chunked_head=True)
    most = largest(of, "tokens")
    assert most is not None and limits(of)["tokens"] == most
    assert Plan(replace(of, batch=replace(of.batch, tokens=most))).fits
    assert not Plan(replace(of, batch=replace(of.batch, tokens=round(1.1 * most)))).fits
    needed = gpus_needed(of)
    assert needed is not None and Plan(replace(of, devices=needed)).fits
    assert not Plan(replace(of, devices=needed - 1)).fits


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": 0}, "devices: got 0"),
        ({"expert_parallel": 2}, "a divisor"),
        ({"devices": 2, "expert_parallel": 2}, "a mixture of experts"),
        ({"base_bits": 4}, "LoRA"),
        ({"lora": Lora(0)}, "lora.rank"),
        ({"batch": Batch(0)}, "batch.tokens"),
    ],
)
def test_choices_that_contradict_each_other(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        job(**changes)
