"""How the systems behind public measurements train, as far as it changes memory; data for `planner/rows.py`.

What a row leaves out is taken from here. `logit_bytes` are those of the head that the system runs (bytes a logit with
its gradient, measured on CPU with the same functions); a row's own fields come first.
"""

from dataclasses import dataclass

from quatrain.planner.job import Precision


@dataclass(frozen=True, slots=True)
class Framework:
    """Settings of a training system that its published rows do not repeat."""

    name: str
    prefix: str  # of a row's source
    logit_bytes: float
    logit_bytes_4bit: float  # over a 4-bit base, whose head may be float32
    precision: Precision = "bf16"
    adapter_bytes: int = 2
    adapter_slots: int = 1
    base_bits: int = 16
    rest_bytes: int = 2
    foreach: bool = True
    repeats_keys: bool = False  # keys and values are copied for every query head
    unties: bool = False  # a tied head is held apart
    gathers_whole: bool = False  # FSDP wraps the model as one unit


FRAMEWORKS = (
    # the transformers loss raises logits to float32; PEFT keeps adapters, and what is not packed, in float32
    Framework("fitcheck", "pypi:fitcheck-llm", 14.0, 16.0, adapter_bytes=4, rest_bytes=4),
    Framework("peft", "github:huggingface/peft", 14.0, 16.0, adapter_bytes=4, rest_bytes=4),
    Framework("peft docs", "huggingface.co/docs/peft", 14.0, 14.0, adapter_bytes=2, rest_bytes=2),
    # cross-entropy in chunks of 128 positions on bfloat16 logits, all of them kept
    Framework("litgpt", "github:Lightning-AI/litgpt", 6.0, 6.0, repeats_keys=True, unties=True,
              gathers_whole=True),
    Framework("torchtune", "github:pytorch/torchtune", 12.0, 12.0, foreach=False),
    Framework("torchtune docs", "torchtune docs", 12.0, 12.0),
    # FSDP 2: float32 weights, gathered in bfloat16; the frozen base of adapters stays float32 too, four adapters held
    Framework("prime-rl", "github:PrimeIntellect-ai/prime-rl", 16.0, 16.0, "master", adapter_bytes=4, adapter_slots=4,
              base_bits=32),
    Framework("torchtitan", "github:pytorch/torchtitan", 12.0, 12.0, "master", base_bits=32),
    Framework("verl", "verl docs", 12.0, 12.0, "master"),
    Framework("trl", "github:huggingface/trl", 16.0, 16.0, "master", adapter_bytes=4),
    Framework("qwen", "github:QwenLM/Qwen3", 0.0, 0.0),
)  # fmt: skip
OTHER = Framework("other", "", 14.0, 14.0, adapter_bytes=4, rest_bytes=4)


def framework_of(source: str) -> Framework:
    """The system that a row's source names; OTHER when none does."""
    return next((known for known in FRAMEWORKS if source.startswith(known.prefix)), OTHER)
