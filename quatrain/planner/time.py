"""Seconds of a step, phase by phase, from a roofline: FLOPs, bytes moved, and what share runs reach. No torch.

    forward       2 M + 4 L w S                    FLOPs a token
    training      6 M + 12 L w S                   LoRA: 4 M + 6 A + 12 L w S (frozen weights get no gradient)
    recomputing   + one forward                    (checkpointing; not counted in a model FLOPs utilisation)
    decoding      max(bytes / bandwidth, FLOPs / rate) for every token of the longest completion

M parameters in matrix products that a token uses (experts: the chosen ones; a lookup of embeddings is none), A those of
adapters, L layers, w width of attention (heads x head_dim), S positions. Attention counts every pair, as published
utilisations do, though causal kernels skip half of them. With M all parameters this is the count of llm-foundry's
tables. Utilisations are priors from public runs (`PRIORS`); a run's own replaces them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quatrain.planner.architecture import Architecture
from quatrain.planner.hardware import Device
from quatrain.planner.job import Job, Lora

BANDWIDTH_SHARE = 0.5  # of the datasheet's bandwidth that decoding reaches
ENGINE_STEP_S = 0.004  # of a decoded token beside bytes and FLOPs in a serving engine: scheduling, sampling
OWN_LAYER_S = 0.0006  # the same in each layer of the in-process engine: Qwen3-0.6B in transformers, 58.6 tokens/s, H20
DENSE_SYNC_GB_S, EXPERT_SYNC_GB_S = 125.0, 8.0  # verl on H20: 7B dense in 0.12 s, 30B and 235B experts in 15.8, 58.6 s
WIDE = 0.5  # rate of float32 products (TF32) in terms of 16-bit ones


@dataclass(frozen=True, slots=True)
class Prior:
    """Share of the datasheet's 16-bit rate that training reaches, recomputed FLOPs included, and where it was seen."""

    device: str
    kind: str  # dense, lora or moe
    checkpointing: bool
    share: float
    source: str


