"""A recipe as a job: the only place of the planner that reads recipes. No torch, no weights, no data.

What a recipe cannot say is assumed and said in the notes: how long prompts are (their tokens are known only with a
tokenizer), and that every completion is as long as it may be.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from quatrain.folders import EMBEDDED
from quatrain.planner.architecture import Architecture
from quatrain.planner.hardware import Device, find_device, local_device
from quatrain.planner.job import Attention, Batch, Job, Lora, Method, Precision, Rollout
from quatrain.planner.models import find_model

PROMPT = 256  # tokens of a prompt where none is given
PRECISION: dict[str, Precision] = {"float32": "fp32", "bfloat16": "master", "float64": "fp64"}
BITS: dict[str, Literal[16, 32, 64]] = {"float32": 32, "bfloat16": 16, "float64": 64}
REFERENCED = ("kto",)  # dpo and ipo read their reference from a cache that the policy fills before the first step
SCORERS = ("reward_model", "local_judge")  # verifiers that hold a model
PAIRS = ("dpo", "ipo", "orpo", "simpo")


@dataclass(frozen=True, slots=True)
class Asked:
    """A recipe's job with what was assumed, and how long the run is."""

    job: Job
    notes: tuple[str, ...] = ()
    steps: int | None = None
    updates: int = 1  # optimizer updates of a step
    epochs: int = 1  # times that a step's sequences are trained on
    completions: int = 0  # of a step; rows where nothing is sampled
    extra: dict[str, Any] = field(default_factory=dict)


def job_from_recipe(
    recipe: Any, device: Device | None = None, prompt: int | None = None, longest: int | None = None
) -> Asked:
    """The job of a validated recipe on `device` (default: the recipe's, on this machine), `prompt` tokens a prompt,
    `longest` tokens an offline recipe's row.

    Raises SettingError for a model whose config is not at hand.
    """
    model, origin = find_model(model_word(recipe.model.path))
    place = device or _device(recipe)
    online = getattr(recipe, "method", "online") == "online"
    asked = _online(recipe, model, prompt) if online else _offline(recipe, model, longest)
    job = Job(
        model=model, device=place, precision=PRECISION[recipe.model.dtype], lora=_lora(recipe),
        base_bits=_base_bits(recipe.model), rest_bytes=4 if recipe.model.dtype == "float32" else 2, double_quant=True,
        packs_experts=False,
        checkpointing=bool(recipe.model.gradient_checkpointing), attention=_attention(recipe), chunked_head=True,
        frozen_bytes=_frozen_bytes(recipe.model),
        offload_frozen=recipe.model.reference.offload, **asked.extra,
    )  # fmt: skip
    return replace(asked, job=job, notes=(f"{model.name}: {origin}", *asked.notes), extra={})


def _base_bits(model: Any) -> Literal[4, 16, 32, 64]:
    """Of a weight under adapters."""
    return 4 if model.lora is not None and model.lora.quantise is not None else BITS[model.dtype]


def _frozen_bytes(model: Any) -> int:
    """Of a parameter of the reference: that of the trained weights, or as `model.reference.dtype` says."""
    kept = model.reference.dtype or ("float64" if model.dtype == "float64" else "float32")
    return {"bfloat16": 2, "float32": 4, "float64": 8}[kept]


def model_word(path: str) -> str:
    """The embedded model is planned from its table entry, so that nothing need be converted first."""
    return "HuggingFaceTB/SmolLM2-135M" if path == EMBEDDED else path


def _device(recipe: Any) -> Device:
    return find_device("cpu") if recipe.model.device == "cpu" else local_device()


def _lora(recipe: Any) -> Lora | None:
    """Trained adapters are float32 (float64 models: float64); an adapter that was loaded is held twice."""
    own = recipe.model.lora
    if own is None:
        return None
    moving = getattr(getattr(getattr(recipe, "algorithm", None), "kl", None), "moves", False)
    kept = 1 if own.adapter is not None or moving else 0
    return Lora(own.rank, own.targets, 8 if recipe.model.dtype == "float64" else 4, frozen_copies=kept)


