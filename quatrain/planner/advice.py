"""What to change so that a job fits: every single change that saves memory, with what it costs, cheapest first.

The cost is a share of a step's time where it follows from FLOPs or from bytes over a link, else it is said in words.
A change of what is learned (LoRA, no reference, another method) comes after every change of how it is computed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from quatrain.planner.hardware import GB
from quatrain.planner.job import Job, Lora
from quatrain.planner.plan import Plan, largest
from quatrain.planner.states import frozen

HOST_GB_S = 25.0  # between device and host memory (PCIe 4 x16 reaches about this); unmeasured here
RANK = 16
LEAST = 0.01  # savings below this share of the peak are not worth a line
Change = tuple[str, Job, str, float]  # what, the changed job, its cost in words, its rank (lower is cheaper)


@dataclass(frozen=True, slots=True)
class Advice:
    """One change: bytes per device that it saves at the peak, its cost, and whether it makes the job fit alone."""

    change: str
    saves: float
    cost: str
    fits: bool
    job: Job
    rank: float


def advise(job: Job) -> list[Advice]:
    """Changes that lower the peak, cheapest first; of equally cheap ones that which saves most."""
    before = Plan(job).per_gpu
    found = []
    for change, other, cost, rank in _changes(job):
        plan = Plan(other)
        saves = before - plan.per_gpu
        if saves >= LEAST * before:
            found.append(Advice(change, saves, cost, plan.fits, other, rank))
    return sorted(found, key=lambda one: (one.rank, -one.saves))


def together(job: Job) -> list[Advice]:
    """Fewest cheap changes, applied one after another, until the job fits; none when it does or nothing helps.

    A single change that is enough wins when it is no dearer than the dearest of the others.
    """
    plan, chosen = Plan(job), list[Advice]()
    while not plan.fits:
        options = [one for one in advise(plan.job) if _kind(one) not in map(_kind, chosen)]
        if not options:
            return []
        enough = [one for one in options if one.fits]
        chosen.append(enough[0] if enough else options[0])
        plan = Plan(chosen[-1].job)
    return chosen


def _kind(one: Advice) -> str:
    """A change without its numbers."""
    return re.sub(r"[\d.]+", "", one.change)


def _changes(job: Job) -> Iterator[Change]:
    yield from _head_and_attention(job)
    yield from _optimizer(job)
    yield from _activations(job)
    yield from _frozen(job)
    yield from _rollout(job)
    yield from _devices(job)
    yield from _method(job)


def _head_and_attention(job: Job) -> Iterator[Change]:
    if not job.chunked_head:
        extra = 2 * job.model.vocabulary * job.model.hidden / (8 * job.model.active)
        yield ("logits in chunks that are recomputed", replace(job, chunked_head=True),
               f"about {extra:.1%} more FLOPs of the update", 1)  # fmt: skip
    if job.attention == "eager":
        yield "fused attention (sdpa)", replace(job, attention="fused"), "none; it is faster", 0


def _optimizer(job: Job) -> Iterator[Change]:
    if job.foreach:
        yield "a fused optimizer step", replace(job, foreach=False), "none; it is faster", 0
    if job.optimizer == "adamw":
        yield ("8-bit AdamW", replace(job, optimizer="adamw_8bit"),
               "a few percent of the step; moments are rounded", 2)  # fmt: skip
    if not job.offload_optimizer and job.device.name != "cpu":
        plan = Plan(replace(job, offload_optimizer=True))
        moved = sum(value for phase in plan.allocated[-1:] for name, value in phase.host.items() if "check" not in name)
        yield ("optimizer states in host memory", plan.job,
               f"about {2 * moved / GB / HOST_GB_S:.1f} s more per update to move {moved / GB:.1f} GB there and back, "
               f"at {HOST_GB_S:.0f} GB/s", 5)  # fmt: skip


def _activations(job: Job) -> Iterator[Change]:
    if not job.checkpointing:
        yield ("gradient checkpointing", replace(job, checkpointing=True),
               "one more forward per update: 33% more FLOPs of the update", 4)  # fmt: skip
    batch = job.batch
    if batch.tokens > batch.sequence:
        most = largest(job, "tokens") or 0  # that fits: whole rows of it, else one row
        half = max(batch.sequence, min(batch.tokens // 2, most) // batch.sequence * batch.sequence)
        trained = None if batch.trained is None else max(1, batch.trained * half // batch.tokens)
        smaller = replace(batch, tokens=half, trained=trained, passes=-(-batch.passes * batch.tokens // half))
        yield (f"micro-batches of {half} tokens in place of {batch.tokens}", replace(job, batch=smaller),
               "more and smaller passes; lower utilisation of the device", 3)  # fmt: skip
    if job.checkpointing and not job.offload_activations and job.device.name != "cpu":
        store = job.model.layers * batch.tokens * job.model.hidden * job.bytes.compute
        seconds = 2 * store * batch.passes / GB / HOST_GB_S
        yield ("checkpoints of activations in host memory", replace(job, offload_activations=True),
               f"up to {seconds:.1f} s more per update at {HOST_GB_S:.0f} GB/s", 6)  # fmt: skip


def _frozen(job: Job) -> Iterator[Change]:
    waiting = sum(frozen(job).values())
    if waiting and not job.offload_frozen and job.device.name != "cpu":
        yield (f"{' and '.join(frozen(job))} in host memory between their phases", replace(job, offload_frozen=True),
               f"about {waiting / GB / HOST_GB_S:.1f} s more per step to bring {waiting / GB:.1f} GB", 3)  # fmt: skip
    if (job.frozen_bytes or job.bytes.compute) > 2 and waiting and job.device.name != "cpu":
        yield ("frozen models in 16 bits", replace(job, frozen_bytes=2),
               "none in time; the KL to the reference does not start at exactly 0", 2)  # fmt: skip


def _rollout(job: Job) -> Iterator[Change]:
    rollout = job.rollout
    if rollout.engine == "colocated" and rollout.share > 0.15:
        share = round(max(0.1, rollout.share - 0.2), 2)
        yield (f"an engine share of {share} in place of {rollout.share}",
               replace(job, rollout=replace(rollout, share=share)),
               "fewer completions side by side: sampling takes longer", 3)  # fmt: skip
        engines = replace(rollout, engine="apart")
        yield ("the engine on devices of its own", replace(job, rollout=engines),
               f"{Plan(replace(job, rollout=engines)).engine_gpus} more devices, idle in turn", 9)  # fmt: skip
    if rollout.engine != "none" and job.online and rollout.rows > rollout.group:
        rows = max(rollout.group, rollout.rows // 2 // rollout.group * rollout.group)
        yield (f"{rows} completions side by side in place of {rollout.rows}",
               replace(job, rollout=replace(rollout, rows=rows)), "sampling takes up to twice as long", 4)  # fmt: skip
    if rollout.engine in ("colocated", "apart") and rollout.cache_bytes != 1:
        yield ("an 8-bit KV cache", replace(job, rollout=replace(rollout, cache_bytes=1)),
               "none in time; logprobs of sampler and trainer differ more", 3)  # fmt: skip


def _devices(job: Job) -> Iterator[Change]:
    names = {1: "moments and master copies", 2: "these and gradients", 3: "these and weights"}
    for stage in (1, 2, 3):
        if job.devices > 1 and job.sharding < stage:
            cost = "half as much communication again" if stage == 3 else "none: the same bytes are sent"
            yield (f"ZeRO stage {stage}: {names[stage]} divided over {job.devices} devices",
                   replace(job, sharding=stage), cost, 2 + stage / 10)  # fmt: skip
    if job.device.name != "cpu":
        more = replace(job, devices=job.devices * 2, sharding=job.sharding or 3)
        yield (f"{more.devices} devices in place of {job.devices}" + ("" if job.sharding else ", weights sharded"),
               more, "twice the devices; each step about half as long", 8)  # fmt: skip


def _method(job: Job) -> Iterator[Change]:
    if job.lora is None:
        yield (f"LoRA of rank {RANK}", replace(job, lora=Lora(RANK), base_bits=16 if job.bytes.compute == 2 else 32),
               "another method: only adapters are trained (a higher learning rate)", 10)  # fmt: skip
    elif job.base_bits != 4 and job.device.name != "cpu":
        yield ("QLoRA: the base in 4 bits", replace(job, base_bits=4),
               "weights are unpacked in every pass (10 to 40% slower reported); the base is rounded", 11)  # fmt: skip
    if job.method == "ppo":
        yield ("PPO with a value head on the policy's backbone", replace(job, method="ppo_shared", critic=None),
               "another method: policy and values share their weights; faster", 12)  # fmt: skip
        yield ("GRPO in place of PPO", replace(job, method="grpo", critic=None, learned_reward=job.has_reward),
               "another method: no critic, groups of completions instead; faster", 13)  # fmt: skip
    if job.reference and job.lora is None and job.method != "dpo" and job.online:
        yield ("no reference (KL coefficient 0)", replace(job, reference=False),
               "another objective: nothing holds the policy near its start; faster", 12)  # fmt: skip
