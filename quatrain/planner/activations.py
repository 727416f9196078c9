"""What a forward pass keeps for its backward pass, counted tensor by tensor. No torch.

Per token and block, in numbers (h hidden, q = heads x head_dim, k = kv_heads x head_dim, f the MLP's width, T the
longest row):

    a norm              its input in float32, the normalised input where its weight is trained, one number of scale
    a linear layer      its input, where its weight or an adapter on it is trained: h before q, k, v; h before the MLP
    attention, fused    queries, keys, values and the output: 2 q + 2 k, and a float32 number per head
              repeated  keys and values copied for every query head: 4 q
              masked    the same, and T numbers of the mask
              eager     4 q, and T probabilities per head (in 16 bit: a float32 and a 16-bit one)
    MLP                 gate, its activation, up, and their product: 4 f            (without a gate: 2 f)

Linear layers of float32 weights under autocast keep a 16-bit copy of their input each, and of their weights. A float32
adapter keeps a copy of its input of its own. The counts follow the modules of transformers and PEFT;
`tests/planner/test_activations.py` holds them to what torch's saved-tensor hooks report, byte for byte.
"""

from quatrain.planner.architecture import Architecture, Weight
from quatrain.planner.job import Job, Lora
from quatrain.planner.weights import targeted

LAYER_NORM = frozenset({"gpt2", "gpt_neox", "phi"})
FUSED = frozenset({"phi3", "gpt_neox"})  # values are a view of queries, keys and values, which stay with it
JOINED = frozenset({"phi", "phi3", "gpt_neox"})  # rotary embedding of a part of each head
STAGED_GELU = frozenset({"gpt2", "phi"})
FUSED_GELU = frozenset({"gpt_neox", "falcon"})
FULL_OF_PRODUCT = frozenset({"down_proj", "o_proj", "dense", "c_proj", "fc2", "dense_4h_to_h"})  # read no norm's output


def autocast(job: Job) -> bool:
    """True where weights are wider than the arithmetic and nothing casts them for whole layers, as FSDP does."""
    return job.precision == "master" and (job.sharding < 3 or job.lora is not None)


def stream_width(job: Job) -> int:
    """Bytes of a number between the blocks: float32 under autocast of float32 weights; 4-bit layers keep the width of
    the embeddings, which they leave unpacked."""
    if job.lora is not None and job.base_bits == 4:
        return max(job.rest_bytes, job.bytes.compute)
    wide = autocast(job) and job.sharding < 3 and (job.lora is None or job.base_bits == 32)
    return 4 if wide else job.bytes.compute


def kept_per_token(job: Job, model: Architecture, lora: Lora | None) -> float:
    """Bytes that one block keeps per token without checkpointing."""
    kept = _norms(job, model, trained=lora is None) + _attention(job, model) + _mlp(job, model)
    kept += _inputs(job, model) if lora is None else _adapter_inputs(job, model, lora)
    return kept


def selective_per_token(job: Job, model: Architecture) -> float:
    """Bytes that one block keeps per token when attention's output and every other matrix product are kept."""
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    products = queries + 2 * keys + 2 * model.hidden + (2 if model.gated else 1) * model.ffn
    return job.bytes.compute * (stream_width(job) / job.bytes.compute * model.hidden + queries + products / 2)


def cast_weights(job: Job, model: Architecture) -> float:
    """Bytes per device of the 16-bit copies of float32 weights that autocast keeps until the backward pass."""
    if not autocast(job):
        return 0.0
    inside = sum(w.d_in * w.d_out * w.count for w in model.weights if w.blocks and w.role != "norm")
    copied = inside if stream_width(job) == 4 else 0
    copied += model.lora(job.lora.rank, job.lora.targets) if job.lora else 0
    return 2.0 * copied / job.tensor_parallel


def _norms(job: Job, model: Architecture, trained: bool) -> float:
    """Norms of a block, those of queries and keys too; what a linear layer reads of them is counted there.

    Both of GPT-NeoX read the same numbers; Gemma's scale in float32.
    """
    width, stream, kept = job.bytes.compute, stream_width(job), 0.0
    for norm in (w for w in model.weights if w.role == "norm" and w.blocks):
        rows = {"q_norm": model.heads, "k_norm": model.kv_heads}.get(norm.name, 1) * norm.count / model.layers
        if model.family in LAYER_NORM:
            kept += rows * (stream * norm.d_out * (0.5 if model.family == "gpt_neox" else 1) + 2 * stream)
        else:
            whole = width if norm.d_out != model.hidden else max(stream, width)
            whole = 4 if model.family.startswith("gemma") else whole
            kept += rows * (norm.d_out * (4 + (whole if trained else 0)) + 4)
    return kept


