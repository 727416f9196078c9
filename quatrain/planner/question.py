"""Options of `quatrain plan` as a job: from a recipe, or from a model and a method; what is not given is assumed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from quatrain.errors import SettingError, nearest
from quatrain.planner.accounting import States, model_states
from quatrain.planner.from_recipe import PROMPT, Asked, job_from_recipe
from quatrain.planner.hardware import Device, local_device, parse_gpu
from quatrain.planner.job import (
    ONLINE,
    Attention,
    Batch,
    Engine,
    Job,
    Lora,
    Method,
    Optimizer,
    Precision,
    Rollout,
)
from quatrain.planner.models import find_model

METHODS: dict[str, Method] = {
    "sft": "sft", "dpo": "dpo", "ipo": "dpo", "kto": "dpo", "reward_model": "reward_model", "grpo": "grpo",
    "dapo": "grpo", "dr_grpo": "grpo", "gspo": "grpo", "cispo": "grpo", "rloo": "grpo", "reinforce_pp": "grpo",
    "ppo": "ppo", "ppo_shared": "ppo_shared",
}  # fmt: skip
NO_REFERENCE = ("dapo", "dr_grpo", "gspo", "cispo")  # presets without a KL penalty
STAGES = {"none": 0, "zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "0": 0, "1": 1, "2": 2, "3": 3}
OFFLOADS = {"optimizer": "offload_optimizer", "frozen": "offload_frozen", "activations": "offload_activations"}
COMPLETION = 1024
GROUPS = 16  # of a step, where only the model is given


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What the command line asks; None is "not given"."""

    recipe: Path | None = None
    overrides: Sequence[str] = ()
    model: str | None = None
    method: str | None = None
    gpu: str | None = None
    nodes: int = 1
    hardware: Path | None = None
    precision: str | None = None
    optimizer: str | None = None
    lora_rank: int | None = None
    lora_targets: str | None = None
    qlora: bool = False
    sharding: str | None = None
    expert_parallel: int | None = None
    tensor_parallel: int | None = None
    offload: Sequence[str] = ()
    checkpointing: bool | None = None
    attention: str | None = None
    full_logits: bool = False
    tokens: int | None = None
    sequence: int | None = None
    engine: str | None = None
    engine_share: float | None = None
    engine_tensor_parallel: int | None = None
    cache_bits: int | None = None
    group: int | None = None
    rows: int | None = None
    step_completions: int | None = None
    prompt: int | None = None
    completion: int | None = None
    reference: bool | None = None
    critic: str | None = None
    reward: str | None = None


def ask(question: Question) -> Asked:
    """The job that `question` describes, with what was assumed. Raises SettingError in one line."""
    device, devices = _devices(question)
    if question.recipe is not None:
        if question.model or question.method:
            raise SettingError("--model", question.model or question.method, "no --model or --method beside a recipe",
                               "change the recipe's settings with KEY.SUB=VALUE")  # fmt: skip
        from quatrain.recipe_file import load_recipe

        recipe = load_recipe(question.recipe, question.overrides)
        asked = job_from_recipe(recipe, device, question.prompt)
    else:
        asked = _from_model(question, device or local_device(), devices)
    return replace(asked, job=_changed(asked.job, question, devices))


def _devices(question: Question) -> tuple[Device | None, int]:
    """The device that is asked for (None: not given), and how many over all nodes."""
    if question.nodes < 1:
        raise SettingError("--nodes", question.nodes, "at least 1", "raise it")
    if question.gpu is None:
        return None, question.nodes
    device, count = parse_gpu(question.gpu, question.hardware)
    return device, count * question.nodes


def choice(option: str, value: str, known: Sequence[str]) -> str:
    """`value` where it is one of `known`. Raises SettingError with the nearest."""
    if value not in known:
        raise SettingError(option, value, f"one of {', '.join(known)}", nearest(value, known))
    return value


def method_of(word: str) -> Method:
    """The method of the planner that a name of a preset or method means."""
    return METHODS[choice("--method", word.lower().replace("-", "_"), tuple(METHODS))]


def _from_model(question: Question, device: Device, devices: int) -> Asked:
    if question.model is None:
        raise SettingError("quatrain plan", "nothing to plan", "a RECIPE.yaml, --model or --params",
                           "for example quatrain plan --model Qwen/Qwen2.5-7B --gpu h100-80gx8")  # fmt: skip
    model, origin = find_model(question.model)
    word = question.method or "grpo"
    method = method_of(word)
    online = method in ONLINE
    prompt, completion = question.prompt or 2 * PROMPT, question.completion or COMPLETION
    longest = question.sequence or (prompt + completion if online else 2048)
    engine: Engine = "none" if not online else "in_process" if device.name == "cpu" else "colocated"
    job = Job(
        model=model, method=method, device=device, devices=devices, nodes=question.nodes,
        precision="fp32" if device.name == "cpu" else "mixed", sharding=3 if devices > 1 else 0,
        reference=word not in NO_REFERENCE, chunked_head=True,
        batch=Batch(tokens=max(4096, longest), sequence=longest),
        rollout=Rollout(engine, prompt=prompt, completion=completion),
    )  # fmt: skip
    lengths = f"prompts of {prompt} and completions of {completion} tokens" if online else f"rows of {longest} tokens"
    sequences = question.step_completions or GROUPS * (question.group or job.rollout.group)
    notes = (f"{model.name}: {origin}",
             f"{lengths}, {job.batch.tokens} tokens per micro-batch; logits in chunks of 1 GiB",
             f"time: {sequences} {'completions' if online else 'rows'} a step, all as long as they may be")  # fmt: skip
    return Asked(job, notes, completions=sequences)


