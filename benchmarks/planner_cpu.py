"""Small models through the real engine and the real learner on this machine: bytes measured against the planner's.

    python benchmarks/planner_cpu.py               every model, worst phase first
    python benchmarks/planner_cpu.py llama --detail
    python benchmarks/planner_cpu.py --write       and docs/results/planner-measured-cpu.md

A group of completions is sampled, annotated with old and reference log-probabilities, and trained on twice; the second
time is measured, when the optimizer has its moments. Bytes are those of live tensor storages (`planner_storages.py`);
what the process holds (RSS) stands beside them and is not predicted here.
"""

import argparse
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.planner_storages import Storages
from quatrain.algorithms import ALGORITHMS
from quatrain.config import AlgorithmConfig, ModelConfig, SamplingConfig, TrainConfig
from quatrain.models.load import LanguageModel, disable_dropout
from quatrain.models.lora import add_adapters
from quatrain.planner.architecture import read_architecture
from quatrain.planner.hardware import find_device
from quatrain.planner.job import Attention, Batch, Job, Lora, Rollout
from quatrain.planner.memory import phases
from quatrain.rollout import Request
from quatrain.rollout.in_process import InProcessEngine
from quatrain.train.learner import Learner
from quatrain.types import Prompt, Sample

RESULT = Path(__file__).parents[1] / "docs" / "results" / "planner-measured-cpu.md"
VOCABULARY = 4099  # a width that no other tensor has
MIB = 2**20
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "num_key_value_heads": 2, "tie_word_embeddings": False},
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 4, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 48, "tie_word_embeddings": True},
    "gpt2": {"model_type": "gpt2"},
    "neox": {"model_type": "gpt_neox", "tie_word_embeddings": False},
    "mixtral": {"model_type": "mixtral", "num_key_value_heads": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
                "sliding_window": None, "tie_word_embeddings": False},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A small model, how it is stored and trained, and what it samples."""

    shape: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    lora: int = 0
    checkpointing: bool = False
    builder: Literal["padded", "shared"] = "padded"
    group: int = 8
    prompt: int = 64
    completion: int = 24
    hidden: int = 256
    layers: int = 3

    @property
    def label(self) -> str:
        parts = [self.shape, self.dtype, f"{self.group} x ({self.prompt} + {self.completion})", self.builder]
        parts += [f"LoRA r{self.lora}"] if self.lora else []
        parts += ["checkpointing"] if self.checkpointing else []
        return ", ".join(parts)

    @property
    def config(self) -> dict[str, Any]:
        if self.shape == "gpt2":
            sizes = {"n_embd": self.hidden, "n_layer": self.layers, "n_head": 8, "n_positions": 1024}
        else:
            sizes = {"hidden_size": self.hidden, "num_hidden_layers": self.layers, "num_attention_heads": 8,
                     "intermediate_size": 3 * self.hidden, "max_position_embeddings": 1024}  # fmt: skip
        ends = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
        return {"vocab_size": VOCABULARY, **sizes, **SHAPES[self.shape], **ends}


CASES = [
    Case("llama"),
    Case("llama", builder="shared"),
    Case("llama", checkpointing=True),
    Case("llama", "bfloat16"),
    Case("llama", lora=8),
    Case("llama", group=16, prompt=16),
    Case("qwen2"),
    Case("qwen2", builder="shared", checkpointing=True),
    Case("qwen3", "bfloat16", checkpointing=True),
    Case("gpt2"),
    Case("neox"),
    Case("mixtral"),
]


def job_of(case: Case) -> Job:
    """The case as the planner is asked about it."""
    unit = case.prompt + case.group * (case.completion - 1)
    tokens = unit if case.builder == "shared" else case.group * (case.prompt + case.completion)
    attention: Attention = "masked" if case.builder == "shared" else "fused"
    return Job(
        model=read_architecture(case.config, case.shape), method="grpo", device=find_device("cpu"),
        precision="fp32" if case.dtype == "float32" else "master", lora=Lora(case.lora) if case.lora else None,
        base_bits=32 if case.dtype == "float32" else 16, checkpointing=case.checkpointing, attention=attention,
        chunked_head=True, frozen_bytes=4,
        batch=Batch(tokens=tokens, trained=case.group * case.completion,
                    sequence=unit if case.builder == "shared" else case.prompt + case.completion),
        rollout=Rollout("in_process", rows=case.group, group=case.group, prompt=case.prompt,
                        completion=case.completion),
    )  # fmt: skip


def predicted(case: Case) -> dict[str, dict[str, float]]:
    """Bytes by phase and component: rollout, log-probabilities, update (its fullest moment)."""
    found = {phase.name: dict(phase.components) for phase in phases(job_of(case))}
    update = max((parts for name, parts in found.items() if "update" in name), key=lambda parts: sum(parts.values()))
    return {"rollout": found["rollout"], "logprobs": found["old and reference logprobs"], "update": update,
            "step": found["policy update: step"]}  # fmt: skip


def measured(case: Case) -> tuple[Storages, int]:
    """The storages that a round of sampling, annotating and updating had, and the process's bytes at most."""
    torch.manual_seed(0)
    lm, reference = _model(case), None if case.lora else _model(case, trainable=False)
    capacity = case.prompt + case.completion
    storages = Storages()
    cached = (job_of(case).model.kv_heads, capacity)
    storages.classify = lambda tensor: _component(tensor, cached if "rollout" in storages.name else (0, 0))
    storages.add_model(lm.module, "weights", "weights")
    if reference is not None:
        storages.add_model(reference.module, "weights", "reference")
    learner = Learner(lm, TrainConfig(tokens_per_micro_batch=1 << 20, builder=case.builder), 1.0, reference)
    algorithm = ALGORITHMS.get("grpo")(AlgorithmConfig.model_validate({"kl": {"coefficient": 0.01}}), case.completion)
    engine = InProcessEngine(lm, max_rows=case.group)
    with storages:
        for name in ("first ", ""):
            with storages.phase(name + "rollout"):
                samples = _round(case, engine)
            with storages.phase(name + "logprobs"):
                annotated = learner.annotate(samples, frozenset({"old_logprobs", "reference_logprobs"}), _nothing)
            ready = [sample.with_streams(**_streams(sample, index)) for index, sample in enumerate(annotated)]
            with storages.phase(name + "update"):
                learner.update(ready, algorithm, 1, _nothing)
            for state in learner.roles["policy"].optimizer.state.values():
                for value in state.values():
                    storages.add(value if isinstance(value, torch.Tensor) else None, "optimizer moments")
    return storages, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _model(case: Case, trainable: bool = True) -> LanguageModel:
    """The model as `models.load` makes it: float32 weights that are trained, adapters over weights of `dtype`."""
    stored = torch.bfloat16 if case.dtype == "bfloat16" and case.lora else torch.float32
    module: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**case.config), dtype=stored)
    disable_dropout(module)
    if case.lora:
        module = add_adapters(module, ModelConfig.model_validate({"path": "m", "lora": {"rank": case.lora}}))
    elif not trainable:
        module.requires_grad_(False)
    if case.checkpointing and trainable:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if case.lora:
            module.enable_input_require_grads()
    return LanguageModel(
        module=module.train(trainable), tokenizer=_NoText(), path=case.shape, device=torch.device("cpu"),
        autocast=torch.bfloat16 if case.dtype == "bfloat16" else None, eos_ids=frozenset(), max_positions=1024,
    )  # fmt: skip


