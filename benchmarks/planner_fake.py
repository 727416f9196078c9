"""The training step of large models under fake tensors: peak of every phase, measured against the planner's.

    python benchmarks/planner_fake.py                      all configurations
    python benchmarks/planner_fake.py llama-3-8b mixtral   those whose name begins so
    python benchmarks/planner_fake.py --write              and docs/results/planner-measured.md

Nothing is computed and no memory is used: operations return shapes, and the bytes of their storages are counted
(`planner_storages.py`; torch's own MemTracker finds the same peaks). The forward is `token_outputs`, the
backward, clipping and AdamW are torch's. Sharded runs use FSDP 2 over a fake process group of `world` ranks.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.planner_configs import CONFIGS
from benchmarks.planner_storages import Storages, head_logits
from quatrain.batch import TrainBatch
from quatrain.config import ModelConfig
from quatrain.models.forward import token_outputs
from quatrain.models.load import LanguageModel, disable_dropout
from quatrain.models.lora import add_adapters
from quatrain.ops.logprobs import gather_logprobs
from quatrain.planner.architecture import read_architecture
from quatrain.planner.hardware import CATALOGUE
from quatrain.planner.job import Batch, Job, Lora
from quatrain.planner.memory import phases

RESULT = Path(__file__).parents[1] / "docs" / "results" / "planner-measured.md"
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration: which model, how stored, what is trained, how laid out."""

    model: str
    rows: int = 1
    length: int = 2048
    precision: Literal["bf16", "master", "fp32"] = "bf16"
    lora: Lora | None = None
    checkpointing: bool = False
    attention: Literal["fused", "masked", "eager"] = "fused"
    world: int = 1
    share: float = 1.0  # of the positions, those that are trained
    layers: int | None = None  # a model cut short (its planner too)

    @property
    def label(self) -> str:
        parts = [self.model + (f" ({self.layers} layers)" if self.layers else ""), f"{self.rows}x{self.length}"]
        parts.append(self.precision)
        if self.lora:
            targets = self.lora.targets if isinstance(self.lora.targets, str) else ",".join(self.lora.targets)
            parts.append(f"LoRA r{self.lora.rank} {targets}")
        parts += [self.attention] if self.attention != "fused" else []
        parts += ["checkpointing"] if self.checkpointing else []
        parts += [f"FSDP {self.world}"] if self.world > 1 else []
        parts += [f"{self.share:.0%} trained"] if self.share != 1 else []
        return ", ".join(parts)

    @property
    def config(self) -> dict[str, Any]:
        config = CONFIGS[self.model]
        key = "n_layer" if "n_layer" in config else "num_hidden_layers"
        return {**config, key: self.layers or config[key]}

    @property
    def trained(self) -> int:
        return self.rows * self.length if self.world > 1 else max(1, round(self.rows * (self.length - 1) * self.share))