def _changed(job: Job, question: Question, devices: int) -> Job:
    """`job` with every option that was given."""
    changes: dict[str, Any] = {"devices": devices, "nodes": question.nodes}
    if question.precision is not None:
        changes["precision"] = choice("--precision", question.precision, get_args(Precision))
    if question.optimizer is not None:
        changes["optimizer"] = choice("--optimizer", question.optimizer.replace("-", "_"), get_args(Optimizer))
    if question.attention is not None:
        changes["attention"] = choice("--attention", question.attention, get_args(Attention))
    if question.sharding is not None:
        changes["sharding"] = STAGES[choice("--sharding", question.sharding.lower(), tuple(STAGES))]
    elif devices > 1 and not job.sharding:
        changes["sharding"] = 3
    for word in question.offload:
        changes[OFFLOADS[choice("--offload", word, tuple(OFFLOADS))]] = True
    for name in ("expert_parallel", "tensor_parallel", "checkpointing", "reference"):
        if getattr(question, name) is not None:
            changes[name] = getattr(question, name)
    if question.full_logits:
        changes["chunked_head"] = False
    for name in ("critic", "reward"):
        if (word := getattr(question, name)) is not None:
            changes[name] = find_model(word)[0]
    if question.reward is not None:
        changes["learned_reward"] = True
    changes |= _adapters(job, question) | {"batch": _batch(job, question), "rollout": _rollout(job, question)}
    return replace(job, **changes)


def _adapters(job: Job, question: Question) -> dict[str, Any]:
    if question.lora_rank is None and not question.qlora:
        if question.lora_targets is not None and job.lora is None:
            raise SettingError("--lora-targets", question.lora_targets, "--lora-rank beside it", "give a rank")
        if question.lora_targets is None:
            return {}
    rank = question.lora_rank or (job.lora.rank if job.lora else 16)
    words = (question.lora_targets or "all-linear").split(",")
    targets: str | list[str] = words[0] if words == ["all-linear"] else words
    if question.lora_targets is None and job.lora is not None:
        targets = job.lora.targets
    job.model.lora(rank, targets)  # raises for names that the model does not have
    wide = (question.precision or job.precision) in ("fp32", "fp64")
    bits = 4 if question.qlora else job.base_bits if job.lora else 32 if wide else 16
    return {"lora": Lora(rank, targets), "base_bits": bits}


def _batch(job: Job, question: Question) -> Batch:
    sequence = question.sequence or job.batch.sequence
    tokens = question.tokens or max(job.batch.tokens, question.sequence or 0)
    trained = job.batch.trained if question.tokens is None and question.sequence is None else None
    return replace(job.batch, tokens=tokens, sequence=min(sequence, tokens), trained=trained)


def _rollout(job: Job, question: Question) -> Rollout:
    given = {
        "share": question.engine_share, "tensor_parallel": question.engine_tensor_parallel, "group": question.group,
        "prompt": question.prompt, "completion": question.completion,
        "cache_bytes": None if question.cache_bits is None else question.cache_bits // 8,
    }  # fmt: skip
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if question.cache_bits not in (None, 8, 16, 32):
        raise SettingError("--cache-bits", question.cache_bits, "8, 16 or 32", "choose one")
    if question.engine_share is not None and not 0 < question.engine_share <= 1:
        raise SettingError("--engine-share", question.engine_share, "above 0 and at most 1", "for example 0.5")
    if question.engine is not None:
        changes["engine"] = cast(Engine, choice("--engine", question.engine.replace("-", "_"), get_args(Engine)))
    group = changes.get("group", job.rollout.group)
    changes["rows"] = question.rows or max(job.rollout.rows, group)
    return replace(job.rollout, **changes)


@dataclass(frozen=True, slots=True)
class StatesQuestion:
    """What `--params` asks: model states of a number of parameters."""

    parameters: float
    method: Method
    device: Device
    devices: int
    precision: Precision
    optimizer: Optimizer
    reference: bool

    def states(self) -> States:
        """Their bytes."""
        return model_states(self.parameters, self.method, self.device, self.devices, precision=self.precision,
                            optimizer=self.optimizer, reference=self.reference)  # fmt: skip


def states_question(given: Mapping[str, Any]) -> StatesQuestion:
    """`--params` with the options that it knows. Raises SettingError for one that needs a model's config."""
    known = {"params", "method", "gpu", "nodes", "hardware", "precision", "optimizer", "reference", "as_json", "html",
             "compare"}  # fmt: skip
    other = sorted(name for name, value in given.items() if name not in known and value not in (False, [], ()))
    if other:
        option = "a recipe" if other[0] == "recipe" else "--" + other[0].replace("_", "-")
        raise SettingError("--params", given["params"], f"model states only, without {option}",
                           "give --model for a whole plan")  # fmt: skip
    if given["params"] < 1:
        raise SettingError("--params", given["params"], "at least 1 parameter", "for example 7.24e9")
    device, devices = _devices(Question(gpu=given.get("gpu"), nodes=given["nodes"], hardware=given.get("hardware")))
    precision = choice("--precision", given.get("precision", "mixed"), get_args(Precision))
    optimizer = choice("--optimizer", given.get("optimizer", "adamw").replace("-", "_"), get_args(Optimizer))
    word = given.get("method", "grpo")
    return StatesQuestion(given["params"], method_of(word), device or local_device(), devices,
                          cast(Precision, precision), cast(Optimizer, optimizer),
                          given.get("reference", word not in NO_REFERENCE))  # fmt: skip
