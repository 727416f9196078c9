"""Every number of the planner that is neither arithmetic nor a property of a model or a device, with its source.

`measured` is False for an allowance: something that no accounting of tensors can see and that was not measured here.
`benchmarks/planner_fit.py` fits those that public measurements determine, leaving one source out at a time.
"""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Source:
    """Where a constant comes from."""

    text: str
    measured: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Constants:
    """Allowances and counted widths; replace single ones with `dataclasses.replace`."""

    reserved_low: float = 1.04
    reserved: float = 1.12
    reserved_high: float = 1.49
    context_gib: float = 0.5
    communication_gib: float = 1.0
    workspace_gib: float = 0.02
    process_cpu_gib: float = 0.45
    compiled: float = 0.82
    logits_grad_wide: float = 16.0
    logits_grad_full: float = 12.0
    logits_grad_chunked: float = 16.0
    logits_score_16: float = 6.0
    logits_score_32: float = 8.0
    sampling_own: float = 24.0
    sampling_engine: float = 8.0
    chunk_logits: int = 1 << 28
    dropout_bytes: float = 1.0
    scores_backward: float = 8.0


SOURCES: dict[str, Source] = {
    "reserved_low": Source("reserved / allocated, smallest of 79 public runs on a T4 (fitcheck-llm 0.3.1)", False),
    "reserved": Source("reserved / allocated, median of the same 79 runs; RL logs show 1.14 to 1.45", False),
    "reserved_high": Source("reserved / allocated, largest of the same 79 runs", False),
    "context_gib": Source("driver context and libraries: 0.14 GiB (T4) to 1.8 GiB are reported", False),
    "communication_gib": Source("buffers of a communicator with more than one device: 1 to 2 GiB, over 10 in large "
                                "clusters are reported", False),
    "workspace_gib": Source("workspace of the matrix library, 8 to 32 MiB a stream", False),
    "process_cpu_gib": Source("RSS of a Python process with torch and transformers loaded", True),
    "compiled": Source("activations with torch.compile over those without: torchtitan 8B 77.0 / 82.4 GiB, torchtune 3B "
                       "51.0 / 60.0 GiB, of which only activations change", False),
    "logits_grad_wide": Source("bytes a logit of ops.logprobs with gradient, float32 and bfloat16", True),
    "logits_grad_full": Source("bytes a logit of transformers' ForCausalLMLoss, 16-bit model, without the head's own "
                               "gradient", True),
    "logits_grad_chunked": Source("bytes a logit within one chunk of a chunked head", True),
    "logits_score_16": Source("bytes a logit of a pass without gradient: 16-bit logits and their float32 copy", True),
    "logits_score_32": Source("the same from float32 logits", True),
    "sampling_own": Source("bytes a logit while the in-process engine draws: logits, probabilities, their float64 "
                           "running sum and its input", True),
    "sampling_engine": Source("bytes a logit while another engine draws: float32 logits and probabilities", False),
    "chunk_logits": Source("logits in one chunk: models/forward.py LOGITS_BYTES / 4", True),
    "scores_backward": Source("bytes a score that eager attention's backward pass adds to what it kept: 6 (bfloat16) "
                              "or 8 (float32) on a CPU; runs on a T4 show 9 to 12", True),
    "dropout_bytes": Source("bytes of a dropout mask a number on a GPU", False),
}  # fmt: skip

DEFAULTS = Constants()


def listed() -> list[tuple[str, float, Source]]:
    """Every constant with its value and source, in order."""
    return [(item.name, getattr(DEFAULTS, item.name), SOURCES[item.name]) for item in fields(Constants)]
