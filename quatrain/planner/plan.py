"""The answer to a job: its phases with what a process holds beside its tensors, the peak, whether it fits. No torch.

    allocated   what the tensors take                                        planner/memory.py
    reserved    allocated x (low, typical, high): the allocator's fragments   allowance, a band
    process     reserved (typical) + driver context + communication buffers   allowance

A plan fits when the process's typical bytes are within what the device gives a process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from quatrain.planner.hardware import GB, GIB
from quatrain.planner.job import Job
from quatrain.planner.memory import Phase, cache_room, engine_weights, kv_cache, phases

ALLOWANCES = ("fragments", "context", "communication")
ENGINE = ("engine weights", "engine reservation", "KV cache")  # of an engine's own process and allocator
MOST_DEVICES = 1 << 14


@dataclass(frozen=True)
class Plan:
    """A job with its phases; bytes per device, allowances included."""

    job: Job

    @cached_property
    def allocated(self) -> list[Phase]:
        """Phases without allowances."""
        return phases(self.job)

    @cached_property
    def phases(self) -> list[Phase]:
        """Phases with allowances: what a process holds."""
        return [with_allowances(phase, self.job) for phase in self.allocated]

    @cached_property
    def peak(self) -> Phase:
        """The phase with the most bytes; the first of equals."""
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def per_gpu(self) -> float:
        """Bytes per device at the peak, allowances included."""
        return self.peak.total

    @property
    def total(self) -> float:
        """Bytes of all training devices at the peak."""
        return self.per_gpu * self.job.devices

    @property
    def host(self) -> float:
        """Most bytes of host memory that one device's process has in use for the training state."""
        return max(sum(phase.host.values()) for phase in self.phases)

    @property
    def usable(self) -> float:
        """Bytes of the device that a process can have."""
        return self.job.device.usable_gib * GIB

    @property
    def fits(self) -> bool:
        """True when the peak is within the device's memory (and, for an engine apart, the engine in its own)."""
        return self.per_gpu <= self.usable and (self.job.rollout.engine != "apart" or self.engine_gpus > 0)

    @property
    def bands(self) -> dict[str, tuple[float, float, float]]:
        """(low, typical, high) bytes of the peak, as the allocator and the machine count them."""
        own, extra = self.job.constants, _beside(self.job)
        fixed = sum(value for name, value in self.peak.components.items() if _apart(self.job, name))
        tensors = sum(value for name, value in self.peak.components.items() if name not in ALLOWANCES) - fixed
        low, typical, high = (
            (own.reserved_low, own.reserved, own.reserved_high) if self.job.device.name != "cpu" else (1.0, 1.0, 1.0)
        )
        spread = [fixed + tensors * ratio for ratio in (low, typical, high)]
        return {
            "allocated": (fixed + tensors,) * 3,
            "reserved": (spread[0], spread[1], spread[2]),
            "process": (spread[0] + extra, spread[1] + extra, spread[2] + extra),
        }

    @cached_property
    def engine_gpus(self) -> int:
        """Devices of an engine apart: enough for its weights and cache in 90 % of their memory; 0: no such engine."""
        if self.job.rollout.engine != "apart":
            return 0
        whole = engine_weights(replace(self.job, rollout=replace(self.job.rollout, tensor_parallel=1)))
        needed = (whole + kv_cache(self.job)) / (0.9 * self.usable)
        return 1 << max(0, int(needed - 1e-9)).bit_length()

    @property
    def why(self) -> str:
        """What makes the peak, in one sentence: its phase and the largest parts of it."""
        parts = sorted(self.peak.components.items(), key=lambda part: -part[1])
        shown = ", ".join(f"{name} {value / GB:.1f}" for name, value in parts[:3])
        return f"{self.peak.name} is the peak with {self.per_gpu / GB:.1f} GB per device: {shown} GB come first"


def with_allowances(phase: Phase, job: Job) -> Phase:
    """`phase` with the allocator's fragments, the driver's context and the buffers of communication."""
    extra = {}
    if job.device.name != "cpu":
        tensors = sum(value for name, value in phase.components.items() if not _apart(job, name))
        extra["fragments"] = (job.constants.reserved - 1) * tensors
    extra["context"] = _context(job)
    if job.devices > 1:
        extra["communication"] = job.constants.communication_gib * GIB
    return replace(phase, components={**phase.components, **{name: value for name, value in extra.items() if value}})


def _apart(job: Job, name: str) -> bool:
    """True for what lies in an engine's own process, whose allocator is filled to a set share."""
    return job.rollout.engine == "colocated" and name in ENGINE


def _context(job: Job) -> float:
    if job.device.name == "cpu":
        return job.constants.process_cpu_gib * GIB
    own = job.device.context_gib
    return (job.constants.context_gib if own is None else own) * GIB


def _beside(job: Job) -> float:
    return _context(job) + (job.constants.communication_gib * GIB if job.devices > 1 else 0.0)


def gpus_needed(job: Job) -> int | None:
    """Fewest devices on which the job fits, weights sharded (stage 3) where it was not; None: none up to 2^14 do."""
    step = job.expert_parallel * job.tensor_parallel

    def fits(count: int) -> bool:
        stage = job.sharding or (3 if count > 1 else 0)
        return Plan(replace(job, devices=count * step, sharding=stage)).fits

    high = 1
    while not fits(high):
        high *= 2
        if high * step > MOST_DEVICES:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    engine = Plan(job).engine_gpus
    return high * step + engine


def largest(job: Job, change: str, most: int = 1 << 22) -> int | None:
    """The largest value of `change` (tokens, group, rows or context) with which the job fits; None: not even 1 does."""

    def fits(value: int) -> bool:
        other = varied(job, change, value)
        held = change not in ("rows", "group") or kv_cache(other) / other.rollout.tensor_parallel <= cache_room(other)
        return held and Plan(other).fits

    if not fits(1):
        return None
    low, high = 1, 2
    while high < most and fits(high):
        low, high = high, high * 2
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def varied(job: Job, change: str, value: int) -> Job:
    """`job` with another micro-batch (`tokens`), `group`, `rows` decoded side by side, or longest `context`."""
    batch, rollout = job.batch, job.rollout
    if change == "tokens":
        share = batch.logits / batch.tokens
        trained = None if batch.trained is None else max(1, round(share * value))
        return replace(job, batch=replace(batch, tokens=value, trained=trained, sequence=min(batch.sequence, value)))
    if change == "group":
        groups = max(1, rollout.rows // rollout.group)
        return replace(job, rollout=replace(rollout, group=value, rows=groups * value))
    if change == "rows":
        return replace(job, rollout=replace(rollout, rows=value, group=min(rollout.group, value)))
    completion = max(1, value - rollout.prompt)
    longer = replace(batch, sequence=value, tokens=max(batch.tokens, value))
    return replace(job, batch=longer, rollout=replace(rollout, completion=completion))


def limits(job: Job) -> Mapping[str, int | None]:
    """The largest micro-batch, and for a method that samples the largest group, rows and context, that still fit."""
    names = ["tokens", "context", *(["group", "rows"] if job.online and job.rollout.engine != "none" else [])]
    return {name: largest(job, name) for name in names}