QV, ALL = Lora(16, ["q_proj", "v_proj"]), Lora(16)
ATTENTION = Lora(16, ["q_proj", "k_proj", "v_proj", "o_proj"])
WHOLE = [  # every layer; the others are cut to eight, as time for them goes with their number
    Case("llama-3-8b"),
    Case("llama-3-8b", 4, 2048, checkpointing=True),
    Case("qwen2.5-7b", 4, 2048, checkpointing=True),
    Case("qwen3-4b", 4, 2048, checkpointing=True),
    Case("qwen2.5-1.5b"),
    Case("mistral-7b"),
    Case("phi-3-mini"),
    Case("llama-3-8b", 1, 2048, lora=ALL),
    Case("qwen2.5-1.5b", 4, 1024, "master"),
    Case("llama-3-8b", 2, 2048, "master", checkpointing=True, world=8),
    Case("mixtral-8x7b", 2, 2048, checkpointing=True, world=8),
    Case("qwen3-30b-a3b", 4, 2048, checkpointing=True),
]
CUT = [
    *(Case(model) for model in CONFIGS if model not in ("gpt2-xl", "gemma-2-9b", "llama-3-8b", "mistral-7b")),
    *(Case(model, 4, 2048, checkpointing=True) for model in CONFIGS if model not in ("gpt2-xl", "gemma-2-9b")),
    Case("gemma-2-9b", 1, 1024, attention="eager"),
    Case("gemma-2-9b", 2, 2048, attention="eager", checkpointing=True),
    Case("gemma-2-9b", lora=ALL, attention="eager"),
    Case("gpt2-xl", 4, 1024),
    Case("gpt2-xl", 4, 1024, checkpointing=True),
    *(Case(model, lora=lora, checkpointing=checkpointing)
      for model in ("llama-3-8b", "qwen3-4b") for lora in (QV, ALL) for checkpointing in (False, True)),
    Case("qwen2.5-7b", 4, 1024, lora=Lora(64)),
    Case("mixtral-8x7b", lora=ATTENTION, checkpointing=True),
    Case("qwen3-30b-a3b", lora=ATTENTION),
    Case("llama-3-8b", 1, 2048, "master"),
    Case("llama-3-8b", 4, 2048, "master", checkpointing=True),
    Case("qwen2.5-1.5b", 4, 1024, "fp32"),
    Case("qwen2.5-1.5b", 2, 1024, attention="eager"),
    Case("qwen2.5-1.5b", 4, 1024, attention="masked"),
    Case("qwen2.5-1.5b", 8, 4096, checkpointing=True, share=0.8),
    Case("qwen3-8b", 1, 16384, checkpointing=True, share=0.9),
    Case("llama-3-8b", 2, 2048, world=8),
    Case("qwen2.5-7b", 2, 2048, world=8),
    Case("qwen2.5-7b", 2, 2048, "master", checkpointing=True, world=8),
    Case("qwen3-30b-a3b", 2, 2048, checkpointing=True, world=16),
    Case("qwen3-4b", 2, 2048, "master", checkpointing=True, world=64),
]  # fmt: skip
CASES = [*WHOLE, *(replace(case, layers=8) for case in CUT)]


def predicted(case: Case) -> dict[str, dict[str, float]]:
    """The planner's bytes by phase and component, without the allowances."""
    batch = Batch(tokens=case.rows * case.length, trained=case.trained, sequence=case.length)
    job = Job(
        model=read_architecture(case.config, case.model), method="sft", device=CATALOGUE["h200-141g"],
        devices=case.world, precision=case.precision, lora=case.lora, sharding=3 if case.world > 1 else 0,
        checkpointing=case.checkpointing, attention=case.attention, chunked_head=case.world == 1, batch=batch,
    )  # fmt: skip
    return {phase.name.partition(": ")[2]: dict(phase.components) for phase in phases(job) if "update" in phase.name}


def measured(case: Case) -> dict[str, dict[str, int]]:
    """Peak bytes by phase and component of the real step under fake tensors."""
    module = _build(case)
    with _process_group(case.world) as mesh, FakeTensorMode(), _no_values(case):
        lm = _model(module, case, mesh)
        storages = Storages(head_logits(lm.causal.config.vocab_size))
        storages.add_model(lm.module, "weights", "weights")
        batch = _batch(case)
        trained = [parameter for parameter in lm.module.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, fused=case.world == 1, foreach=False if case.world > 1 else None)
        with storages:
            with storages.phase("loss"):
                loss = _loss(lm, batch, case)
            with storages.phase("backward"):
                loss.backward()
            del loss
            with storages.phase("step", default="optimizer moments"):
                nn.utils.clip_grad_norm_(trained, 1.0)
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            with storages.phase("second loss"):
                loss = _loss(lm, batch, case)
            kept = dict(storages.live)
            with storages.phase("second backward"):
                loss.backward()
    found = storages.peaks
    return {"loss": found["second loss"], "backward": found["second backward"], "step": found["step"], "kept": kept}


