"""What an update adds to a device's memory at the moments that can be its peak. No torch.

    loss       the forward pass: all that blocks keep, and the logits with their float32 copy
    backward   the largest of
      head       everything kept, the logits with their gradients, and with several chunks the head's own gradient
      last       everything kept but the logits, and the last block's gradients under way
      first      the first block's gradients under way, and the gradients of all others
      lookup     all gradients, and for a tied embedding three of its size: head's, lookup's, their sum
    step       gradients, and what the optimizer holds for a moment

Counted on transformers' modules under fake tensors (`benchmarks/planner_fake.py` measures whole steps). A block under
way holds, beside what it kept: gradients of its MLP's three (two) wide numbers less the one freed, and that of the
residual stream; with checkpointing also the block itself, recomputed.
"""

from collections.abc import Mapping

from quatrain.planner.activations import (
    FUSED_GELU,
    autocast,
    cast_weights,
    ends,
    final_norm,
    kept_per_token,
    selective_per_token,
    stream_width,
)
from quatrain.planner.architecture import Architecture
from quatrain.planner.job import Job
from quatrain.planner.states import Components, block_parameters, gathered, gradient_bytes, step_copy

ENTROPY_LOGITS = float(1 << 24)  # ops/logprobs.py CHUNK_ELEMENTS: logits whose entropy is taken at a time
NORM_BYTES = 16.0  # float32 temporaries of a norm's backward pass, a number


def logit_bytes(job: Job, model: Architecture, gradient: bool) -> float:
    """Bytes of logits and what is computed from them; a chunked head holds one chunk of them at a time."""
    own = job.constants
    if gradient:
        per_logit = own.logits_grad_wide if job.logit_bytes is None else job.logit_bytes
    else:
        per_logit = own.logits_score_16 if job.bytes.compute == 2 else own.logits_score_32
    if job.bytes.compute == 8 and job.logit_bytes is None:
        per_logit *= 2
    if gradient and job.logit_bytes is None and model.family == "gemma2":
        per_logit += job.bytes.compute  # its logits are capped, and both are kept
    return per_logit * _at_once(job, model) / job.tensor_parallel


def forward_logit_bytes(job: Job, model: Architecture) -> float:
    """Bytes of logits in a forward pass: 16-bit ones and their float32 copy (float32 ones have none), and the entropy
    of a piece."""
    count = _at_once(job, model) / job.tensor_parallel
    if _in_chunks(job, model):  # recomputed in the backward pass, so nothing of them is kept
        return _logit_width(job) * count
    return _logit_width(job) * count + _entropy_bytes(job, count) + cast_head(job, model)


def scoring_logit_bytes(job: Job, model: Architecture) -> float:
    """The same without gradient: the float32 copy is gone when the entropy is taken."""
    if job.logit_bytes is not None:
        return logit_bytes(job, model, gradient=False)
    count = _at_once(job, model) / job.tensor_parallel
    return max(_logit_width(job) * count, job.bytes.compute * count + _entropy_bytes(job, count))


def _logit_width(job: Job) -> float:
    return 6.0 if job.bytes.compute == 2 else float(job.bytes.compute)


def _entropy_bytes(job: Job, count: float) -> float:
    """Log-probabilities, probabilities, chosen values, products of a piece; 16-bit logits are raised for it again."""
    wide = {2: 20.0, 4: 16.0, 8: 32.0}[job.bytes.compute]
    return wide * min(count, ENTROPY_LOGITS)


def _in_chunks(job: Job, model: Architecture) -> bool:
    return job.chunked_head and job.batch.logits * model.vocabulary > job.constants.chunk_logits


def cast_head(job: Job, model: Architecture) -> float:
    """Autocast's 16-bit copy of the head's weight."""
    wide = autocast(job) and stream_width(job) == 4
    return 2.0 * model.vocabulary * model.hidden / job.tensor_parallel if wide else 0.0


def _at_once(job: Job, model: Architecture) -> float:
    count = float(job.batch.logits * model.vocabulary)
    return min(count, float(job.constants.chunk_logits)) if job.chunked_head else count


def update_moments(job: Job, role: str, model: Architecture) -> dict[str, Mapping[str, float]]:
    """Components that `loss`, `backward` and `step` add to what stays; `role` is policy or critic."""
    prefix = "" if role == "policy" else "critic "
    has_head = role == "policy" and job.method != "reward_model"
    gradients = gradient_bytes(job, model)
    ends_only = {"gathered layers": gathered_ends(job, model)}
    wide = {"gathered layers": gathered(job, model)}
    earlier = {prefix + "gradients": gradients} if job.batch.passes > 1 else {}
    kept = kept_bytes(job, model)
    logits = {"logits": forward_logit_bytes(job, model)} if has_head and job.logit_bytes is None else {}
    moments = _backward(job, model, has_head, kept)
    backward = []
    for name, moment in moments.items():
        own = min(moment.pop("gradients"), gradients)
        named = {prefix + "gradients": gradients if earlier else own}
        layers = wide if name in ("last", "first") else ends_only
        backward.append({**moment, **layers, **{name: size for name, size in named.items() if size}})
    loss = [{**earlier, **wide, "activations": kept}, {**earlier, **ends_only, "activations": kept, **logits}]
    return {
        "loss": max(loss, key=lambda parts: sum(parts.values())),
        "backward": max(backward, key=lambda parts: sum(parts.values())),
        "step": {prefix + "gradients": gradients, "optimizer step": step_copy(job, model)},
    }


