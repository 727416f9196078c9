"""Public step times against the planner's: FLOPs of a token, then seconds with each source left out in turn.

    python benchmarks/planner_time.py TIME.jsonl            the tables
    python benchmarks/planner_time.py TIME.jsonl --write    and docs/results/planner-time.md
    python benchmarks/planner_time.py TIME.jsonl --priors   the priors of planner/time.py as Python

Utilisations are medians of the other sources' rows, by the same rule that `planner/time.py` applies to all of them.
Rows in 8 bits are counted in the first table only: the planner plans none.
"""

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from quatrain.errors import SettingError
from quatrain.planner.architecture import Architecture, read_architecture
from quatrain.planner.hardware import Device, find_device
from quatrain.planner.job import Job, Lora, Rollout
from quatrain.planner.models import find_model
from quatrain.planner.time import (
    Prior,
    Work,
    attention_flops,
    hardware_flops,
    kind_of,
    prior,
    step_time,
    sync_time,
    training_flops,
)

RESULT = Path(__file__).parents[1] / "docs" / "results" / "planner-time.md"
MPT = {"1b": (24, 2048), "3b": (32, 2560), "7b": (32, 4096), "13b": (40, 5120), "30b": (48, 7168), "70b": (80, 8192)}
DEVICES = {
    "a100-40": "a100-40g", "a100": "a100-80g", "h100": "h100-80g", "h200": "h200-141g", "b200": "b200-180g",
    "gb200": "gb200-186g", "h20": "h20-96g", "l40s": "l40s-48g", "t4": "t4-16g", "a6000": "a6000-48g",
    "4090": "rtx4090-24g", "rtx4090": "rtx4090-24g", "mi300x": "mi300x-192g",
}  # fmt: skip
NAMES = {"Qwen3-235B": "Qwen3-235B-A22B", "Qwen3-30B3A": "Qwen3-30B-A3B", "LLAMA3.1_8B": "Llama-3.1-8B",
         "DeepSeek V3": "DeepSeek-V3"}  # fmt: skip
ADAPTERS = ("lora", "ia3", "tuning", "vera", "loha")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Training:
    """A row of training with what the planner makes of it."""

    source: str
    model: Architecture
    device: Device
    lora: Lora | None
    checkpointing: bool
    length: int
    rate: float  # tokens a second and device
    eight_bit: bool
    stated: float | None  # TFLOP/s a device that the source states for the model
    parameters: int | None

    @property
    def kind(self) -> str:
        return kind_of(self.model, self.lora)

    @property
    def share(self) -> float:
        """Share of the datasheet's rate, recomputed FLOPs included."""
        flops = hardware_flops(self.model, self.length, self.lora, self.checkpointing)
        return flops * self.rate / (self.device.tflops * 1e12)

    @property
    def ratio(self) -> float | None:
        """Our FLOPs over the stated ones; `parameters` counts all, as the source does."""
        if not self.stated:
            return None
        ours = training_flops(self.model, self.length, self.lora)
        if self.parameters:
            ours = 6.0 * self.parameters + 3 * attention_flops(self.model, self.length)
        return ours * self.rate / 1e12 / self.stated


def source_of(row: Row) -> str:
    """The project a row comes from."""
    text = re.sub(r"^(github|pypi):", "", str(row["source"]))
    return re.split(r"[@ ]", text)[0]


def device_of(row: Row) -> Device:
    """The device that a row names."""
    name = str(row["gpu"]).lower().replace("_", "-")
    for word in ("nvidia ", "tesla ", "rtx "):
        name = name.replace(word, "")
    for start, known in DEVICES.items():
        if name.startswith(start):
            return find_device(known)
    raise SettingError("gpu", row["gpu"], "a known device", "the row is left out")


