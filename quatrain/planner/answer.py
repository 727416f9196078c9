"""A plan as plain data for tools. GB are 1e9 bytes; the keys that tools read are stable.

total_gb and components are over all training devices, at the peak (components add up to total_gb); per_gpu_gb and
phases are of one device (a phase's components add up to its per_gpu_gb); gpus_needed is the fewest devices on which the
job fits, those of an engine apart included.
"""

from collections.abc import Mapping
from typing import Any

from quatrain.planner.accounting import States
from quatrain.planner.advice import Advice, advise, together
from quatrain.planner.constants import SOURCES
from quatrain.planner.from_recipe import Asked
from quatrain.planner.hardware import GB, Device
from quatrain.planner.job import Job
from quatrain.planner.memory import cache_room, kv_cache
from quatrain.planner.plan import ALLOWANCES, Plan, gpus_needed, limits
from quatrain.planner.time import Work, step_time

MOST_ADVICE = 12


def answer(asked: Asked, *, steps: int | None = None, price: float | None = None) -> dict[str, Any]:
    """The whole plan of a job; `steps` and `price` (of a device for an hour) are for its time."""
    job = asked.job
    plan = Plan(job)
    chosen = together(job)
    return {
        "total_gb": plan.total / GB,
        "per_gpu_gb": plan.per_gpu / GB,
        "gpus_needed": gpus_needed(job),
        "fits": plan.fits,
        "components": _gb(plan.peak.components, job.devices),
        "phases": [
            {"name": phase.name, "per_gpu_gb": phase.total / GB, "components": _gb(phase.components),
             "host_gb": sum(phase.host.values()) / GB, "host_components": _gb(phase.host)}
            for phase in plan.phases
        ],
        "advice": [_advice(one) for one in advise(job)[:MOST_ADVICE]],
        "together": [one.change for one in chosen],
        "together_gb": Plan(chosen[-1].job).per_gpu / GB if chosen else None,
        "peak": {"phase": plan.peak.name, "why": plan.why},
        "bands_gb": {name: [value / GB for value in band] for name, band in plan.bands.items()},
        "host_gb": plan.host / GB,
        "limits": dict(limits(job)),
        "engine_gpus": plan.engine_gpus,
        "device": device_data(job.device, job.devices),
        "model": {"name": job.model.name, "family": job.model.family, "parameters": job.model.parameters,
                  "active": job.model.active},
        "settings": settings(asked),
        "allowances": {name: SOURCES[key].text for name, key in
                       (("fragments", "reserved"), ("context", "context_gib"), ("communication", "communication_gib"))},
        "notes": [*asked.notes, *_waves(job)],
        "time": time_data(asked, steps, price),
    }  # fmt: skip


def _waves(job: Job) -> list[str]:
    """What is said when an engine's share does not hold all completions side by side."""
    if cache_room(job) >= kv_cache(job) / job.rollout.tensor_parallel:
        return []
    return [f"{job.rollout.rows} completions take {kv_cache(job) / GB:.1f} GB of cache, the engine's share leaves "
            f"{cache_room(job) / GB:.1f} GB: they are sampled in waves"]  # fmt: skip


def time_data(asked: Asked, steps: int | None, price: float | None) -> dict[str, Any] | None:
    """Seconds of a step and of the run; None where a step's size is not known."""
    job = asked.job
    if not asked.completions:
        return None
    length = job.rollout.completion if job.online else job.batch.sequence
    work = Work(sequences=asked.completions, prompt=job.rollout.prompt if job.online else 0, completion=length,
                epochs=asked.epochs, steps=steps or asked.steps or 1, price=price,
                old_logprobs=asked.updates > 1)  # fmt: skip
    time = step_time(job, work)
    return {"seconds": dict(time.seconds), "step_s": time.step_s, "run_s": time.run_s, "steps": time.steps,
            "tokens_per_s": time.tokens_per_s, "device_hours": time.device_hours, "cost": time.cost,
            "utilisation": time.utilisation, "source": time.source,
            "sequences": asked.completions}  # fmt: skip


def states_answer(states: States, method: str, parameters: float) -> dict[str, Any]:
    """The plan of a bare parameter count: model states only, divided evenly over the devices."""
    share = _gb(states.components, 1 / states.devices)
    return {
        "total_gb": states.total / GB,
        "per_gpu_gb": states.per_gpu / GB,
        "gpus_needed": states.gpus_needed,
        "fits": states.fits,
        "components": _gb(states.components),
        "phases": [{"name": "model states", "per_gpu_gb": states.per_gpu / GB, "components": share, "host_gb": 0.0,
                    "host_components": {}}],
        "advice": [],
        "peak": {"phase": "model states", "why": "weights, gradients, master copies and moments; no activations, no "
                 "caches and no allowances are counted, and a device counts with its memory as sold"},
        "device": device_data(states.device, states.devices),
        "model": {"name": None, "family": None, "parameters": parameters, "active": None},
        "settings": {"method": method},
        "notes": ["model states only: a whole plan needs the model's config (--model)"],
    }  # fmt: skip


def device_data(device: Device, count: int) -> dict[str, Any]:
    """A device as it is shown."""
    return {"name": device.name, "count": count, "memory_gb": device.memory_gb, "usable_gb": device.usable_gb}


def settings(asked: Asked) -> dict[str, Any]:
    """The choices that a plan rests on."""
    job = asked.job
    lora = None if job.lora is None else {"rank": job.lora.rank, "targets": job.lora.targets}
    return {
        "method": job.method, "precision": job.precision, "optimizer": job.optimizer, "lora": lora,
        "base_bits": job.base_bits if job.lora else None, "sharding": f"zero{job.sharding}",
        "expert_parallel": job.expert_parallel, "tensor_parallel": job.tensor_parallel,
        "checkpointing": job.checkpointing, "attention": job.attention, "chunked_head": job.chunked_head,
        "reference": job.reference, "reward_model": job.has_reward, "engine": job.rollout.engine,
        "tokens": job.batch.tokens, "sequence": job.batch.sequence, "passes": job.batch.passes,
        "group": job.rollout.group, "rows": job.rollout.rows, "prompt": job.rollout.prompt,
        "completion": job.rollout.completion,
        "offload": [name for name, on in (("optimizer", job.offload_optimizer), ("frozen", job.offload_frozen),
                                          ("activations", job.offload_activations)) if on],
    }  # fmt: skip


def _advice(one: Advice) -> dict[str, Any]:
    return {"change": one.change, "saves_gb": one.saves / GB, "cost": one.cost, "fits": one.fits}


def _gb(parts: Mapping[str, float], times: float = 1) -> dict[str, float]:
    return {name: value * times / GB for name, value in parts.items()}


def unmeasured(component: str) -> bool:
    """True for a component that is an allowance."""
    return component in ALLOWANCES