def _attention(job: Job, model: Architecture) -> float:
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    width, sequence = job.bytes.compute, job.batch.sequence
    kept = width * (queries + keys) if model.family in FUSED and keys == queries else 0.0
    if job.attention == "eager":
        scores = (4 if width == 4 else 6) + (width if model.family == "gemma2" else 0)  # softmax, and the capped scores
        return kept + width * 4 * queries + scores * model.heads * sequence
    if model.family in JOINED and (job.lora is None or job.lora.adapter_bytes == width):
        kept += width * queries  # joined halves of queries change the output's layout, so it is copied
    if job.attention == "repeated":
        return kept + width * 4 * queries + 4 * model.heads
    if job.attention == "masked":
        return kept + width * (4 * queries + sequence) + 4 * model.heads
    if model.family in FUSED and keys != queries:
        kept += width * (queries + keys)
    return kept + width * 2 * (queries + keys) + 4 * model.heads


def _mlp(job: Job, model: Architecture) -> float:
    """Also what a mixture of experts keeps to weigh its outputs, and the stages of GPT-2's own GELU."""
    width = job.bytes.compute
    kept = float(width * (3 if model.gated else 4 if model.family in STAGED_GELU else 1) * model.ffn)
    for expert in (w for w in model.weights if w.name == "experts.down_proj"):
        chosen, blocks = expert.used / expert.blocks, expert.blocks / model.layers
        gate = sum(w.blocks for w in model.weights if w.name == "shared_expert_gate") / model.layers
        kept += blocks * (width * chosen * model.hidden + 4 * expert.count / expert.blocks + 36 * chosen)
        kept += gate * width * model.hidden
    return kept


def _inputs(job: Job, model: Architecture) -> float:
    """Inputs of linear layers whose own weights are trained; attention's output is counted with attention."""
    width, reads = job.bytes.compute, _reads_norm(model)
    copies = len(reads) if autocast(job) else 1 if model.family == "phi" else 2
    used = sum(w.used for w in model.weights if w.name == "experts.down_proj")
    chosen = used / model.layers  # a copy for each expert
    return width * ((copies + chosen) * model.hidden + model.ffn)


def _adapter_inputs(job: Job, model: Architecture, lora: Lora) -> float:
    """Inputs of adapters, the r numbers between their two matrices, and masks and copies of dropout."""
    width, chosen = job.bytes.compute, _chosen(model, lora)
    between = len(chosen) * lora.rank * (width if autocast(job) else lora.adapter_bytes)
    own: float = lora.adapter_bytes if not autocast(job) else width
    if lora.dropout:
        own += job.constants.dropout_bytes + own
    if lora.adapter_bytes > width or lora.dropout or autocast(job):
        return between + own * sum(_read_width(model, weight) for weight in chosen)
    names = {weight.name.rpartition(".")[2] for weight in chosen}
    before = {"attention": any(w.role == "attention" and _reads(w) for w in chosen),
              "mlp": any(w.role == "mlp" and _reads(w) for w in chosen)}  # fmt: skip
    down = bool(names & {"down_proj", "fc2", "dense_4h_to_h"}) or any(w.role == "mlp" and not _reads(w) for w in chosen)
    return between + width * (sum(before.values()) * model.hidden + down * model.ffn)


def _read_width(model: Architecture, weight: Weight) -> int:
    """Numbers that an adapted layer reads per token; a layer that only some blocks have counts for its share."""
    return round(weight.d_in * weight.count / model.layers)


def _chosen(model: Architecture, lora: Lora) -> list[Weight]:
    return [weight for weight in model.weights if weight.adaptable and targeted(weight, lora.targets)]


def _reads(weight: Weight) -> bool:
    return weight.name.rpartition(".")[2] not in FULL_OF_PRODUCT


def _reads_norm(model: Architecture) -> list[Weight]:
    return [w for w in model.weights if w.adaptable and _reads(w)]


def ends(job: Job, model: Architecture) -> float:
    """Bytes kept outside the blocks: rotary tables, the last norm, and the hidden states that the head reads.

    Under adapters the first block's input needs no gradient, which saves as much as the last norm keeps.
    """
    stream = stream_width(job)
    rotary = 0 if model.family == "gpt2" else 2 * model.head_dim * stream
    norm = final_norm(job, model) if job.lora is None or job.checkpointing else 0
    read = job.batch.logits * model.hidden * stream if job.method != "reward_model" else 0
    return (job.batch.tokens * (norm + rotary + 8) + read) / job.tensor_parallel


def final_norm(job: Job, model: Architecture) -> float:
    """Bytes per token that the norm behind the blocks keeps."""
    stream = stream_width(job)
    if model.family in LAYER_NORM:
        return stream * model.hidden
    if job.lora is not None:
        return 4 * model.hidden
    return (8 if model.family.startswith("gemma") else 4 + max(stream, job.bytes.compute)) * model.hidden


def forward_width(job: Job, model: Architecture) -> float:
    """Bytes per token of a forward without gradient: the residual stream twice and the widest stage of a block."""
    width = job.bytes.compute
    queries = model.heads * model.head_dim
    widest = max((3 if model.gated else 2) * model.ffn, 2 * queries + 2 * model.hidden)
    return 2 * stream_width(job) * model.hidden + width * widest