class _NoText:
    """A tokenizer of which only its size and its (empty) text are asked."""

    def __len__(self) -> int:
        return VOCABULARY

    def decode(self, *_: Any, **__: Any) -> str:
        return ""


def _round(case: Case, engine: InProcessEngine) -> list[Sample]:
    prompt = Prompt(index=0, token_ids=tuple(range(1, case.prompt + 1)), text="p")
    sampling = SamplingConfig(max_tokens=case.completion)
    engine.submit([Request(prompt=prompt, group=0, index=index, seed=(0, index), sampling=sampling)
                   for index in range(case.group)])  # fmt: skip
    rollouts = engine.completed()
    return [_sample(case, index, rollout.trajectories[0].token_ids) for index, rollout in enumerate(rollouts)]


def _sample(case: Case, index: int, token_ids: Any) -> Sample:
    trained = np.arange(len(token_ids)) >= case.prompt
    return Sample(token_ids=np.asarray(token_ids), trained=trained, group=0, completion=index,
                  prompt_length=case.prompt)  # fmt: skip


def _streams(sample: Sample, index: int) -> dict[str, Any]:
    ones = np.ones(sample.num_tokens)
    return {"advantages": ones * (1.0 if index % 2 else -1.0), "active": ones, "completion_tokens": ones * len(ones),
            "sampler_logprobs": sample.streams["old_logprobs"]}  # fmt: skip


def _component(tensor: torch.Tensor, cached: tuple[int, int]) -> str | None:
    """Logits by their width, the cache by its heads and capacity."""
    if tensor.ndim and tensor.shape[-1] == VOCABULARY:
        return "logits"
    return "KV cache" if tensor.ndim == 4 and tuple(tensor.shape[1:3]) == cached else None


