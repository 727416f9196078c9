"""What three introductions to RLHF say about memory and time, quoted, each with what this planner computes for it.

Every quoted figure stands beside terms of our own; nothing is adjusted to meet a quoted one, and each difference has
its reason. Where a figure is no memory or time of a model (a price, a limit on a sandbox) it is listed and said so.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from quatrain.planner.accounting import model_states
from quatrain.planner.hardware import GB, find_device
from quatrain.planner.job import MOMENTS, PRECISIONS, Job, Lora, Rollout
from quatrain.planner.memory import kv_cache
from quatrain.planner.models import find_model
from quatrain.planner.states import base_bytes, trainable

SIZES = ((7.24e9, 260.6, 130.3, None, None), (67.1e9, 2415.6, 1207.8, 31, 16), (671e9, 24156.0, 12078.0, 302, 151))
P7 = 7e9  # parameters of the "7B base" of the second table


@dataclass(frozen=True, slots=True)
class Line:
    """A quoted figure, ours, and why they differ (or how it is computed, when they do not)."""

    topic: str
    quoted: str
    ours: str
    reason: str


def state_table() -> list[Line]:
    """The model-state table of 7.24B, 67.1B and 671B, from its own accounting of 36 and 18 bytes a parameter."""
    device, found = find_device("h100-80g"), []
    for parameters, ppo, grpo, ppo_gpus, grpo_gpus in SIZES:
        ours = {name: model_states(parameters, name, device) for name in ("ppo", "grpo")}
        saving = 1 - ours["grpo"].total / ours["ppo"].total
        for name, quoted, gpus in (("ppo", ppo, ppo_gpus), ("grpo", grpo, grpo_gpus)):
            states = ours[name]
            found.append(Line(
                f"{parameters / 1e9:g}B, {'four-model PPO' if name == 'ppo' else 'two-model GRPO'}",
                f"{quoted:,.1f} GB" + (f", {gpus} x H100 80GB" if gpus else ""),
                f"{states.total / GB:,.1f} GB, {states.gpus_needed} x 80 GB",
                "36 bytes x parameters" if name == "ppo" else f"18 bytes x parameters; {saving:.1%} less than PPO",
            ))  # fmt: skip
    return found


def seven_billion() -> list[Line]:
    """The 7B table's terms, ours beside them: it has no single accounting."""
    return [*_full(), *_adapters(), *_totals()]


def _states(precision: str = "mixed") -> tuple[float, float, float]:
    """(trained, its optimizer states with the master copy, frozen) in GB for 7e9 parameters."""
    width, moments = PRECISIONS[precision], MOMENTS["adamw"]  # type: ignore[index]
    whole = width.weights + width.gradients + width.master + moments
    return P7 * whole / GB, P7 * (width.master + moments) / GB, P7 * 2 / GB


def _full() -> Iterator[Line]:
    trained, optimizer, frozen = _states()
    head = find_model("Llama-2-7B")[0].hidden
    yield Line(
        "actor, bf16 + Adam fp32 (full)",
        "~98 GB",
        f"{trained:.0f} GB",
        f"98 = 14 bytes x 7e9: 2 weights + 12 optimizer, without the 2 of gradients ({P7 * 2 / GB:.0f} GB)",
    )
    yield Line(
        "critic, value head only trained",
        "~56 GB base + 4 B head",
        f"{frozen:.0f} GB base + {16 * head / 1e6:.2f} MB head",
        "56 = 8 bytes x 7e9: a whole model trained in 16 bits alone (2 + 2 + 4), or moments without weights; a "
        f"frozen base is 2. A head of {head} trained weights at 16 bytes is negligible ('4 B' gives no unit)",
    )
    yield Line(
        "critic, all of it trained",
        "not given",
        f"{trained:.0f} GB",
        "16 bytes x 7e9: what PPO's usual critic takes, and what the column 'Training? Yes' suggests",
    )
    yield Line("reference policy, bf16", "~14 GB", f"{frozen:.0f} GB", "2 bytes x 7e9")
    yield Line("reward model, bf16", "~14 GB", f"{frozen:.0f} GB", "2 bytes x 7e9")
    yield Line("optimizer offload of a 7B actor", "~48 GB freed", f"{optimizer:.0f} GB freed",
               "12 bytes x 7e9 (master 4 + moments 8) move to the host; 48 is near 7 bytes x 7e9, the moments with "
               f"nothing else are {P7 * 8 / GB:.0f} GB")  # fmt: skip
    seconds = 2 * P7 * 2 / GB / 25
    yield Line("offloaded optimizer steps", "~1.5x slower", f"at least {seconds:.1f} s more per update",
               "gradients down and weights up, 2 bytes each, at 25 GB/s; the step on the host comes on top. A ratio "
               "needs the step's own time, which the source does not give")  # fmt: skip


