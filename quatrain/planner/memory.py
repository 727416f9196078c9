"""Bytes on one device in every phase of a step, component by component. No torch.

    resident   what stays between phases: weights, master copy, moments, frozen models       (planner/states.py)
    phase      resident + what the phase adds (cache, activations, logits, gradients, gathered layers, temporaries)

These are allocated bytes: what the tensors take. What a process holds beside them (fragments, driver context,
communication buffers) is added in `planner/plan.py` as an allowance, labelled unmeasured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from quatrain.planner.activations import cast_weights, forward_width, stream_width
from quatrain.planner.architecture import Architecture
from quatrain.planner.hardware import GIB
from quatrain.planner.job import Job
from quatrain.planner.states import (
    NO_PARTS,
    Components,
    frozen,
    gathered,
    gradient_bytes,
    resident,
    shard,
    trained,
)
from quatrain.planner.update import cast_head, scoring_logit_bytes, update_moments

__all__ = ["Components", "Phase", "frozen", "gathered", "gradient_bytes", "kv_cache", "peak", "phases", "shard",
           "trained"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Phase:
    """A moment of a step with its bytes per device, and what lies in host memory per device then."""

    name: str
    components: Mapping[str, float]
    host: Mapping[str, float] = field(default_factory=lambda: NO_PARTS)

    @property
    def total(self) -> float:
        """Allocated bytes per device."""
        return sum(self.components.values())


def phases(job: Job) -> list[Phase]:
    """Every phase of a step in order; the largest is the peak."""
    still, host = resident(job)
    found = [_load(job)]
    if job.online:
        found += [*_rollout(job, still, host), *_scoring(job, still, host)]
    elif job.method == "dpo" and job.reference:
        found.append(_logprobs(job, still, host))
    if job.method == "ppo":
        found += _update(job, "critic", job.critic or job.model, still, host)
    found += _update(job, "policy", job.model, still, host)
    if job.online and job.rollout.engine in ("colocated", "apart"):
        found.append(_sync(job, still, host))
    found.append(Phase("checkpoint", still, {**host, "checkpoint": checkpoint_bytes(job)}))
    return found


def peak(job: Job) -> Phase:
    """The phase with the most bytes; the first of equals."""
    return max(phases(job), key=lambda phase: phase.total)


def _phase(name: str, still: Components, host: Components, **adds: float) -> Phase:
    """`still` and what the phase adds; names in `adds` have _ for a space."""
    more = {name.replace("_", " "): value for name, value in adds.items() if value}
    return Phase(name, {**still, **more}, host)


def _load(job: Job) -> Phase:
    """Weights alone; the host holds one model as it is read from disk, which on a CPU is where it is packed too."""
    weights = {name: value for name, value in resident(job)[0].items() if not name.endswith("moments")}
    frozen_width = job.rest_bytes if job.base_bits == 4 else job.base_bits // 8
    read = float(job.model.parameters * (job.bytes.weights if job.lora is None else frozen_width))
    if job.base_bits == 4 and job.device.name == "cpu":
        weights["weights before packing"] = max(read - weights["weights"], 0.0)
    return Phase("load", weights, {"weights": read})


def checkpoint_bytes(job: Job) -> float:
    """Weights, master copy and moments of what is trained, as they are written, divided over sharded devices."""
    total = 0.0
    for model in [job.model, *([job.critic or job.model] if job.method == "ppo" else [])]:
        per = job.lora.adapter_bytes if job.lora else job.bytes.weights + job.bytes.master
        total += trained(job, model) * (per + job.moments)
    return total / (job.devices if job.sharding else 1)


def _rollout(job: Job, still: Components, host: Components) -> list[Phase]:
    """Sampling, and for a colocated engine its waking while the training state is still there."""
    rollout, model = job.rollout, job.model
    if rollout.engine in ("none", "apart"):
        return []
    if rollout.engine == "in_process":
        return [_own_rollout(job, still, host)]
    weights, room = engine_weights(job), cache_room(job)
    logits = rollout.rows * model.vocabulary * job.constants.sampling_engine
    cache = min(kv_cache(job) / rollout.tensor_parallel, room)
    reserved = room - cache
    return [
        _phase("wake the engine", still, host, engine_weights=weights, weights_in_transit=in_transit(job)),
        _phase("rollout", still, host, engine_weights=weights, KV_cache=cache, logits=logits,
               engine_reservation=reserved),
    ]  # fmt: skip


def cache_room(job: Job) -> float:
    """Bytes per device that an engine's share leaves for its cache; an engine that is not colocated has no such bound.

    At least one completion's: an engine with less does not start.
    """
    rollout = job.rollout
    if rollout.engine != "colocated":
        return float("inf")
    logits = rollout.rows * job.model.vocabulary * job.constants.sampling_engine
    one = kv_cache(replace(job, rollout=replace(rollout, rows=1, group=1))) / rollout.tensor_parallel
    return max(one, rollout.share * job.device.usable_gib * GIB - engine_weights(job) - logits)


def _own_rollout(job: Job, still: Components, host: Components) -> Phase:
    """The in-process engine: reading prompts, or the last token of the longest row, whichever holds more.

    A decoding step repeats one layer's keys and values for every query head (a mask is given).
    """
    rollout, model, width = job.rollout, job.model, job.bytes.compute
    cache, groups = kv_cache(job), -(-rollout.rows // rollout.group)
    logits = rollout.rows * model.vocabulary * job.constants.sampling_own
    repeated = 2.0 * model.heads * model.head_dim if model.heads != model.kv_heads else 0.0
    context = rollout.prompt + rollout.completion
    decoding = rollout.rows * (context * repeated * width + forward_width(job, model))
    reading = groups * rollout.prompt * (forward_width(job, model) + repeated * width)
    first = cache * groups / rollout.rows + reading
    cast = cast_weights(job, model) + cast_head(job, model)  # one context of autocast covers the whole wave
    if first > cache + max(decoding, logits):
        return _phase("rollout", still, host, KV_cache=cache * groups / rollout.rows, activations=reading + cast)
    if decoding > logits:
        return _phase("rollout", still, host, KV_cache=cache, activations=decoding + cast)
    return _phase("rollout", still, host, KV_cache=cache, logits=logits, activations=cast)


def inference(job: Job) -> Phase:
    """A model that only samples, at its last token: weights in the compute type, the cache, one token's logits.

    Reading a long prompt can take more for a moment; what public tables of generation state does not include it.
    """
    weights = {"weights": shard(job, job.model, job.bytes.compute, 3)}
    logits = job.rollout.rows * job.model.vocabulary * job.constants.sampling_engine
    return _phase("decoding", weights, {}, KV_cache=kv_cache(job), logits=logits)


def engine_weights(job: Job) -> float:
    """Bytes per device of an engine's own 16-bit copy of the policy."""
    return job.model.parameters * 2.0 / job.rollout.tensor_parallel