def gathered_ends(job: Job, model: Architecture) -> float:
    """Whole embedding and head of sharded weights, which stay from the forward pass to the end of the backward one."""
    ends = (model.role("embedding") + model.role("head")) * job.bytes.compute / job.tensor_parallel
    return min(gathered(job, model), ends)


def kept_bytes(job: Job, model: Architecture) -> float:
    """What the forward pass keeps for the backward pass, logits apart."""
    tokens = job.batch.tokens / job.tensor_parallel
    if not job.checkpointing:
        blocks = 1 if job.offload_activations else model.layers
        return blocks * _block(job, model) + cast_weights(job, model) + ends(job, model)
    whole = job.checkpointing != "selective"
    per_token = model.hidden * stream_width(job) if whole else selective_per_token(job, model)
    return (0.0 if job.offload_activations else model.layers * tokens * per_token) + ends(job, model)


def _block(job: Job, model: Architecture) -> float:
    tokens = job.batch.tokens / job.tensor_parallel
    return tokens * kept_per_token(job, model, job.lora) * (job.constants.compiled if job.compiled else 1.0)


def _backward(job: Job, model: Architecture, has_head: bool, kept: float) -> dict[str, Components]:
    """Activations, logits, whole gradients in transit and gradients at each moment of the backward pass."""
    tokens, width, stream = job.batch.tokens / job.tensor_parallel, job.bytes.compute, stream_width(job)
    trained = job.lora is None
    gradients, number = gradient_bytes(job, model), float(job.bytes.gradients if trained else 0)
    embedding = number * model.vocabulary * model.hidden / job.tensor_parallel
    head = embedding if has_head else 0.0
    block, cast = _block(job, model), cast_weights(job, model)
    inside = tokens * (max(_wide(job, model), _scores(job, model)) + stream * model.hidden)
    norm = tokens * (NORM_BYTES + width) * model.hidden
    freed = tokens * final_norm(job, model)
    if job.checkpointing:
        inside += block + cast / model.layers - tokens * width * model.hidden
    chunks = _in_chunks(job, model)
    logits = logit_bytes(job, model, gradient=True) if has_head else 0.0
    transit = _in_transit(job, model)
    later = number * (block_parameters(job, model) - _down(model)) + (0.0 if model.tied else embedding)
    blocks = gradients * (1 - (model.role("embedding") + model.role("head")) / model.parameters)
    reduced = blocks * max(0.0, 1 - 2 / model.layers)  # one block's are in transit, one's are not yet there
    first = reduced if transit else max(0.0, gradients - later)
    store = tokens * stream * model.hidden if job.checkpointing else block
    tied = 3 * embedding if model.tied and has_head and trained else embedding
    return {
        "head": {"activations": kept + (head if chunks else 0.0) + cast_head(job, model), "logits": logits,
                 "gradients": 0.0},
        "head's weight": {"activations": kept + (head * 1.5 if autocast(job) else 0.0), "gradients": 0.0},
        "last": {"activations": kept - freed + max(inside, norm), "gradients in transit": transit, "gradients": head},
        "first": {"activations": store + inside, "gradients in transit": transit, "gradients": first},
        "lookup": {"activations": tied + tokens * stream * model.hidden,
                   "gradients": max(0.0, gradients - embedding / (job.replicas if transit else 1))},
    }  # fmt: skip


def _wide(job: Job, model: Architecture) -> float:
    """Bytes per token that the gradients of an MLP's wide numbers take, less those of what is freed."""
    copies = 1 if model.family in FUSED_GELU else 2
    return float(copies * job.bytes.compute * model.ffn)


def _scores(job: Job, model: Architecture) -> float:
    """Bytes per token of eager attention's gradients, less the MLP's numbers that are freed before."""
    if job.attention != "eager":
        return 0.0
    raised = 4 if stream_width(job) > job.bytes.compute else 0  # a float32 stream raises the scores too
    scores = (job.constants.scores_backward + raised) * model.heads * job.batch.sequence
    return scores - (job.bytes.compute * 4.0 * model.ffn if job.checkpointing else 0.0)


def _down(model: Architecture) -> float:
    """Parameters of one block's last matrix, whose gradient is the first to be there."""
    names = ("down_proj", "experts.down_proj", "fc2", "dense_4h_to_h")
    return sum(w.parameters / w.blocks for w in model.weights if w.blocks and w.name in names)


def _in_transit(job: Job, model: Architecture) -> float:
    """Whole gradients of one block on their way to the devices that keep them, in the compute type and as reduced."""
    if job.sharding < 2 or job.replicas == 1 or job.lora:
        return 0.0
    whole = block_parameters(job, model) * float(job.bytes.compute + job.bytes.gradients) / job.tensor_parallel
    return min(whole, gradient_bytes(job, model) * (job.replicas - 1))