def _qlora(shape: str) -> tuple[float, float]:
    """(weights in 4 bits, adapters with their states) in GB of a 7B model with adapters of rank 16."""
    job = Job(model=find_model(shape)[0], method="sft", device=find_device("a100-80g"), precision="bf16",
              lora=Lora(16), base_bits=4, rest_bytes=2, double_quant=True)  # fmt: skip
    parts, _ = trainable(job, job.model)
    rest = sum(value for name, value in parts.items() if name != "weights")
    return base_bytes(job, job.model) / GB, (rest + job.model.lora(16) * 4) / GB


def _adapters() -> Iterator[Line]:
    base, adapters = _qlora("Llama-2-7B")
    ours = base + adapters
    yield Line("actor (QLoRA)", "~10 GB", f"{ours:.1f} GB of states",
               f"4-bit base {base:.1f} + adapters of rank 16 with gradients and moments {adapters:.1f}; the rest of 10 "
               "must be activations and logits, for which the source gives no batch")  # fmt: skip
    yield Line(
        "critic (QLoRA)",
        "~6 GB",
        f"{ours:.1f} GB of states",
        "the same base and adapters as the actor; a difference of 4 GB between two equal models has no term",
    )


def _totals() -> Iterator[Line]:
    trained, _, frozen = _states()
    base, adapters = _qlora("Llama-2-7B")
    states = model_states(P7, "ppo", find_device("a100-80g"))
    yield Line("total (full), 7B", "~182 GB+, 4 x A100 80 GB",
               f"{states.total / GB:.0f} GB, {states.gpus_needed} x 80 GB",
               f"quoted terms add up to 98 + 56 + 14 + 14 = 182, which would be 3 x 80 GB for states alone; ours are "
               f"2 x {trained:.0f} + 2 x {frozen:.0f}. Activations and caches come on top in both")  # fmt: skip
    four = 2 * (base + adapters) + 2 * frozen
    yield Line("total (QLoRA), 7B", "~44 GB, 2 x A100 40 GB", f"{four:.1f} GB of states",
               f"10 + 6 + 14 + 14 = 44; ours: two 4-bit models with adapters and two frozen ones in 16 bits "
               f"({frozen:.0f} each). With one base under two adapters, its reference being the base itself: "
               f"{base + 2 * adapters + frozen:.1f} GB")  # fmt: skip
    shared = model_states(P7, "ppo_shared", find_device("a100-80g"))
    yield Line(
        "actor and critic share the backbone",
        "three distinct weight sets",
        f"{shared.total / GB:.0f} GB",
        f"16 + 2 + 2 bytes x 7e9: {1 - shared.total / states.total:.0%} less than with a critic of its own",
    )


def other_figures() -> list[Line]:
    """The remaining figures on memory and time in the three texts."""
    return [*_shares(), *_lengths(), *_times()]