def model_of(row: Row) -> Architecture:
    """The model that a row names; MPT has GPT-2's matrices, biases apart."""
    if not str(row["model"]).startswith("MPT"):
        return find_model(str(row["model"]))[0]
    layers, hidden = MPT[row["model"][4:]]
    config = {"model_type": "gpt2", "vocab_size": 50368, "n_embd": hidden, "n_layer": layers, "n_head": hidden // 128}
    return read_architecture({**config, "n_positions": row["seq_len"]}, row["model"])


def training_of(row: Row) -> Training:
    """Raises SettingError for a row without a rate, or of an unknown model or device."""
    rate = row.get("tokens_per_s_per_gpu") or (row.get("tokens_per_s_total") or 0) / row["num_gpus"]
    if not rate:
        raise SettingError("tokens_per_s", None, "a rate", "the row is left out")
    if "offload" in str(row.get("optimizer")) or "unpacked" in str(row.get("note")):
        raise SettingError("setting", "offload or padding", "time on the device over full rows", "the row is left out")
    method = str(row.get("method", "")).lower()
    found = Training(
        source=source_of(row), model=model_of(row), device=device_of(row), rate=rate,
        lora=Lora(row.get("lora_rank") or 16) if any(word in method for word in ADAPTERS) else None,
        checkpointing=row.get("grad_checkpoint") in (True, "full", "Recompute", "Offload"),
        length=row.get("seq_len") or 2048, eight_bit=bool(row.get("fp8")) or "fp8" in str(row.get("precision")).lower(),
        stated=row.get("model_tflops_per_gpu"), parameters=row.get("params"),
    )  # fmt: skip
    least = training_flops(found.model, found.length / 2, found.lora) * rate / 1e12  # causal: half of the pairs
    most = 0.9 * found.device.tflops  # no public matrix product reaches more of a datasheet's rate
    if least > most and not found.eight_bit:
        raise SettingError("tokens_per_s", f"{rate:.0f} ({least:.0f} TFLOP/s)", f"at most {most:.0f} TFLOP/s",
                           "the row is left out")  # fmt: skip
    return found


def fit(rows: Sequence[Training]) -> list[Prior]:
    """A prior for every device, kind and checkpointing: the median."""
    groups: dict[tuple[str, str, bool], list[Training]] = defaultdict(list)
    for row in rows:
        groups[row.device.name, row.kind, row.checkpointing].append(row)
    found = []
    for (device, kind, checkpointing), group in sorted(groups.items()):
        names = ", ".join(sorted({row.source.rpartition("/")[2] for row in group}))
        share = round(median(row.share for row in group), 2)
        found.append(Prior(device, kind, checkpointing, share, f"{len(group)} row{'s' * (len(group) > 1)}: {names}"))
    return found


def held_out(rows: Sequence[Training]) -> list[tuple[Training, float]]:
    """Every row with the error of its seconds, (predicted - measured) / measured, its source left out of the fit."""
    found = []
    for source in sorted({row.source for row in rows}):
        priors = fit([row for row in rows if row.source != source])
        for row in rows:
            if row.source == source:
                found.append((row, row.share / prior(row.device, row.kind, row.checkpointing, priors).share - 1))
    return found


def online(rows: Sequence[Row]) -> list[tuple[str, float, float]]:
    """(label, predicted, measured seconds) of whole steps of reinforcement learning whose setting is known."""
    found = []
    for row in rows:
        if "rl step" not in row["phase"] or not row.get("rollout_batch") or not row.get("mean_seq"):
            continue
        if row.get("policy") != "On policy" or "fp8" in str(row["precision"]).lower():
            continue
        model = find_model(NAMES.get(row["model"], row["model"]))[0]
        ways = int(str(row["generation_tp_pp"]).strip("[]").split(",")[0])
        rollout = Rollout("colocated", rows=512, group=16, prompt=100, tensor_parallel=ways)
        job = Job(model=model, method="grpo", device=device_of(row), devices=row["num_gpus"], precision="master",
                  sharding=3, checkpointing=True, rollout=rollout)  # fmt: skip
        work = Work(sequences=row["rollout_batch"], prompt=100, completion=row["mean_seq"] - 100,
                    longest=row["max_seq"] - 100)  # fmt: skip
        label = f"{row['model']}, {row['num_gpus']} x {row['gpu']}, {row['mean_seq']} of {row['max_seq']} tokens"
        found.append((label, step_time(job, work).step_s, row["step_time_s"]))
    return found


def syncs(rows: Sequence[Row]) -> list[tuple[str, float, float]]:
    """(label, predicted, measured seconds) of weight syncs; they are what the rates were read from."""
    found = []
    for row in rows:
        if row["phase"] == "weight sync":
            job = Job(model=model_of(row), method="grpo", device=device_of(row), rollout=Rollout("colocated"))
            found.append((str(row["model"]), sync_time(job), row["step_time_s"]))
    return found


def report(rows: Sequence[Row]) -> str:
    """Every table as Markdown."""
    trainings, left_out = [], []
    for row in rows:
        if row["phase"].startswith("train"):
            try:
                trainings.append(training_of(row))
            except SettingError as error:
                reason = str(error).partition("; ")[0]
                left_out.append(f"{row['model']}, {row['gpu']} ({source_of(row)}): {reason}")
    ratios: dict[str, list[float]] = defaultdict(list)
    for item in trainings:
        if item.ratio:
            ratios[item.source].append(item.ratio)
    planned = [item for item in trainings if not item.eight_bit]
    errors: dict[str, list[float]] = defaultdict(list)
    same: dict[str, list[float]] = defaultdict(list)
    everything = fit(planned)
    for item, error in held_out(planned):
        errors[item.source].append(error)
        same[item.source].append(item.share / prior(item.device, item.kind, item.checkpointing, everything).share - 1)
    whole = [error for group in errors.values() for error in group]
    lines = ["## FLOPs of a token", "", "Ours over what the source states.", "",
             "| source | rows | lowest | mean | highest |", "|---|---|---|---|---|"]  # fmt: skip
    lines += [f"| {source} | {len(group)} | {min(group):.4f} | {mean(group):.4f} | {max(group):.4f} |"
              for source, group in sorted(ratios.items())]  # fmt: skip
    lines += ["", "## Seconds of a training step", "",
              f"{len(planned)} rows; the utilisation is the median of the other sources' rows. Mean of the absolute "
              f"errors {mean(map(abs, whole)):.0%}, median {median(map(abs, whole)):.0%}.", "",
              "| source left out | rows | mean abs. error | median | worst | with the source in the fit |",
              "|---|---|---|---|---|---|"]  # fmt: skip
    lines += [f"| {source} | {len(group)} | {mean(map(abs, group)):.0%} | {median(map(abs, group)):.0%} | "
              f"{max(group, key=abs):+.0%} | {mean(map(abs, same[source])):.0%} |"
              for source, group in sorted(errors.items(), key=lambda entry: -mean(map(abs, entry[1])))]  # fmt: skip
    for title, pairs in (("Whole steps of reinforcement learning", online(rows)), ("Weight sync", syncs(rows))):
        lines += ["", f"## {title}", "", "| setting | predicted s | measured s | error |", "|---|---|---|---|"]
        lines += [f"| {label} | {ours:.1f} | {theirs:.1f} | {ours / theirs - 1:+.0%} |"
                  for label, ours, theirs in sorted(pairs, key=lambda pair: -abs(pair[1] / pair[2] - 1))]  # fmt: skip
    lines += ["", "## Left out", "", *(f"- {line}" for line in sorted(set(left_out))), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--priors", action="store_true")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.file.read_text(encoding="utf-8").splitlines()]
    if arguments.priors:
        known = []
        for row in rows:
            try:
                known += [training_of(row)] if row["phase"].startswith("train") else []
            except SettingError:
                continue
        for item in fit([item for item in known if not item.eight_bit]):
            text = f'    Prior("{item.device}", "{item.kind}", {item.checkpointing}, {item.share:g}, "{item.source}"),'
            print(text)
        return
    text = report(rows)
    print(text)
    if arguments.write:
        RESULT.write_text(INTRODUCTION + text, encoding="utf-8")


INTRODUCTION = """# The planner's time against public runs

2026-11-30. Made by `python benchmarks/planner_time.py TIME.jsonl --write` from a file of public measurements (a row:
source, phase, model, device, setting, tokens a second or seconds). Errors are (predicted - measured) / measured of
the seconds. Utilisations differ by a factor of five between frameworks on the same device, so seconds before a first
step are good to a factor and not to a percentage; after it, its own utilisation replaces the prior.

"""

if __name__ == "__main__":
    main()
