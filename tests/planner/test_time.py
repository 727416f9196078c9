"""FLOPs by hand, published utilisations, and what a step's seconds must obey."""

from dataclasses import replace

import pytest

from quatrain.planner.architecture import Architecture, read_architecture
from quatrain.planner.hardware import find_device
from quatrain.planner.job import Job, Lora, Rollout
from quatrain.planner.time import (
    PRIORS,
    Prior,
    Work,
    attention_flops,
    forward_flops,
    hardware_flops,
    kind_of,
    matrix_parameters,
    prior,
    read_weights,
    step_time,
    sync_time,
    training_flops,
)

LLAMA = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_4B = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "tie_word_embeddings": True,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
BLOCK = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336  # of Llama-3-8B: q and o, k and v, the MLP


@pytest.fixture(name="llama")
def llama_model() -> Architecture:
    return read_architecture(LLAMA, "llama")


def job(model: Architecture, **changes: object) -> Job:
    rollout = Rollout("colocated", rows=256, group=8, prompt=256, completion=2048)
    defaults = {"method": "grpo", "device": find_device("h100-80g"), "devices": 8, "sharding": 3, "rollout": rollout}
    return Job(model=model, **{**defaults, **changes})  # type: ignore[arg-type]


WORK = Work(sequences=512, prompt=256, completion=768, longest=2048)


def test_matrix_parameters_leave_out_lookups_and_norms(llama: Architecture) -> None:
    assert matrix_parameters(llama) == 32 * BLOCK + 128256 * 4096 == 7_504_658_432


def test_a_tied_embedding_is_the_head() -> None:
    block = 2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728
    assert matrix_parameters(read_architecture(QWEN3_4B, "q")) == 36 * block + 151936 * 2560


def test_a_token_uses_two_of_eight_experts() -> None:
    block = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 2 * 3 * 4096 * 14336 + 8 * 4096
    assert matrix_parameters(read_architecture(MIXTRAL, "m")) == 32 * block + 32000 * 4096


def test_flops_of_a_token(llama: Architecture) -> None:
    assert attention_flops(llama, 8192) == 4 * 32 * 4096 * 8192
    assert forward_flops(llama, 8192) == 2 * 7_504_658_432 + 4_294_967_296
    assert training_flops(llama, 8192) == 57_912_852_480
    assert hardware_flops(llama, 8192, None, True) == 57_912_852_480 * 4 / 3


def test_attention_is_as_wide_as_heads_times_head_dim() -> None:
    assert attention_flops(read_architecture(QWEN3_4B, "q"), 1000) == 4 * 36 * 4096 * 1000  # not the hidden 2560


def test_frozen_weights_need_no_gradient_of_their_own(llama: Architecture) -> None:
    adapters = llama.lora(16, ["q_proj"])
    assert adapters == 32 * 16 * (4096 + 4096)
    expected = 4 * 7_504_658_432 + 6 * adapters + 3 * attention_flops(llama, 1024)
    assert training_flops(llama, 1024, Lora(16, ["q_proj"])) == expected


@pytest.mark.parametrize(
    ("layers", "hidden", "parameters", "sequence", "rate", "stated"),
    [(32, 4096, 6658859008, 2048, 10643, 459.0), (32, 4096, 6918905856, 65536, 1956, 282.0)],
)
def test_published_tflops_of_llm_foundry(
    layers: int, hidden: int, parameters: int, sequence: int, rate: int, stated: float
) -> None:
    config = {"model_type": "gpt2", "vocab_size": 50368, "n_embd": hidden, "n_layer": layers, "n_head": 32,
              "n_positions": sequence}  # fmt: skip
    model = read_architecture(config, "mpt")
    ours = (6 * parameters + 3 * attention_flops(model, sequence)) * rate / 1e12
    assert ours == pytest.approx(stated, rel=0.008)


def test_a_step_reads_the_experts_that_its_rows_chose() -> None:
    mixtral = read_architecture(MIXTRAL, "m")
    dense = mixtral.parameters - mixtral.experts - 32000 * 4096  # no lookup
    assert read_weights(mixtral, 1) == pytest.approx(dense + mixtral.experts / 4)
    assert read_weights(mixtral, 1000) == pytest.approx(dense + mixtral.experts)


def test_the_nearest_prior() -> None:
    known = [Prior("a100-80g", "dense", True, 0.7, "a"), Prior("h100-80g", "moe", True, 0.3, "b"),
             Prior("h100-80g", "dense", False, 0.4, "c")]  # fmt: skip
    assert prior(find_device("a100-40g"), "lora", False, known).source == "a"  # the same generation
    assert prior(find_device("h100-80g"), "moe", False, known).source == "b"
    assert prior(find_device("h100-80g"), "dense", True, known).source == "c"
    assert all(0 < each.share < 1 for each in PRIORS)


def test_kinds(llama: Architecture) -> None:
    assert kind_of(llama, None) == "dense"
    assert kind_of(llama, Lora(8)) == "lora"
    assert kind_of(read_architecture(MIXTRAL, "m"), Lora(8)) == "moe"


def test_the_update_by_hand(llama: Architecture) -> None:
    time = step_time(job(llama, checkpointing=True), WORK, utilisation=0.5)
    tokens = 512 * 1024 / 8
    expected = tokens * 4 * forward_flops(llama, 1024) / (989e12 * 0.5)
    assert time.seconds["policy update"] == pytest.approx(expected)
    assert time.seconds["reference logprobs"] == pytest.approx(expected / 4)
    assert time.source == "given"


def test_phases_add_up_to_hours_and_cost(llama: Architecture) -> None:
    time = step_time(job(llama), replace(WORK, steps=100, price=2.5))
    assert time.step_s == pytest.approx(sum(time.seconds.values()))
    assert time.device_hours == pytest.approx(time.step_s * 100 * 8 / 3600)
    assert time.cost == pytest.approx(2.5 * time.device_hours)
    assert time.tokens == 512 * 1024
    assert step_time(job(llama), WORK).cost is None


def test_which_phases_a_method_has(llama: Architecture) -> None:
    grpo = step_time(job(llama), WORK).seconds
    assert set(grpo) == {"prefill", "decode", "old logprobs", "reference logprobs", "policy update", "weight sync"}
    assert set(step_time(job(llama, method="ppo"), WORK).seconds) - set(grpo) == {"reward", "values", "critic update"}
    assert "reference logprobs" not in step_time(job(llama, reference=False), WORK).seconds
    assert set(step_time(job(llama, method="sft"), WORK).seconds) == {"policy update"}
    assert "old logprobs" not in step_time(job(llama), replace(WORK, old_logprobs=False)).seconds


def test_twice_the_devices_halve_the_update_but_not_the_longest_completion(llama: Architecture) -> None:
    few, many = (step_time(job(llama, devices=count), WORK).seconds for count in (8, 16))
    assert many["policy update"] == pytest.approx(few["policy update"] / 2)
    assert few["decode"] / 2 < many["decode"] < few["decode"]


def test_the_longest_completion_costs_decoding_alone(llama: Architecture) -> None:
    short, long = (step_time(job(llama), replace(WORK, longest=longest)).seconds for longest in (1024, 4096))
    assert long["decode"] > 1.5 * short["decode"]
    assert {k: v for k, v in long.items() if k != "decode"} == {k: v for k, v in short.items() if k != "decode"}


def test_the_engine_in_process_needs_no_sync(llama: Architecture) -> None:
    assert sync_time(job(llama, rollout=Rollout("in_process"))) == 0
    assert sync_time(job(llama)) == pytest.approx(llama.parameters * 2 / 125e9)