def kv_cache(job: Job) -> float:
    """Bytes: width per token and layer x tokens in whole blocks. A paged engine holds a group's prompt once, the
    in-process engine a copy for every row."""
    rollout, model = job.rollout, job.model
    per_token = model.kv_width * model.layers * (rollout.cache_bytes or job.bytes.compute)
    if rollout.engine == "in_process":
        return float(rollout.rows * (rollout.prompt + rollout.completion) * per_token)
    groups = -(-rollout.rows // rollout.group)
    blocks = groups * -(-rollout.prompt // rollout.block) + rollout.rows * -(-rollout.completion // rollout.block)
    return float(blocks * rollout.block * per_token)


def in_transit(job: Job) -> float:
    """Weights on their way from trainer to engine: gathered layers, or the largest tensor."""
    return gathered(job, job.model) or max(w.d_in * w.d_out for w in job.model.weights) * float(job.bytes.compute)


def _scoring(job: Job, still: Components, host: Components) -> list[Phase]:
    """Log-probabilities without gradient, then the reward model and the values."""
    found = [_logprobs(job, still, host)]
    parts = frozen(job)
    if "reward model" in parts:
        found.append(_headless(job, "reward", job.reward or job.model, _with(job, still, "reward model"), host))
    if job.method == "ppo":
        found.append(_headless(job, "values", job.critic or job.model, still, host))
    return found


def _with(job: Job, still: Components, name: str) -> Components:
    """`still` and a frozen model that waits in host memory otherwise."""
    part = frozen(job).get(name)
    return {**still, name: part} if part and job.offload_frozen else still


def _logprobs(job: Job, still: Components, host: Components) -> Phase:
    """A block's forward pass, or the logits when the blocks are done, whichever holds more."""
    passing = job.batch.tokens * forward_width(job, job.model) / job.tensor_parallel
    hidden = (job.batch.tokens + job.batch.logits) * job.model.hidden * stream_width(job) / job.tensor_parallel
    logits = scoring_logit_bytes(job, job.model)
    passing += cast_weights(job, job.model)
    hidden += cast_head(job, job.model)
    adds = {"activations": hidden, "logits": logits} if hidden + logits > passing else {"activations": passing}
    return _phase("old and reference logprobs", _with(job, still, "reference"), host,
                  gathered_layers=gathered(job, job.model), **adds)  # fmt: skip


def _headless(job: Job, name: str, model: Architecture, still: Components, host: Components) -> Phase:
    passing = job.batch.tokens * forward_width(job, model) / job.tensor_parallel
    return _phase(name, still, host, activations=passing, gathered_layers=gathered(job, model))


def _update(job: Job, role: str, model: Architecture, still: Components, host: Components) -> list[Phase]:
    """The moments that can be the peak of an update: the loss, the backward pass, the optimizer step."""
    return [Phase(f"{role} update: {name}", {**still, **{k: v for k, v in parts.items() if v}}, host)
            for name, parts in update_moments(job, role, model).items()]  # fmt: skip


def _sync(job: Job, still: Components, host: Components) -> Phase:
    awake = engine_weights(job) if job.rollout.engine == "colocated" else 0.0
    return _phase("weight sync", still, host, engine_weights=awake, weights_in_transit=in_transit(job))