def _nothing(_done: int, _total: int) -> None:
    """No progress shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """One case: bytes by phase and component."""

    case: Case
    predicted: Mapping[str, Mapping[str, float]]
    measured: Mapping[str, Mapping[str, float]]
    gradients: float  # their most
    rss: int

    def peak_error(self, phase: str) -> float:
        """(predicted - measured) / measured of a phase's peak."""
        return sum(self.predicted[phase].values()) / sum(self.measured[phase].values()) - 1

    def component_errors(self) -> dict[str, float]:
        """The same of components: what stays, the cache, gradients (their most), and what the update adds at its peak.

        At the peak of a tied model the head's gradient is in no parameter yet, so what passes is compared as a whole.
        One that is below 2 % of its phase's peak is left out.
        """
        ours, theirs = self.predicted["update"], self.measured["update"]
        stays = ("weights", "reference", "optimizer moments")
        pairs = {name: (ours.get(name, 0), theirs.get(name, 0)) for name in stays}
        pairs["weights"] = (ours["weights"] + ours.get("adapters", 0), theirs["weights"])
        pairs["gradients"] = (self.predicted["step"].get("gradients", 0), self.gradients)
        pairs["activations, logits, gradients"] = (
            sum(size for name, size in ours.items() if name not in (*stays, "adapters")),
            sum(size for name, size in theirs.items() if name not in stays),
        )
        pairs["KV cache"] = (self.predicted["rollout"].get("KV cache", 0), self.measured["rollout"].get("KV cache", 0))
        least = 0.02 * sum(theirs.values())
        return {name: one / other - 1 for name, (one, other) in pairs.items() if other > least}


def run(case: Case) -> Row:
    """Measure a case and predict it."""
    storages, rss = measured(case)
    found = {name: dict(storages.peaks[name]) for name in ("rollout", "logprobs", "update")}
    for parts in found.values():  # tables of rotary embedding and autocast's copies are counted with activations
        beside = parts.pop("compute weights", 0) + parts.pop("buffers", 0)
        parts["activations"] = parts.get("activations", 0) + beside
    return Row(case, predicted(case), found, storages.highest["update"]["gradients"], rss)


def table(rows: Sequence[Row]) -> str:
    """Markdown: peaks by phase, then components, worst first."""
    ordered = sorted(rows, key=lambda row: -max(abs(row.peak_error(phase)) for phase in row.measured))
    lines = ["| model | rollout MiB | error | logprobs MiB | error | update MiB | error | RSS MiB |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in ordered:
        cells = [f"{sum(row.measured[phase].values()) / MIB:.1f} | {row.peak_error(phase):+.1%}"
                 for phase in row.measured]  # fmt: skip
        lines.append(f"| {row.case.label} | {' | '.join(cells)} | {row.rss / MIB:.0f} |")
    names = sorted({name for row in rows for name in row.component_errors()})
    lines += ["", f"| model | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for row in ordered:
        errors = row.component_errors()
        cells = [f"{errors[name]:+.1%}" if name in errors else "" for name in names]
        lines.append(f"| {row.case.label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--detail", action="store_true", help="components of every phase")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for case in CASES:
        if arguments.names and not any(name in case.label for name in arguments.names):
            continue
        row = run(case)
        rows.append(row)
        print("  ".join(f"{phase} {row.peak_error(phase):+.1%}" for phase in row.measured), case.label, flush=True)
        for phase in row.measured if arguments.detail else ():
            for which in (row.predicted, row.measured):
                parts = "  ".join(f"{name} {size / MIB:.2f}" for name, size in sorted(which[phase].items()))
                print(f"    {phase:8} {sum(which[phase].values()) / MIB:8.2f}  {parts}")
    print(table(rows))
    if arguments.write:
        RESULT.write_text(INTRODUCTION + table(rows), encoding="utf-8")


INTRODUCTION = """# The planner's memory against real runs of small models

2026-11-30, CPU. Made by `python benchmarks/planner_cpu.py --write`. Models of three blocks and 256 hidden numbers
with random weights go through the real engine and the real learner (second step, when the optimizer has its moments).
Measured are the bytes of live tensor storages at the fullest moment of each phase; errors are (predicted - measured) /
measured. RSS is the process's most so far, Python and torch included. The second table has the components: what stays,
the most gradients, what the update adds at its fullest moment, and the cache.

"""

if __name__ == "__main__":
    main()