def _shares() -> Iterator[Line]:
    ppo, grpo = (model_states(1e9, name, find_device("h100-80g")) for name in ("ppo", "grpo"))
    inference, critic = 2e9, 16e9
    yield Line("four models before optimizer states", "roughly 4x the VRAM of inference", f"{4 * 2e9 / inference:.0f}x",
               "four equal models of 2 bytes a parameter; with optimizer states it is "
               f"{ppo.total / inference:.0f}x")  # fmt: skip
    yield Line(
        "the critic's share of PPO",
        "up to 50% of the cluster's memory",
        f"{critic / ppo.total:.1%} of states",
        "16 of 36 bytes; 50% is what goes with the critic and the reward model together (18 of 36)",
    )
    yield Line(
        "GRPO against PPO",
        "four models to two-and-a-half",
        f"{grpo.total / ppo.total:.0%} of the states",
        "18 of 36 bytes; the half model stands for the group's completions, whose cache is counted below",
    )
    both = {name: model_states(70e9, name, find_device("h100-80g")) for name in ("ppo", "grpo")}
    yield Line("70B on one node of 8 GPUs", "fits with GRPO, not with PPO",
               f"PPO {both['ppo'].total / GB:,.0f} GB, GRPO {both['grpo'].total / GB:,.0f} GB against 640 GB",
               f"neither does with full AdamW states ({both['ppo'].gpus_needed} and {both['grpo'].gpus_needed} GPUs of "
               f"80 GB); GRPO with LoRA does, see --method grpo --lora-rank 16")  # fmt: skip
    narrow = model_states(7.24e9, "ppo", find_device("h100-80g"), frozen_bytes=1)
    yield Line("frozen weights in fp8", "1 byte a parameter in place of 2", f"{narrow.total / GB:.1f} GB for 7.24B PPO",
               "34 in place of 36 bytes x parameters")  # fmt: skip
    yield Line(
        "reward model 2-3x smaller than the policy",
        "fits on fewer GPUs",
        f"{7 * 2 / 2:.0f} to {7 * 2 / 3:.1f} GB in place of 14",
        "2 bytes x 7e9, halved and divided by three",
    )


def _lengths() -> Iterator[Line]:
    model = find_model("Mistral-7B")[0]
    sizes = {}
    for length in (4096, 8192, 32768):
        rollout = Rollout("apart", rows=16, group=16, prompt=512, completion=length)
        job = Job(model=model, method="grpo", device=find_device("h100-80g"), rollout=rollout)
        sizes[length] = kv_cache(job) / GB
    yield Line(
        "generation from 4,096 to 32,768 tokens",
        "the memory that GRPO saves is enough for it",
        f"cache of 16 completions of a 7B model: {sizes[4096]:.1f} to {sizes[32768]:.1f} GB",
        f"131,072 bytes a token (grouped keys); GRPO saves {7.24 * 18:.0f} GB of states over all devices, "
        f"{7.24 * 18 / sizes[32768]:.1f} such groups at 32,768 tokens; 4 times the cache without grouped keys",
    )
    yield Line("a correct answer at token 8,192", "binary reward at the end", f"{sizes[8192]:.1f} GB for 16 rows",
               "the cache at that length")  # fmt: skip
    yield Line(
        "groups of 4-16, of 8 (dense) or 16 (experts)",
        "overhead of holding G completions",
        f"{sizes[4096] / 16:.2f} GB per completion of 4,096 tokens",
        "linear in G; the prompt is held once",
    )
    plan = {
        rows: kv_cache(Job(model=model, method="ppo", device=find_device("h100-80g"),
                           rollout=Rollout("apart", rows=rows, group=1, prompt=256, completion=256))) / GB
        for rows in (64, 512)
    }  # fmt: skip
    yield Line(
        "rollout batch of 64-512",
        "must fit in VRAM during the rollout phase",
        f"{plan[64]:.1f} to {plan[512]:.1f} GB of cache",
        "prompts and completions of 256 tokens, 7B with grouped keys; an engine queues what does not fit",
    )


def _times() -> Iterator[Line]:
    flops = 6 * 175e9 * 300e9
    hours = flops / 28e12 / 3600
    yield Line("training GPT-3", "about $4.6 million", f"${hours * 1.5 / 1e6:.1f} million",
               f"6 x 175e9 x 300e9 = {flops:.2e} FLOPs at 28 TFLOP/s of a V100 (an assumption of that estimate) are "
               f"{hours / 1e6:.1f} million hours at $1.50")  # fmt: skip
    yield Line(
        "two models trained",
        "doubles communication in the backward pass",
        f"{2 * 2 * 7.24:.1f} GB a device and update for a 7.24B actor and critic",
        "gradients of 2 bytes for each of two equal models in place of one: 2x, before overlap",
    )
    for topic, quoted in (("sandbox, one test suite", "under 250 ms"), ("sandbox, one execution", "under 500 ms")):
        yield Line(topic, quoted, "not a model's time", "a limit on a verifier's run; scoring overlaps with sampling")
