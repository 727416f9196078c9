"""Bytes that stay on a device between the phases of a step: weights, master copies, moments, frozen models. No torch.

ZeRO / FSDP stage 1 divides moments and master copies over the devices, 2 gradients too, 3 weights too.
Expert parallelism divides the routed experts, tensor parallelism everything.
"""

from collections.abc import Mapping
from types import MappingProxyType

from quatrain.planner.architecture import Architecture
from quatrain.planner.job import Job

NF4_BLOCK, NF4_DOUBLE_BITS = 64, 0.127  # weights that share a scale; bits a weight of double-quantised scales
Components = dict[str, float]
NO_PARTS: Mapping[str, float] = MappingProxyType({})


def shard(job: Job, model: Architecture, bytes_per_parameter: float, stage: int) -> float:
    """Bytes per device of something that ZeRO stage `stage` divides (experts by expert parallelism below that)."""
    if job.sharding >= stage:
        return model.parameters * bytes_per_parameter / job.devices
    dense = model.parameters - model.experts
    return (dense + model.experts / job.expert_parallel) * bytes_per_parameter / job.tensor_parallel


def trained(job: Job, model: Architecture) -> float:
    """Trained parameters: all, or those of the adapters."""
    if job.lora is None:
        return float(model.parameters)
    return float(model.lora(job.lora.rank, job.lora.targets) * job.lora.slots)


def base_bytes(job: Job, model: Architecture) -> float:
    """Bytes per device of a frozen base under adapters.

    NF4 packs the linear layers of the blocks into 4 bits and a float32 scale per 64 (twice quantised: 0.127 bit).
    """
    if job.base_bits != 4:
        return shard(job, model, job.base_bits / 8, 3)
    roles = ("attention", "mlp", "expert") if job.packs_experts else ("attention", "mlp")
    packed = sum(weight.d_in * weight.d_out * weight.count for weight in model.weights if weight.blocks
                 and weight.role in roles)  # fmt: skip
    per = 0.5 + (NF4_DOUBLE_BITS / 8 if job.double_quant else 4 / NF4_BLOCK)
    bytes_ = packed * per + (model.parameters - packed) * job.rest_bytes
    return bytes_ / (job.devices if job.sharding == 3 else job.tensor_parallel)


def trainable(job: Job, model: Architecture, prefix: str = "") -> tuple[Components, Components]:
    """Resident bytes per device of a trained model, and those of it that wait in host memory."""
    parts: Components = {}
    if job.lora:
        adapters = trained(job, model)
        parts[prefix + "weights"] = base_bytes(job, model)
        parts[prefix + "adapters"] = adapters * job.lora.adapter_bytes / (job.devices if job.sharding == 3 else 1)
        parts[prefix + "optimizer moments"] = adapters * job.moments / (job.devices if job.sharding >= 1 else 1)
        kept = adapters * job.lora.adapter_bytes * job.lora.frozen_copies
        parts[prefix + "reference adapters"] = kept / (job.devices if job.sharding == 3 else 1)
    else:
        parts[prefix + "weights"] = shard(job, model, job.bytes.weights, 3)
        parts[prefix + "master weights"] = shard(job, model, job.bytes.master, 1)
        parts[prefix + "optimizer moments"] = shard(job, model, job.moments, 1)
    away = {prefix + "optimizer moments", prefix + "master weights"} if job.offload_optimizer else set()
    here = {name: value for name, value in parts.items() if value and name not in away}
    return here, {name: value for name, value in parts.items() if value and name in away}


def frozen(job: Job) -> Components:
    """Bytes per device of the models that are not trained, where they are on the device."""
    width = job.frozen_bytes or job.bytes.compute
    parts = {}
    if job.reference and job.lora is None and job.method in ("grpo", "ppo", "ppo_shared", "dpo"):
        parts["reference"] = shard(job, job.model, width, 3)
    if job.has_reward:
        parts["reward model"] = job.reward_models * shard(job, job.reward or job.model, width, 3)
    return parts


def resident(job: Job) -> tuple[Components, Components]:
    """Everything that stays between phases: bytes per device, and bytes that wait in host memory per device."""
    device, host = trainable(job, job.model)
    if job.method == "ppo":
        more, away = trainable(job, job.critic or job.model, "critic ")
        device, host = {**device, **more}, {**host, **away}
    still = frozen(job)
    if job.offload_frozen:
        return device, {**host, **still}
    return {**device, **still}, host


def gathered(job: Job, model: Architecture) -> float:
    """Whole layers that sharded weights need at a time: a block, the prefetched one, embedding and head, 16 bit.

    At most what a device lacks; on one device only where weights are wider than the compute type they are cast to.
    """
    wider = job.bytes.weights > job.bytes.compute
    if job.sharding < 3 or (job.replicas == 1 and not wider):
        return 0.0
    if job.sharding_unit == "model":
        return float(model.parameters * job.bytes.compute)
    ends = model.role("embedding") + model.role("head")
    whole = (2 * block_parameters(job, model) + ends) * job.bytes.compute / job.tensor_parallel
    lacking = model.parameters * job.bytes.compute / job.tensor_parallel * (1 if wider else 1 - 1 / job.replicas)
    return min(whole, lacking)


def block_parameters(job: Job, model: Architecture) -> float:
    """Parameters of the largest block that one device gathers; experts that are divided are not gathered."""
    if job.expert_parallel == 1:
        return float(model.largest_layer)
    return float(sum(w.parameters // w.blocks for w in model.weights if w.blocks and w.role != "expert"))


def gradient_bytes(job: Job, model: Architecture) -> float:
    """Gradients per device of what is trained; a step within the backward pass holds one block's at a time."""
    if job.step_in_backward:
        return block_parameters(job, model) * float(job.bytes.gradients) / job.tensor_parallel
    if job.lora:
        return trained(job, model) * job.lora.adapter_bytes / (job.devices if job.sharding >= 2 else 1)
    return shard(job, model, job.bytes.gradients, 2)


def step_copy(job: Job, model: Architecture) -> float:
    """Bytes that a `foreach` optimizer step adds: a copy of what it steps; a fused one adds nothing."""
    if not job.foreach or job.offload_optimizer or job.step_in_backward:
        return 0.0
    if job.lora:
        return gradient_bytes(job, model)
    return shard(job, model, job.bytes.master or job.bytes.weights, 1)
