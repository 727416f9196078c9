"""Rows of public measurements: how settings are read, and what is said of those that cannot be predicted."""

from dataclasses import replace
from typing import Any

import pytest

from quatrain.planner.constants import DEFAULTS, SOURCES, listed
from quatrain.planner.rows import job_of, measured_gib, metric_of, predict_row

ROW: dict[str, Any] = {
    "source": "github:huggingface/peft benchmarks", "model": "meta-llama/Llama-3.2-3B", "method": "lora-sft",
    "gpu": "NVIDIA L40S", "num_gpus": 1, "dtype": "bfloat16", "optimizer": "AdamW", "batch_size": 4, "seq_len": 768,
    "lora_rank": 32, "lora_targets": ["v_proj", "q_proj"], "grad_checkpoint": False, "sharding": "none",
    "measured_peak_gb": 22.245, "metric": "torch.cuda.max_memory_reserved", "setting_complete": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("torch.cuda.max_memory_allocated/1e9", "allocated"),
        ("peak active (memory_stats active_bytes.all.peak)", "allocated"),
        ("torch max_reserved", "reserved"),
        ("nvidia-smi MiB 49273", "process"),
        ("as stated", "process"),
        ("CPU memory per node as stated", "host"),
    ],
)
def test_which_peak_a_metric_is(text: str, metric: str) -> None:
    assert metric_of({"metric": text}) == metric


def test_gib_and_gb() -> None:
    assert measured_gib({"measured_peak_gb": 22.245}) == pytest.approx(22.245e9 / 2**30)
    assert measured_gib({"measured_peak_gb": 22.245, "measured_peak_gib": 20.7}) == 20.7


def test_a_row_becomes_a_job() -> None:
    job = job_of(ROW)
    assert job.lora is not None and (job.lora.rank, job.lora.adapter_bytes) == (32, 4)
    assert (job.batch.tokens, job.batch.sequence, job.sharding, job.checkpointing) == (3072, 768, 0, False)
    sharded = job_of({**ROW, "sharding": "FSDP2 8", "num_gpus": 8, "grad_checkpoint": "full", "cp": 2})
    assert (sharded.sharding, sharded.devices, sharded.checkpointing, sharded.batch.tokens) == (3, 8, True, 1536)


def test_the_metric_decides_what_is_predicted() -> None:
    allocated, reserved, process = (
        predict_row({**ROW, "metric": metric}).predicted_gib
        for metric in ("torch allocated", "torch max_reserved", "nvidia-smi")
    )
    assert allocated is not None and reserved is not None and process is not None
    assert reserved == pytest.approx(DEFAULTS.reserved * allocated)
    assert process == pytest.approx(reserved + DEFAULTS.context_gib)
    more = predict_row(ROW, replace(DEFAULTS, reserved=1.5)).predicted_gib
    assert more == pytest.approx(1.5 * allocated)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"setting_complete": False, "batch_size": None}, "batch_size"),
        ({"batch_size": None}, "batch_size or seq_len"),
        ({"method": "ia3-sft"}, "ia3"),
        ({"pp": 8}, "pipeline"),
        ({"model": "T0_3B"}, "T0_3B"),
        ({"metric": "CPU memory per node"}, "CPU memory"),
        ({"model": None}, "model"),
        ({"packed": False}, "packed"),
        ({"method": "full-sft", "lora_rank": None, "measured_peak_gb": 10.0}, "below the"),
        ({"num_gpus": 2, "tp": 3}, "tensor_parallel"),
    ],
)
def test_why_a_row_is_not_predicted(change: dict[str, Any], why: str) -> None:
    said = predict_row({**ROW, **change})
    assert said.predicted_gib is None and said.error is None and said.why is not None and why in said.why


def test_generation_holds_weights_and_cache() -> None:
    row = {
        "source": "github:QwenLM/Qwen3", "model": "Qwen3-8B", "method": "generate (HF transformers)", "gpu": "H20-96",
        "num_gpus": 1, "batch_size": 1, "metric": "GPU Memory(MB)=16811 as stated", "setting_complete": True,
    }  # fmt: skip
    short, long = (predict_row({**row, "prompt_len": length, "response_len": 2048}) for length in (1, 30720))
    assert short.predicted_gib is not None and long.predicted_gib is not None
    cache = 147_456 * 30719 / 2**30  # 2 x 36 layers x 8 heads x 128 x 2 bytes a token
    assert long.predicted_gib - short.predicted_gib == pytest.approx(cache)


def test_every_constant_names_its_source() -> None:
    assert {name for name, _, _ in listed()} == set(SOURCES)