# Medians of public runs by device, kind and checkpointing; `benchmarks/planner_time.py` prints them from their rows.
PRIORS: tuple[Prior, ...] = (
    Prior("a100-40g", "dense", False, 0.56, "11 rows: llm-foundry"),
    Prior("a100-40g", "dense", True, 0.64, "18 rows: llm-foundry"),
    Prior("a100-80g", "dense", False, 0.6, "11 rows: llm-foundry, torchtune"),
    Prior("a100-80g", "dense", True, 0.72, "13 rows: llm-foundry, torchtune"),
    Prior("a100-80g", "lora", False, 0.41, "1 row: torchtune"),
    Prior("a100-80g", "lora", True, 0.66, "2 rows: torchtune"),
    Prior("a6000-48g", "dense", True, 0.52, "3 rows: prime-rl"),
    Prior("a6000-48g", "lora", True, 0.66, "2 rows: prime-rl"),
    Prior("b200-180g", "dense", True, 0.19, "2 rows: prime-rl"),
    Prior("b200-180g", "lora", True, 0.16, "1 row: prime-rl"),
    Prior("b200-180g", "moe", True, 0.08, "5 rows: prime-rl"),
    Prior("gb200-186g", "moe", False, 0.33, "1 row: Megatron-Bridge"),
    Prior("h100-80g", "dense", False, 0.4, "21 rows: llm-foundry, torchtitan"),
    Prior("h100-80g", "dense", True, 0.54, "29 rows: llm-foundry, prime-rl, torchtitan"),
    Prior("h100-80g", "lora", True, 0.63, "7 rows: prime-rl"),
    Prior("h100-80g", "moe", True, 0.37, "2 rows: prime-rl"),
    Prior("h200-141g", "dense", True, 0.7, "1 row: prime-rl"),
    Prior("h200-141g", "moe", True, 0.36, "6 rows: prime-rl"),
    Prior("l40s-48g", "dense", False, 0.13, "1 row: peft"),
    Prior("l40s-48g", "lora", False, 0.23, "13 rows: peft"),
    Prior("rtx4090-24g", "lora", False, 0.56, "2 rows: torchtune"),
    Prior("t4-16g", "lora", True, 0.14, "13 rows: fitcheck-llm"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What a step does, over all devices; lengths in tokens."""

    sequences: int  # completions of a step, or rows of an offline one
    prompt: int = 0
    completion: float = 1024  # mean; offline: the whole row
    longest: int | None = None  # what decoding waits for; None: the mean
    epochs: int = 1  # times that a sequence is trained on
    old_logprobs: bool = True  # a pass for them; the first update after sampling needs none
    steps: int = 1
    price: float | None = None  # of one device for an hour

    @property
    def length(self) -> float:
        """Mean tokens of a sequence."""
        return self.prompt + self.completion

    @property
    def tokens(self) -> float:
        """Tokens of a step."""
        return self.sequences * self.length


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds of every phase of one step, and what the run adds up to."""

    seconds: Mapping[str, float]
    tokens: float
    devices: int
    steps: int
    utilisation: float  # of the datasheet's rate in training, recomputed FLOPs included
    source: str  # of the utilisation
    price: float | None = None

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return sum(self.seconds.values())

    @property
    def run_s(self) -> float:
        """Seconds of all steps."""
        return self.step_s * self.steps

    @property
    def device_hours(self) -> float:
        """Hours of all devices over the run."""
        return self.run_s * self.devices / 3600

    @property
    def cost(self) -> float | None:
        """Price of the run, in the unit of `price`."""
        return None if self.price is None else self.price * self.device_hours

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all devices a second, every phase counted."""
        return self.tokens / self.step_s if self.step_s else 0.0


def matrix_parameters(model: Architecture) -> int:
    """Parameters that a token meets in a matrix product: no norm, no lookup (a tied embedding is the head)."""
    roles = ("attention", "mlp", "expert", "router", "head", *(("embedding",) if model.tied else ()))
    return sum(w.used * w.d_in * w.d_out for w in model.weights if w.role in roles and w.name != "wpe")


def attention_width(model: Architecture) -> float:
    """w: mean width of queries and of what attention puts out (they differ with latent attention)."""
    widths = {w.name: (w.d_in, w.d_out) for w in model.weights if w.role == "attention"}
    queries = widths.get("q_b_proj", widths.get("q_proj", (0, model.heads * model.head_dim)))[1]
    out = widths.get("o_proj", widths.get("dense", (model.heads * model.head_dim, 0)))[0]
    return (queries + out) / 2


def attention_flops(model: Architecture, sequence: float) -> float:
    """4 L w S: scores and weighted values of one token, forward."""
    seen = min(sequence, model.window) if model.window else sequence
    return 4.0 * model.layers * attention_width(model) * seen


def forward_flops(model: Architecture, sequence: float) -> float:
    """FLOPs of one token's forward pass."""
    return 2.0 * matrix_parameters(model) + attention_flops(model, sequence)


def training_flops(model: Architecture, sequence: float, lora: Lora | None = None) -> float:
    """FLOPs of one token's forward and backward pass without recomputation: what a utilisation is quoted of."""
    matrices, attention = matrix_parameters(model), 3 * attention_flops(model, sequence)
    if lora is None:
        return 6.0 * matrices + attention
    return 4.0 * matrices + 6.0 * model.lora(lora.rank, lora.targets) + attention


def hardware_flops(model: Architecture, sequence: float, lora: Lora | None, checkpointing: bool) -> float:
    """The same with the forward pass that checkpointing repeats."""
    return training_flops(model, sequence, lora) + (forward_flops(model, sequence) if checkpointing else 0.0)


def prior(device: Device, kind: str, checkpointing: bool, priors: Sequence[Prior] = PRIORS) -> Prior:
    """The nearest prior: of the same device (else generation: `a100-40g` for `a100-80g`), kind and checkpointing.

    Of several that are as near, their middle one.
    """
    generation = device.name.partition("-")[0]

    def distance(known: Prior) -> tuple[bool, bool, bool, bool]:
        return (known.device.partition("-")[0] != generation, known.kind != kind,
                known.checkpointing != checkpointing, known.device != device.name)  # fmt: skip

    least = min(map(distance, priors))
    near = sorted((known for known in priors if distance(known) == least), key=lambda known: known.share)
    return near[len(near) // 2]


def kind_of(model: Architecture, lora: Lora | None) -> str:
    """What a prior tells apart: a mixture of experts, adapters, or neither."""
    return "moe" if model.experts else "lora" if lora else "dense"


def step_time(job: Job, work: Work, utilisation: float | None = None) -> StepTime:
    """Seconds of one step's phases on all devices of `job`; `utilisation` (0 to 1) replaces the prior.

    Devices share tokens evenly. An engine apart is counted as if it sampled on as many devices, before training.
    """
    known = prior(job.device, kind_of(job.model, job.lora), bool(job.checkpointing))
    share = known.share if utilisation is None else utilisation
    rate = job.device.tflops * 1e12 * share * (WIDE if job.bytes.compute == 4 and job.device.name != "cpu" else 1.0)
    tokens, length = work.tokens / job.devices, work.length

    def forward(model: Architecture) -> float:
        return tokens * forward_flops(model, length) / rate

    def update(model: Architecture) -> float:
        flops = hardware_flops(model, length, job.lora, bool(job.checkpointing))
        return work.epochs * tokens * flops / rate

    critic = job.critic or job.model
    seconds: dict[str, float] = {}
    if job.online:
        seconds |= rollout_time(job, work, rate)
        seconds["old logprobs"] = forward(job.model) if work.old_logprobs else 0.0
    if job.reference and job.method not in ("sft", "reward_model"):
        seconds["reference logprobs"] = forward(job.model)
    if job.learned_reward or (job.learned_reward is None and job.method in ("ppo", "ppo_shared")):
        seconds["reward"] = forward(job.reward or job.model)
    if job.method == "ppo":
        seconds |= {"values": forward(critic), "critic update": update(critic)}
    seconds["policy update"] = update(job.model)
    if job.online:
        seconds["weight sync"] = sync_time(job)
    return StepTime(
        seconds={name: value for name, value in seconds.items() if value}, tokens=work.tokens, devices=job.devices,
        steps=work.steps, utilisation=share, source=known.source if utilisation is None else "given", price=work.price,
    )  # fmt: skip


def rollout_time(job: Job, work: Work, rate: float) -> dict[str, float]:
    """Reading the prompts (once a group) and decoding: every wave of rows waits for its longest completion.

    A decoded token reads the weights that its batch uses once, and each live row's cache; rows leave as they end, so
    the cache is read for the mean length, the weights for the longest.
    """
    rollout, model = job.rollout, job.model
    ways = rollout.tensor_parallel if rollout.engine != "in_process" else 1
    replicas = max(1, job.devices // ways)
    rows = work.sequences / replicas
    waves = max(1, math.ceil(rows / (rollout.rows * ways)))
    prefill = rows / rollout.group * work.prompt * forward_flops(model, work.prompt) / (rate * ways)
    longest = work.longest or work.completion
    bandwidth = job.device.bandwidth_gb_s * 1e9 * BANDWIDTH_SHARE * ways
    cached = model.kv_width * model.layers * (rollout.cache_bytes or job.bytes.compute)
    weights = waves * longest * read_weights(model, rows / waves) * job.bytes.compute
    cache = rows * work.completion * (work.prompt + work.completion / 2) * cached
    compute = rows * work.completion * forward_flops(model, work.length) / (rate * ways)
    idle = OWN_LAYER_S * model.layers if rollout.engine == "in_process" else ENGINE_STEP_S
    decode = max((weights + cache) / bandwidth, compute) + waves * longest * idle
    return {"prefill": prefill, "decode": decode}


def read_weights(model: Architecture, rows: float) -> float:
    """Parameters that one decoding step reads: of E experts those that some of `rows` tokens chose, 1 - (1 - k/E)^rows.

    Expected for tokens that choose evenly and independently.
    """
    total = 0.0
    for weight in model.weights:
        if weight.role == "expert":
            total += weight.parameters * (1 - (1 - weight.used / weight.count) ** max(1.0, rows))
        elif weight.role != "embedding" or model.tied:
            total += weight.parameters
    return total


def sync_time(job: Job) -> float:
    """New weights to the engine: 16-bit bytes of all parameters (adapters alone are merged first)."""
    if job.rollout.engine in ("none", "in_process"):
        return 0.0
    rate = EXPERT_SYNC_GB_S if job.model.experts else min(DENSE_SYNC_GB_S, job.device.link_gb_s)
    return job.model.parameters * 2.0 / (rate * 1e9)
