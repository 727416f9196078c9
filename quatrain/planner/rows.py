"""Public measurements predicted: a row of JSON with a setting and a measured peak becomes a job, and a prediction.

"Peak memory" is three different numbers, and a row's metric says which one it is:

    allocated   what the tensors take (torch max_memory_allocated; "active")
    reserved    what the allocator holds: allocated x `constants.reserved`
    process     what the machine shows: reserved + driver context + communication buffers

A row whose setting is not complete, or that trains in a way which is not modelled, gets the reason instead.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from quatrain.errors import QuatrainError, SettingError
from quatrain.planner.constants import DEFAULTS, Constants
from quatrain.planner.frameworks import Framework, framework_of
from quatrain.planner.hardware import GIB, find_device
from quatrain.planner.job import Attention, Batch, Job, Lora, Method, Rollout
from quatrain.planner.memory import Phase, inference, phases
from quatrain.planner.models import find_model
from quatrain.planner.states import gradient_bytes, resident
from quatrain.planner.weights import Weight

Row = Mapping[str, Any]
Metric = Literal["allocated", "reserved", "process", "host"]
GPUS = {
    "t4": "t4-16g", "a10g": "a10g-24g", "a100-sxm4-40gb": "a100-40g", "a100-40": "a100-40g", "l40s": "l40s-48g",
    "h100 96gb": "h100-96g", "h100": "h100-80g", "h200": "h200-141g", "b200": "b200-180g", "a6000": "a6000-48g",
    "rtx4090": "rtx4090-24g", "h20": "h20-96g", "a100": "a100-80g",
}  # fmt: skip
TARGETS: dict[str, str | list[str]] = {
    "all linear (+experts)": "all-linear", "all linear (q,k,v,o,mlp)": "all-linear", "all-linear": "all-linear",
    "q,v": ["q_proj", "v_proj"],
}  # fmt: skip
LITGPT = {
    "query": ("q_proj", "qkv_proj", "query_key_value"), "value": ("v_proj",), "key": ("k_proj",),
    "projection": ("o_proj", "dense"),
    "mlp": ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "dense_h_to_4h", "dense_4h_to_h"),
    "head": (),
}  # fmt: skip
FUSED_HEAD = 8.0  # bytes a logit of one chunk: float32 logits and, in their place or beside them, their gradient
PEFT_METHODS = ("adalora", "ia3", "lokr", "vera", "prompt_tuning")


@dataclass(frozen=True, kw_only=True, slots=True)
class RowPrediction:
    """What the planner says about a row; `why` when it says nothing. GiB throughout."""

    metric: Metric | None
    measured_gib: float | None
    predicted_gib: float | None = None
    why: str | None = None
    phase: str | None = None
    allocated_gib: float | None = None
    reserved_gib: float | None = None
    process_gib: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured."""
        if self.predicted_gib is None or not self.measured_gib:
            return None
        return self.predicted_gib / self.measured_gib - 1


def predict_row(row: Row, constants: Constants = DEFAULTS) -> RowPrediction:
    """The planner's prediction of a row's metric. Never raises for what a row says; `why` tells what is missing."""
    measured, metric = measured_gib(row), metric_of(row)
    try:
        if metric is None or metric == "host":
            raise _Unknown(f"metric {row.get('metric')!r} is not memory of a device that is modelled")
        found = _phases_of(row, constants)
    except QuatrainError as error:
        return RowPrediction(metric=metric, measured_gib=measured, why=str(error))
    worst = max(found, key=lambda phase: phase.total)
    allocated = worst.total / GIB + constants.workspace_gib
    reserved = allocated * constants.reserved
    process = reserved + context_gib(row, constants)
    value = {"allocated": allocated, "reserved": reserved, "process": process}[metric]
    return RowPrediction(
        metric=metric, measured_gib=measured, predicted_gib=value, phase=worst.name, allocated_gib=allocated,
        reserved_gib=reserved, process_gib=process, phases={phase.name: phase.total / GIB for phase in found},
    )  # fmt: skip


class _Unknown(QuatrainError):
    """Why a row cannot be predicted."""


def _phases_of(row: Row, constants: Constants) -> list[Phase]:
    job = job_of(row, constants)
    _consistent(row, job)
    if str(row.get("method", "")).startswith("generate"):
        return [inference(job)]
    return [phase for phase in phases(job) if phase.name not in ("load", "checkpoint")]