def _loss(lm: LanguageModel, batch: TrainBatch, case: Case) -> torch.Tensor:
    """The library's forward; sharded, the model's own (its hooks gather weights) with all logits at once."""
    if case.world == 1:
        return -token_outputs(lm, batch, 1.0).logprobs_N.mean()
    logits = lm.module(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits
    flat = logits.flatten(0, 1)
    return -gather_logprobs(flat, torch.zeros(len(flat), dtype=torch.long)).mean()


def _build(case: Case) -> Any:
    """The model on the meta device, with adapters and checkpointing as `models.load` sets them."""
    config = AutoConfig.for_model(**case.config)
    stored = torch.float32 if case.precision in ("master", "fp32") and case.lora is None else torch.bfloat16
    implementation = "eager" if case.attention == "eager" else "sdpa"
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=stored, attn_implementation=implementation)
        if case.lora:
            lora = {"rank": case.lora.rank, "targets": case.lora.targets}
            module = add_adapters(module, ModelConfig.model_validate({"path": "m", "lora": lora}))
    disable_dropout(module)
    if case.checkpointing:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if case.lora:
            module.enable_input_require_grads()
    return module.train()


def _model(module: Any, case: Case, mesh: Any) -> LanguageModel:
    """The model with fake parameters in place of meta ones (tied ones stay tied), sharded where asked."""
    new: dict[int, Any] = {}
    for part in module.modules():
        for store in (part._parameters, part._buffers):
            for name, old in store.items():
                if old is not None:
                    if id(old) not in new:
                        fake = torch.empty(old.shape, dtype=old.dtype)
                        new[id(old)] = nn.Parameter(fake, old.requires_grad) if store is part._parameters else fake
                    store[name] = new[id(old)]
    if mesh is not None:
        _shard(module, case, mesh)
    return LanguageModel(
        module=module, tokenizer=None, path=case.model, device=torch.device("cpu"),
        autocast=torch.bfloat16 if case.precision == "master" and case.world == 1 else None,
        eos_ids=frozenset(), max_positions=case.length,
    )  # fmt: skip


def _shard(module: Any, case: Case, mesh: Any) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mesh": mesh, **({"mp_policy": policy} if case.precision == "master" else {})}
    for layer in module.get_decoder().layers:
        fully_shard(layer, **options)
    fully_shard(module, **options)


def _batch(case: Case) -> TrainBatch:
    shape = (case.rows, case.length)
    zeros = torch.zeros(shape, dtype=torch.long)
    index = torch.zeros(case.trained, dtype=torch.long)
    return TrainBatch(input_ids=zeros, position_ids=torch.zeros(shape, dtype=torch.long), segment_BT=zeros,
                      prefix_BT=zeros, logit_index_N=index, target_N=index, sample_N=index,
                      num_samples=case.rows)  # fmt: skip


@contextlib.contextmanager
def _no_values(case: Case) -> Iterator[None]:
    """Fake tensors have no values, so what the code would read from them is said: plain rows, or rows with a mask."""
    with mock.patch.object(TrainBatch, "plain", case.attention != "masked"), \
         mock.patch("transformers.masking_utils.find_packed_sequence_indices", lambda *_: None):  # fmt: skip
        yield


@contextlib.contextmanager
def _process_group(world: int) -> Iterator[Any]:
    """The mesh of `world` ranks of which this is the first and the others are not there; None for one rank."""
    if world == 1:
        yield None
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield init_device_mesh("cpu", (world,))
    finally:
        torch.distributed.destroy_process_group()


@dataclass(frozen=True, slots=True)
class Row:
    """Predicted and measured peak of one configuration."""

    case: Case
    predicted: dict[str, dict[str, float]]
    measured: dict[str, dict[str, int]]
    seconds: float

    def peak(self, which: Literal["predicted", "measured"]) -> tuple[str, float]:
        totals = {name: sum(getattr(self, which)[name].values()) for name in self.predicted}
        name = max(totals, key=totals.__getitem__)
        return name, totals[name]

    @property
    def error(self) -> float:
        """(predicted - measured) / measured of the peak."""
        return self.peak("predicted")[1] / self.peak("measured")[1] - 1