def _attention(recipe: Any) -> Attention:
    """Packed and shared rows need a mask, for which keys are repeated; padded ones are plainly causal."""
    if recipe.model.attention == "eager":
        return "eager"
    return "fused" if recipe.train.builder == "padded" else "masked"


def _reward(recipe: Any) -> tuple[int, Architecture | None]:
    """How many models are among the verifiers, and the architecture of the largest one that is at hand."""
    parts = [part for rubric in getattr(recipe, "verifiers", {}).values() for part in rubric.values()]
    paths = {str((part.model_extra or {}).get("path", EMBEDDED)) for part in parts if part.kind in SCORERS}
    known = [find_model(model_word(path))[0] for path in paths if path == EMBEDDED or Path(path).expanduser().exists()]
    return len(paths), max(known, key=lambda model: model.parameters, default=None)


def _online(recipe: Any, model: Architecture, prompt: int | None) -> Asked:
    train, rollout, algorithm = recipe.train, recipe.rollout, recipe.algorithm
    longest = rollout.max_tokens
    room = (rollout.max_context or model.positions) - longest
    prompt = prompt or max(1, min(PROMPT, room))
    critic = getattr(algorithm, "critic", None)
    method: Method = "grpo" if critic is None else "ppo_shared" if critic.model == "shared" else "ppo"
    completions = train.prompts_per_step * rollout.group_size
    scored, reward = _reward(recipe)
    path = getattr(critic, "path", None)
    extra = {
        "method": method, "reference": _reads_reference(algorithm), "learned_reward": scored > 0,
        "reward": reward, "reward_models": scored,
        "critic": find_model(model_word(path))[0] if path else None,
        "batch": _micro_batch(train, prompt, longest, rollout.group_size, completions // train.updates_per_step),
        "rollout": Rollout("in_process", rows=min(rollout.max_rows, completions), group=rollout.group_size,
                           prompt=prompt, completion=longest),
    }  # fmt: skip
    notes = (f"prompts of {prompt} tokens and completions of {longest} are assumed (--prompt)",)
    updates = train.updates_per_step * train.epochs
    return Asked(None, notes, train.steps, updates, train.epochs, completions, extra)  # type: ignore[arg-type]


def _reads_reference(algorithm: Any) -> bool:
    return bool(algorithm.kl.active)


def _micro_batch(train: Any, prompt: int, longest: int, group: int, rows: int) -> Batch:
    """Positions of the largest micro-batch: whole units (a sample, or with `shared` a group) within the budget."""
    shared = train.builder == "shared"
    unit = prompt + group * (longest - 1) if shared else prompt + longest
    trained, units = (group * longest, max(1, rows // group)) if shared else (longest, rows)
    fitting = min(units, max(1, train.tokens_per_micro_batch // unit))
    return Batch(tokens=fitting * unit, trained=fitting * trained, sequence=unit, passes=-(-units // fitting))


def _offline(recipe: Any, model: Architecture, longest: int | None) -> Asked:
    train, name = recipe.train, recipe.algorithm.name
    longest = longest or recipe.length.max_tokens or min(model.positions, 1 << 20)
    paired = name in PAIRS or name == "reward_model"
    unit = longest * (2 if paired and train.builder != "padded" else 1)
    rows = train.examples_per_step * (2 if paired and train.builder == "padded" else 1)
    fitting = min(rows, max(2 if paired and train.builder == "padded" else 1, train.tokens_per_micro_batch // unit))
    method: Method = {"sft": "sft", "reward_model": "reward_model"}.get(name, "dpo")  # type: ignore[assignment]
    extra = {
        "method": method, "reference": name in REFERENCED,
        "batch": Batch(tokens=fitting * unit, sequence=unit, passes=-(-rows // fitting)),
    }  # fmt: skip
    notes = (f"examples of {longest} tokens are assumed (length.max_tokens)",)
    sequences = train.examples_per_step * (2 if paired else 1)
    return Asked(None, notes, train.steps, completions=sequences, extra=extra)  # type: ignore[arg-type]