def _consistent(row: Row, job: Job) -> None:
    """Raises for a measured peak below what the row's own setting makes the states take: its setting is not as said."""
    least, measured = sum(resident(job)[0].values()) + gradient_bytes(job, job.model), measured_gib(row)
    trains = not str(row["method"]).startswith("generate")
    if trains and measured is not None and measured * GIB < 0.9 * least:
        raise _Unknown(f"measured {measured:.1f} GiB is below the {least / GIB:.1f} GiB of weights, gradients and "
                       "moments that the row's own setting implies")  # fmt: skip


def measured_gib(row: Row) -> float | None:
    """The measured peak: GiB where the source has it, else from 1e9 bytes."""
    value = row.get("measured_peak_gib")
    if value is not None:
        return float(value)
    value = row.get("measured_peak_gb")
    return None if value is None else float(value) * 1e9 / GIB


def metric_of(row: Row) -> Metric | None:
    """Which of the four numbers a row's `metric` text names; an unnamed peak is taken for the process's."""
    text = str(row.get("metric", "")).lower()
    if "cpu memory" in text:
        return "host"
    if "reserved" in text:
        return "reserved"
    if "nvidia-smi" in text or "process" in text:
        return "process"
    if any(word in text for word in ("allocated", "active", '"real"', "gpu memory(mb)", "torchtune log")):
        return "allocated"
    return "process" if text else None


def context_gib(row: Row, constants: Constants) -> float:
    """Driver context of the row's device, and buffers where several devices talk."""
    device = find_device(_gpu(row))
    own = constants.context_gib if device.context_gib is None else device.context_gib
    return own + (constants.communication_gib if int(row.get("num_gpus") or 1) > 1 else 0.0)


def job_of(row: Row, constants: Constants = DEFAULTS) -> Job:
    """The job that a row describes. Raises QuatrainError for one that is not complete or not modelled."""
    _check(row)
    system = framework_of(str(row.get("source", "")))
    model, _ = find_model(str(row["model"]))
    if system.unties and model.tied:
        model = replace(model, tied=False, weights=(*model.weights, Weight("head", "lm_head", model.hidden,
                                                                           model.vocabulary)))  # fmt: skip
    sharded, optimizer = _sharding(row), str(row.get("optimizer") or "")
    devices = int(row.get("num_gpus") or 1)
    full = "lora" not in str(row["method"]) and not row.get("lora_rank")
    return Job(
        model=model, method=_method(row), device=find_device(_gpu(row)), devices=devices,
        precision=system.precision if full or system.base_bits == 32 else "bf16",
        optimizer="adamw_8bit" if "8bit" in optimizer.lower() else "adamw",
        foreach=system.foreach, step_in_backward=bool(row.get("optimizer_in_bwd")) or "opt-in-bwd" in optimizer,
        lora=None if full else _lora(row, system),
        base_bits=4 if "nf4" in str(row.get("quantization")) else system.base_bits,  # type: ignore[arg-type]
        rest_bytes=system.rest_bytes, double_quant=_double(row), sharding=sharded,
        sharding_unit="model" if system.gathers_whole else "block",
        expert_parallel=int(row.get("ep") or 1), tensor_parallel=int(row.get("tp") or 1),
        offload_optimizer="CPU offload" in str(row.get("sharding", "")) or "Paged" in optimizer,
        offload_activations=bool(row.get("activation_offload")) or "offload" in str(row.get("grad_checkpoint", "")),
        checkpointing=_checkpointing(row), attention=_attention(row, system), compiled=bool(row.get("compile")),
        chunked_head="chunked" in str(row.get("loss_head", "")),
        logit_bytes=_logits(row, system),
        reference=False, batch=_batch(row), rollout=_generation(row),
        constants=_with_chunk(row, constants, model.vocabulary),
    )  # fmt: skip


def _check(row: Row) -> None:
    """Raises with the first thing that is missing or not modelled."""
    if not isinstance(row.get("model"), str) or not isinstance(row.get("method"), str):
        raise _Unknown("model and method: not given")
    if row.get("setting_complete") is False:
        missing = [name for name in ("batch_size", "seq_len", "gpu", "dtype") if row.get(name) is None]
        raise _Unknown("setting not complete: " + (", ".join(missing) or str(row.get("note") or "see its source")))
    if row.get("packed") is False:
        raise _Unknown("packed: rows padded to their own lengths, which are not given")
    for kind in PEFT_METHODS:
        if row["method"].startswith(kind):
            raise _Unknown(f"method {kind}: adapters of this kind are not modelled")
    if int(row.get("pp") or 1) > 1:
        raise _Unknown("pp: pipeline stages are not modelled")
    if row["method"] in ("grpo", "ppo") and row.get("engine"):
        raise _Unknown("engine: its share of the device is configured, not measured apart; a bound at best")


