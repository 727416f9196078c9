"""Methods side by side for one model and machine, and the tables of three introductions with ours beside them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from quatrain.planner.accounting import ROLES, model_states
from quatrain.planner.background import Line, other_figures, seven_billion, state_table
from quatrain.planner.hardware import GB, Device
from quatrain.planner.job import Job, Lora
from quatrain.planner.plan import Plan, gpus_needed

RANK = 16
NAMES = ("four-model PPO", "shared-backbone PPO", "GRPO", "GRPO, beta 0", "GRPO, LoRA", "GRPO, QLoRA")


@dataclass(frozen=True, slots=True)
class Column:
    """One method: bytes per device at its peak by component, and what it needs."""

    name: str
    plan: Plan
    gpus: int | None


def variants(job: Job) -> Iterator[tuple[str, Job]]:
    """`job` under each method; lengths, machine and micro-batch are the same."""
    plain = replace(job, lora=None, critic=None, reward=None, learned_reward=None, reference=True, method="grpo")
    adapted = replace(plain, precision="master" if plain.precision == "mixed" else plain.precision,
                      lora=job.lora or Lora(RANK), base_bits=16 if plain.bytes.compute == 2 else 32)  # fmt: skip
    jobs = (replace(plain, method="ppo"), replace(plain, method="ppo_shared"), plain, replace(plain, reference=False),
            adapted, replace(adapted, base_bits=4))  # fmt: skip
    yield from zip(NAMES, jobs, strict=True)


def columns(job: Job) -> list[Column]:
    """Every method for the model and machine of `job`."""
    return [Column(name, Plan(other), gpus_needed(other)) for name, other in variants(job)]


def comparison(job: Job) -> dict[str, Any]:
    """The comparison as plain data."""
    return {
        "methods": [
            {"name": column.name, "per_gpu_gb": column.plan.per_gpu / GB, "total_gb": column.plan.total / GB,
             "fits": column.plan.fits, "gpus_needed": column.gpus, "peak": column.plan.peak.name,
             "host_gb": column.plan.host / GB,
             "components": {name: value / GB for name, value in column.plan.peak.components.items()},
             "phases": {phase.name: phase.total / GB for phase in column.plan.phases}}
            for column in columns(job)
        ],
        **background(),
    }  # fmt: skip


def states_comparison(parameters: float, device: Device, devices: int = 1) -> dict[str, Any]:
    """The comparison of a bare parameter count: model states only."""
    found = []
    for name, method, reference in (("four-model PPO", "ppo", True), ("shared-backbone PPO", "ppo_shared", True),
                                    ("GRPO", "grpo", True), ("GRPO, beta 0", "grpo", False)):  # fmt: skip
        assert method in ROLES
        states = model_states(parameters, method, device, devices, reference=reference)
        found.append({"name": name, "per_gpu_gb": states.per_gpu / GB, "total_gb": states.total / GB,
                      "fits": states.fits, "gpus_needed": states.gpus_needed, "peak": "model states", "host_gb": 0.0,
                      "components": {part: value / GB for part, value in states.components.items()},
                      "phases": {"model states": states.per_gpu / GB}})  # fmt: skip
    return {"methods": found, **background()}


def background() -> dict[str, Any]:
    """Quoted figures with ours and the reason for each difference, in three tables."""
    return {
        "model_states": [_line(line) for line in state_table()],
        "seven_billion": [_line(line) for line in seven_billion()],
        "other_figures": [_line(line) for line in other_figures()],
    }


def _line(line: Line) -> dict[str, str]:
    return {"topic": line.topic, "quoted": line.quoted, "ours": line.ours, "reason": line.reason}
