"""Looking at a trained (or untrained) model: evaluate, compare two, show completions, export."""

import gc
import json
import math
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quatrain.config import Recipe
from quatrain.errors import SettingError
from quatrain.folders import adapter_base
from quatrain.methods.reports import (
    Report,
    asked_by,
    compared,
    is_report,
    read_report,
    show,
    show_comparison,
    with_answers,
    write_json,
)
from quatrain.methods.run import eval_sampling
from quatrain.methods.run_folder import read_recipe
from quatrain.methods.subject import Asking, Modes, Step, ask, chosen_step, load_subject, settle, with_model_of
from quatrain.models.load import load_language_model
from quatrain.models.quantise import NOTE
from quatrain.models.scalar import load_scalar_model
from quatrain.telemetry.console import Console
from quatrain.train.checkpoint import checkpoint_path, checkpoints


@dataclass(frozen=True, slots=True)
class Output:
    """Where results go: one JSON object instead of tables, a file with all answers."""

    as_json: bool = False
    out: Path | None = None


def evaluate_target(
    target: str, asking: Asking, *, step: Step = None, against: str | None = None, against_step: Step = None,
    limit: int | None = None, greedy: bool = False, output: Output = Output(),
) -> None:  # fmt: skip
    """Print what a run, a model or a file of results achieves; with `against`, compared with that on the same prompts.

    The two models are loaded one after the other. Raises SettingError for different prompts.
    """
    console = Console(sys.stderr if output.as_json else None)
    if output.out is not None and (output.out.is_dir() or not output.out.absolute().parent.is_dir()):
        raise SettingError("--out", str(output.out), "a file name in an existing folder", "choose another name")
    if against is None and against_step is not None:
        against = target
    if is_report(target):
        _refuse_questions(asking, step=step, limit=limit, greedy=greedy or None, against_step=against_step)
    recipe = None if is_report(target) else settle(target, asking)
    first = report(target, recipe, asking, step, limit, greedy, console) if recipe else read_report(target, "target")
    if against is None:
        shown = first.to_json()
        if not _delivered(shown, lambda: with_answers(shown, first), output):
            show(shown, console)
        return
    if is_report(against):
        second = read_report(against, "--against")
    elif recipe is None:
        raise SettingError("--against", against, "a file of results too, since the target is one",
                           "evaluate it first with --out FILE.json")  # fmt: skip
    else:
        second = report(against, with_model_of(recipe, against, asking.changes), asking, against_step, limit, greedy,
                        console)  # fmt: skip
    found = compared(first, second)
    both = {"target": first, "against": second}
    if not _delivered(found, lambda: {"comparison": found} | {name: with_answers(one.to_json(), one)
                                                              for name, one in both.items()}, output):  # fmt: skip
        show_comparison(found, console)


def _refuse_questions(asking: Asking, **given: object) -> None:
    """A file of results was asked in its own way: options that would ask otherwise are errors, not passed by."""
    given |= {"task": asking.task, "verifier": asking.verifier, "recipe": asking.recipe, "set": asking.changes or None}
    for name, value in given.items():
        if value is not None:
            raise SettingError(f"--{name.replace('_', '-')}", value, "a run or a model, not a file of results",
                               "leave it out, or evaluate the run again with it")  # fmt: skip


def _delivered(shown: Mapping[str, Any], whole: Callable[[], Mapping[str, Any]], output: Output) -> bool:
    """Write the file; True when the JSON was printed."""
    if output.out is not None:
        write_json(output.out, whole())
    if output.as_json:
        print(json.dumps(shown))
    return output.as_json


def report(
    target: str, recipe: Recipe, asking: Asking, step: Step, limit: int | None, greedy: bool, console: Console
) -> Report:
    """The answers of one model, which is gone from memory afterwards."""
    modes = eval_modes(recipe, asking, greedy)
    subject = load_subject(target, recipe, step)
    made = Report(subject.name, ask(subject, modes, console, limit), asked_by(recipe))
    del subject
    gc.collect()
    torch.cuda.empty_cache()
    return made


def eval_modes(recipe: Recipe, asking: Asking, greedy: bool) -> Modes:
    """One greedy answer a prompt, or `evaluation.samples` at its temperature (1.0 when greedy was not asked for).

    With `greedy`, sampled answers are accompanied by a greedy one.
    """
    samples, sampling = recipe.evaluation.samples, eval_sampling(recipe)
    alone = sampling.model_copy(update={"temperature": 0.0})
    if samples > 1 and sampling.temperature == 0:
        if any(change.startswith("evaluation.temperature=") for change in asking.changes):
            do = "leave --temperature out (then it is 1.0); --greedy adds a greedy answer"
            raise SettingError("evaluation.samples", samples, "1 with temperature 0", do)
        sampling = sampling.model_copy(update={"temperature": 1.0})
    if sampling.temperature == 0:
        return {"greedy": (1, alone)}
    return {"sampled": (samples, sampling), **({"greedy": (1, alone)} if greedy else {})}


def sample_target(target: str, asking: Asking, *, step: Step = None, prompts: int) -> None:
    """Print a group of completions per prompt: the best and the worst side by side."""
    recipe, console = settle(target, asking), Console()
    group = recipe.rollout.group_size
    made = ask(load_subject(target, recipe, step), {"sampled": (group, recipe.rollout)}, console, prompts)
    answers = made["sampled"].answers
    for start in range(0, len(answers), group):
        own = answers[start : start + group]
        spread = sorted((a for a in own if not math.isnan(a.reward)), key=lambda answer: answer.reward)
        rewards = " ".join("error" if math.isnan(answer.reward) else f"{answer.reward:g}" for answer in own)
        console.say(f"\n{own[0].question}\nrewards: {rewards}")
        if spread:
            best, worst = spread[-1], spread[0]
            console.table("", [(f"best ({best.reward:g})", f"worst ({worst.reward:g})"),
                               (best.completion.strip(), worst.completion.strip())])  # fmt: skip


def export_run(run: Path, to: Path, *, merge: bool, step: Step = None) -> None:
    """Write the policy (or reward model) of a run as a Hugging Face folder, never over an existing one."""
    recipe = read_recipe(run)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise SettingError("--to", str(to), "a new or empty folder", "choose another name")
    number = chosen_step(run, step) if checkpoints(run) else 0
    if number == 0:
        raise SettingError("--step", step, f"a saved step ({checkpoints(run) or 'none yet'})",
                           "train further or choose one of these")  # fmt: skip
    saved = checkpoint_path(run, number)
    scalar = (saved / "reward").is_dir()
    folder = saved / ("reward" if scalar else "policy")
    if recipe.model.lora is None or not merge:
        if merge:
            raise SettingError("--merge", True, "a run with model.lora", "leave it out: the weights are whole already")
        shutil.copytree(folder, to, dirs_exist_ok=True)
    else:  # a folder of adapters is loaded merged
        config = recipe.model.model_copy(update={"path": str(folder), "lora": None})
        lm = load_scalar_model(config, fresh_head=False) if scalar else load_language_model(config)
        lm.module.save_pretrained(to)
        lm.tokenizer.save_pretrained(to)
    base = adapter_base(folder) or recipe.model.path
    kind = "adapter" if recipe.model.lora is not None and not merge else "reward model" if scalar else "model"
    told = f" (base model: {base})" if kind == "adapter" else ""
    if kind == "adapter" and (folder / NOTE).is_file():
        told = f" (base model: {base}, in 4 bits as in training; --merge writes a model that needs none)"
    print(f"{kind} of {run} written to {to}; load it with transformers{told}")