def _method(row: Row) -> Method:
    return "dpo" if "dpo" in row["method"] else "sft"


def _gpu(row: Row) -> str:
    text = str(row.get("gpu", "")).lower()
    return next((name for key, name in GPUS.items() if key in text), "a100-80g")


def _logits(row: Row, system: Framework) -> float:
    """Bytes a logit of the system's head; 8 chunks of a cross-entropy keep the 16-bit logits and one chunk's copies."""
    if row.get("chunked_ce"):
        return 2.5
    if "chunked" in str(row.get("loss_head", "")):
        return FUSED_HEAD
    return system.logit_bytes_4bit if "nf4" in str(row.get("quantization")) else system.logit_bytes


def _sharding(row: Row) -> Literal[0, 1, 2, 3]:
    text = str(row.get("sharding") or "none")
    if "FSDP" in text or "ZeRO-3" in text:
        return 3
    return 2 if "ZeRO-2" in text else 1 if "ZeRO-1" in text else 0


def _double(row: Row) -> bool:
    return bool(row.get("double_quant")) or any(word in str(row.get("quantization")) for word in ("-dq", "nested"))


def _checkpointing(row: Row) -> bool | Literal["selective"]:
    value = row.get("grad_checkpoint")
    if isinstance(value, str):
        return "selective" if value.startswith("selective") else value.startswith("full")
    return bool(value)


def _attention(row: Row, system: Framework) -> Attention:
    text = str(row.get("attention") or "")
    return "eager" if text == "eager" else "repeated" if system.repeats_keys else "fused"


def _lora(row: Row, system: Framework) -> Lora:
    dropout = float(row.get("lora_dropout") or 0)
    rank = int(row.get("lora_rank") or 8)
    named = row.get("lora_targets") or ("all-linear" if system.name == "torchtune" else ["query", "value"])
    if isinstance(named, str):
        targets = TARGETS.get(named, named)
    else:
        targets = [name for word in named for name in LITGPT.get(word, (word,))]
    return Lora(rank, targets, system.adapter_bytes, dropout, system.adapter_slots)


def _batch(row: Row) -> Batch:
    """Tokens of a device's micro-batch; context parallelism divides the sequence."""
    if str(row["method"]).startswith("generate"):
        return Batch(tokens=int(row["prompt_len"]), trained=1, sequence=int(row["prompt_len"]))
    if not row.get("batch_size") or not row.get("seq_len"):
        raise _Unknown("batch_size or seq_len: not given")
    rows, sequence = int(row["batch_size"]), int(row["seq_len"])
    tokens = max(1, rows * sequence // int(row.get("cp") or 1))
    several = int(row.get("micro_batches") or row.get("grad_accum") or 1)
    if row.get("global_batch"):
        several = max(several, int(row["global_batch"]) // (rows * int(row.get("num_gpus") or 1)))
    return Batch(tokens=tokens, sequence=sequence, passes=max(1, several))


def _generation(row: Row) -> Rollout:
    if not str(row["method"]).startswith("generate"):
        return Rollout()
    rows = int(row.get("batch_size") or 1)
    return Rollout("in_process", rows=rows, group=1, prompt=int(row["prompt_len"]), completion=int(row["response_len"]))


def _with_chunk(row: Row, constants: Constants, vocabulary: int) -> Constants:
    """A head in chunks of so many tokens, where the row says how many."""
    known = "2048-token" in str(row.get("loss_head"))
    return replace(constants, chunk_logits=2048 * vocabulary) if known else constants


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and rows of a JSONL file. Raises SettingError that names the line for one that is not an object."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError("--rows", str(path), "a readable UTF-8 JSONL file", str(error)) from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SettingError(f"{path.name} line {number}", line, "a JSON object", str(error)) from None
        if not isinstance(row, dict):
            raise SettingError(f"{path.name} line {number}", line, "a JSON object", "one object a line")
        yield number, row