def run(cases: Sequence[Case]) -> list[Row]:
    """All rows, worst first; each is printed as it comes."""
    rows = []
    for case in cases:
        start = time.perf_counter()
        row = Row(case, predicted(case), measured(case), time.perf_counter() - start)
        (ours_in, ours), (theirs_in, theirs) = row.peak("predicted"), row.peak("measured")
        print(f"{row.error:+7.1%}  {ours / GIB:7.2f} {theirs / GIB:7.2f} GiB  {ours_in}/{theirs_in}  {case.label}  "
              f"({row.seconds:.0f} s)", flush=True)  # fmt: skip
        rows.append(row)
    return sorted(rows, key=lambda row: -abs(row.error))


def table(rows: Sequence[Row]) -> str:
    """Markdown: the peak and every phase, worst peak first."""
    lines = ["| configuration | measured GiB | predicted GiB | error | peak in | loss | backward | step |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in sorted(rows, key=lambda row: -abs(row.error)):
        each = (sum(row.predicted[name].values()) / sum(row.measured[name].values()) - 1 for name in row.predicted)
        (_, ours), (name, theirs) = row.peak("predicted"), row.peak("measured")
        cells = [row.case.label, f"{theirs / GIB:.2f}", f"{ours / GIB:.2f}", f"{row.error:+.1%}", name,
                 *(f"{error:+.1%}" for error in each)]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    errors = [abs(row.error) for row in rows]
    head = f"mean of the absolute errors of the peak {sum(errors) / len(errors):.2%}, worst {max(errors):.1%}."
    return f"{len(rows)} configurations; {head}\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--layers", type=int, help="cut every model to so many layers")
    parser.add_argument("--detail", action="store_true", help="components of every phase")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    cases = [case for case in CASES if not arguments.names or case.label.startswith(tuple(arguments.names))]
    if arguments.layers:
        cases = [replace(case, layers=arguments.layers) for case in cases]
    rows = run(cases)
    for row in rows if arguments.detail else []:
        print(f"\n{row.case.label}")
        for phase in row.predicted:
            for which in ("predicted", "measured"):
                parts = getattr(row, which)[phase]
                shown = "  ".join(f"{name} {size / GIB:.3f}" for name, size in parts.items() if size > 1e6)
                print(f"  {phase:9} {which:9} {sum(parts.values()) / GIB:8.3f}  {shown}")
    if arguments.write:
        RESULT.write_text(INTRODUCTION + table(rows), encoding="utf-8")


INTRODUCTION = """# The planner's memory against whole training steps under fake tensors

2026-11-30, torch 2.13.0, transformers 5.24, PEFT 0.21. Made by `python benchmarks/planner_fake.py --write`. The model,
its forward (`token_outputs`: log-probabilities and entropy in chunks), backward, clipping and AdamW run under
FakeTensorMode: operations return shapes, and the bytes of live storages are counted. Measured is the second step,
when the optimizer has its moments. Errors are (predicted - measured) / measured; the last three columns are those of
each phase. A model cut to fewer layers says so; its planner plans the cut model.

Unmeasured, and an allowance in a plan: the driver's context, communication buffers, the allocator's rounding and
fragments, memory that a kernel takes inside one operation. Attention is the CPU's flash kernel, which keeps what the
GPU's keeps. Sharded runs take the model's own forward with all logits at once, one rank of a fake process group, and
AdamW's loop (fused and foreach steps allocate tensors of the whole size there). Not modelled: PEFT's adapters on fused
experts (`all-linear` on Mixtral and Qwen3-MoE), which hold a whole copy of a block's experts with the adapter added;
the mixtures here have adapters on attention.

These configurations are not held out: the accounting was made exact on their modules, so the table says that it adds up
over whole steps, not how it does on a family it has not seen. Steps of sharded runs are below the measured ones by what
AdamW's loop holds for a moment (twice the largest tensor), which the fused step of a real run does not.

"""

if __name__ == "__main__":
    main()
