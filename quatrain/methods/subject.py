"""A model to look at: a run at one of its checkpoints or any other model, and the recipe that says how to ask it."""

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quatrain.config import Recipe, SamplingConfig
from quatrain.data.prompts import held_out_prompts
from quatrain.data.tasks import ask_set, held_out_set
from quatrain.errors import QuatrainError, SettingError
from quatrain.methods.evaluate import Evaluation, evaluate
from quatrain.methods.run import open_engine, prompt_room
from quatrain.methods.run_folder import best_step, read_recipe
from quatrain.models.load import LanguageModel, load_language_model
from quatrain.recipe_file import apply_override, load_recipe, online, validate_recipe
from quatrain.rewards.rubric import build_verifiers
from quatrain.telemetry.console import Console
from quatrain.train.checkpoint import checkpoint_path, checkpoints, load_weights

Step = int | str | None  # a saved step, "best", or the last


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to look at, with the recipe that says how to ask it."""

    recipe: Recipe
    lm: LanguageModel
    name: str
    step: int


@dataclass(frozen=True, slots=True)
class Asking:
    """What the command line says about the questions: `recipe` or `task` and `verifier`, and changed settings."""

    task: str | None = None
    verifier: str | None = None
    recipe: Path | None = None
    changes: Sequence[str] = ()


def is_run(target: str | Path) -> bool:
    """True for the folder of a run."""
    return (Path(target) / "recipe.yaml").is_file()


def settle(target: str, asking: Asking) -> Recipe:
    """How to ask `target`: its run's recipe or the given one; task, verifier and settings are laid on in this order.

    Raises SettingError for a model without anything to ask it.
    """
    task, verifier = asking.task, asking.verifier
    chosen = held_out_set(task) if task is not None else None
    own = read_recipe(Path(target)) if is_run(target) else None
    if own is not None and own.algorithm.name == "reward_model":
        raise SettingError("target", target, "a model that answers", "this run trained a reward model: score answers "
                           f"with `quatrain score reward_model ROWS.jsonl --set path={target}`")  # fmt: skip
    if isinstance(own, Recipe):
        data = own.model_dump(mode="json")
    elif asking.recipe is not None:
        data = online(load_recipe(asking.recipe)).model_dump(mode="json")
        data["model"] = own.model.model_dump(mode="json") if own else data["model"] | {"path": target}
    elif task is not None and (verifier is not None or chosen is not None):
        data = {"model": own.model.model_dump(mode="json") if own else {"path": target}, "prompts": []}
    else:
        raise SettingError("target", target, "an online run, or a model with --task and --verifier or with --recipe",
                           "add them")  # fmt: skip
    if chosen is not None:
        ask_set(data, chosen)
    elif task is not None:
        data["prompts"], data["held_out"] = [{"source": task}], [{"source": task}]
    if verifier is not None:
        data["verifiers"] = {"default": {"correct": {"kind": verifier}}}
        for source in [*data["prompts"], *data["held_out"]]:
            source |= {"verifier": None, "verifier_column": None}
    for change in asking.changes:
        apply_override(data, change)
    settled = online(validate_recipe(data))
    if not settled.held_out:
        raise SettingError("held_out", "nothing", "held-out prompts in the recipe", "give --task SOURCE")
    return settled


def with_model_of(recipe: Recipe, target: str, changes: Sequence[str]) -> Recipe:
    """The same questions for another model: `target`'s own section `model`, or its path where it is no run."""
    own = read_recipe(Path(target)).model.model_dump(mode="json") if is_run(target) else {"path": target, "lora": None}
    data = recipe.model_dump(mode="json")
    data["model"] = own if is_run(target) else data["model"] | own
    for change in changes:
        if change.startswith(("model.dtype=", "model.device=", "model.attention=")):
            apply_override(data, change)
    return online(validate_recipe(data))


def load_subject(target: str, recipe: Recipe, step: Step = None) -> Subject:
    """The weights of `target`, on the recipe's device."""
    if not is_run(target) and step is not None:
        raise SettingError("--step", step, "a run, whose checkpoints have steps", "leave it out for a model")
    number = chosen_step(Path(target), step) if is_run(target) else 0
    lm = load_language_model(recipe.model, trainable=recipe.model.lora is not None)
    if number:
        load_weights(lm, checkpoint_path(Path(target), number) / "policy")
    lm.module.eval()
    return Subject(recipe, lm, f"{target} at step {number}" if is_run(target) else target, number)


def chosen_step(run: Path, step: Step) -> int:
    """A saved step of a run: a number (0: its start), `best`, or None for the last."""
    steps = checkpoints(run)
    if step == "best":
        return best_step(run, read_recipe(run).checkpoint.best_metric)
    number = int(step) if step is not None and str(step).isdecimal() else step
    if number == 0:
        return 0
    if not steps:
        raise QuatrainError(f"run: {run} has no checkpoint yet; train it further, or look at its start with --step 0")
    if number is not None and number not in steps:
        known = ", ".join(map(str, [0, *steps]))
        raise SettingError("--step", number, f"a saved step ({known}) or best", "choose one of these")
    return steps[-1] if number is None else int(number)


Modes = Mapping[str, tuple[int, SamplingConfig]]  # name: completions a prompt, and how they are drawn


def ask(subject: Subject, modes: Modes, console: Console, limit: int | None = None) -> dict[str, Evaluation]:
    """The answers of a subject on its held-out prompts, an evaluation for each mode."""
    recipe = subject.recipe
    with contextlib.ExitStack() as stack:
        verifiers = stack.enter_context(build_verifiers(recipe.rubrics))
        room = prompt_room(recipe, subject.lm, held_out=True)
        prompts = held_out_prompts(recipe.held_out, subject.lm.tokenizer, room, recipe.rollout.long_prompts,
                                   verifiers=recipe.verifiers)[:limit]  # fmt: skip
        engine = stack.enter_context(contextlib.closing(open_engine(recipe, subject.lm)))
        stack.enter_context(console)
        return {
            mode: evaluate(engine, prompts, verifiers, sampling, samples=samples, seed=recipe.seed, step=subject.step,
                           progress=functools.partial(console.phase, f"{mode} answers"))
            for mode, (samples, sampling) in modes.items()
        }  # fmt: skip
