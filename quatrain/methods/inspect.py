"""Looking at a trained (or untrained) model: evaluate, show completions, export."""

import contextlib
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quatrain.config import Recipe
from quatrain.data.prompts import held_out_prompts
from quatrain.errors import QuatrainError, SettingError
from quatrain.methods.evaluate import Evaluation, evaluate, interval, mean
from quatrain.methods.run import eval_sampling, open_engine, prompt_room
from quatrain.methods.run_folder import read_recipe
from quatrain.models.load import LanguageModel, load_language_model
from quatrain.recipe_file import apply_override, load_recipe, validate_recipe
from quatrain.rewards.rubric import build_verifiers
from quatrain.telemetry.console import Console
from quatrain.train.checkpoint import checkpoint_path, checkpoints, load_weights


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to look at, with the recipe that says how to ask it."""

    recipe: Recipe
    lm: LanguageModel
    name: str


def is_run(target: str | Path) -> bool:
    """True for the folder of a run."""
    return (Path(target) / "recipe.yaml").is_file()


def load_subject(
    target: str, changes: Sequence[str], task: str | None, verifier: str | None, recipe: Path | None, step: int | None
) -> Subject:
    """A run at one of its checkpoints, or any model with `recipe` or `task` and `verifier`."""
    if is_run(target):
        data = read_recipe(Path(target)).model_dump(mode="json")
    elif recipe is not None:
        data = load_recipe(recipe).model_dump(mode="json")
        data["model"]["path"] = target
    elif task is not None and verifier is not None:
        data = {"model": {"path": target}, "prompts": [{"source": task}], "verifiers": {}}
    else:
        raise SettingError("target", target, "a run folder, or a model with --task and --verifier or with --recipe",
                           "add them")  # fmt: skip
    if task is not None:
        data["held_out"] = [{"source": task}]
        data["prompts"] = [{"source": task}]
    if verifier is not None:
        data["verifiers"] = {"default": {"correct": {"kind": verifier}}}
    for change in changes:
        apply_override(data, change)
    settled = validate_recipe(data)
    if not settled.held_out:
        raise SettingError("held_out", "nothing", "held-out prompts in the recipe", "give --task SOURCE")
    lm = load_language_model(settled.model, trainable=settled.model.lora is not None)
    if is_run(target):
        load_step(lm, Path(target), step)
    lm.module.eval()
    return Subject(settled, lm, f"{target} at step {step if step is not None else checkpoints(Path(target))[-1]}"
                   if is_run(target) else target)  # fmt: skip


def load_step(lm: LanguageModel, run: Path, step: int | None) -> None:
    """Put a checkpoint's weights into the model; step 0 is the start of the run."""
    if step == 0:
        return
    steps = checkpoints(run)
    if not steps:
        raise QuatrainError(f"run: {run} has no checkpoint yet; train it further, or look at its start with --step 0")
    if step is not None and step not in steps:
        raise SettingError("--step", step, f"a saved step ({', '.join(map(str, [0, *steps]))})", "choose one of these")
    load_weights(lm, checkpoint_path(run, steps[-1] if step is None else step) / "policy")


@contextlib.contextmanager
def asked(subject: Subject, limit: int | None, samples: int, sampling: Any) -> Iterator[Evaluation]:
    """The evaluation of a subject on its held-out prompts."""
    recipe, console = subject.recipe, Console()
    with contextlib.ExitStack() as stack:
        verifiers = stack.enter_context(build_verifiers(recipe.verifiers))
        prompts = held_out_prompts(recipe.held_out, subject.lm.tokenizer, prompt_room(recipe, subject.lm),
                                   recipe.rollout.long_prompts, verifiers=recipe.verifiers)[:limit]  # fmt: skip
        engine = stack.enter_context(contextlib.closing(open_engine(recipe, subject.lm)))
        stack.enter_context(console)
        yield evaluate(engine, prompts, verifiers, sampling, samples=samples, seed=recipe.seed,
                       progress=lambda done, total: console.phase("evaluating", done, total))  # fmt: skip


def evaluate_target(
    target: str, changes: Sequence[str], *, task: str | None, verifier: str | None, recipe: Path | None,
    step: int | None, limit: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Print pass@k and mean@k with intervals."""
    subject = load_subject(target, changes, task, verifier, recipe, step)
    sampling = eval_sampling(subject.recipe)
    samples = subject.recipe.evaluation.samples
    if samples > 1 and sampling.temperature == 0:
        raise SettingError("evaluation.samples", samples, "1 with temperature 0", "add --temperature 1.0")
    with asked(subject, limit, samples, sampling) as evaluation:
        table = accuracy_table(evaluation)
    if as_json:
        print(json.dumps({"target": subject.name, "prompts": len(evaluation.per_prompt("correct")), **table}))
        return
    console = Console()
    rows: list[tuple[object, ...]] = [("measure", "value", "95 % interval")]
    rows += [(name, f"{cell['value']:.4f}", f"[{cell['low']:.4f}, {cell['high']:.4f}]") for name, cell in table.items()]
    console.table(f"{subject.name}: {len(evaluation.per_prompt('correct'))} prompts, {samples} completion(s) each, "
                  f"temperature {sampling.temperature:g}", rows)  # fmt: skip


def accuracy_table(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """pass@k for k = 1, 2, 4, ..., mean@k, accuracy in the asked form and mean reward, per source when several."""
    correct = np.array([answer.correct for answer in evaluation.answers]).reshape(-1, evaluation.samples)
    found = {}
    k = 1
    while k <= evaluation.samples:
        found[f"pass@{k}"] = pass_at_k(correct, k)
        k *= 2
    if evaluation.samples > 1:
        found[f"mean@{evaluation.samples}"] = evaluation.per_prompt("correct")
    found["in asked form"] = evaluation.per_prompt("in_form")
    found["reward"] = evaluation.per_prompt("reward")
    sources = [answer.source for answer in evaluation.answers[:: evaluation.samples]]
    if len(set(sources)) > 1:
        for source in sorted(set(sources)):
            found[f"pass@1 {source}"] = pass_at_k(correct[[name == source for name in sources]], 1)
    return {name: _cell(values) for name, values in found.items()}


def pass_at_k(correct_PK: np.ndarray, k: int) -> np.ndarray:
    """1 - C(n - c, k) / C(n, k) per prompt, unbiased for n judged completions of which c are right (NaN when n < k).

    Chen et al. 2021, arXiv:2107.03374, equation 1.
    """
    judged = [row[~np.isnan(row)] for row in correct_PK]
    counts = [(len(row), int(row.sum())) for row in judged]
    return np.array([1 - math.comb(n - c, k) / math.comb(n, k) if n >= k else math.nan for n, c in counts])


def _cell(values: np.ndarray) -> dict[str, float]:
    low, high = interval(values)
    return {"value": mean(values), "low": low, "high": high}


def sample_target(
    target: str, changes: Sequence[str], *, task: str | None, verifier: str | None, recipe: Path | None,
    step: int | None, prompts: int,
) -> None:  # fmt: skip
    """Print a group of completions per prompt: the best and the worst side by side."""
    subject = load_subject(target, changes, task, verifier, recipe, step)
    group = subject.recipe.rollout.group_size
    with asked(subject, prompts, group, subject.recipe.rollout) as evaluation:
        console = Console()
        for start in range(0, len(evaluation.answers), group):
            answers = evaluation.answers[start : start + group]
            judged = [answer for answer in answers if not math.isnan(answer.reward)]
            spread = sorted(judged, key=lambda answer: answer.reward)
            rewards = " ".join("error" if math.isnan(answer.reward) else f"{answer.reward:g}" for answer in answers)
            console.say(f"\n{answers[0].question}\nrewards: {rewards}")
            if spread:
                best, worst = spread[-1], spread[0]
                console.table("", [(f"best ({best.reward:g})", f"worst ({worst.reward:g})"),
                                   (best.completion.strip(), worst.completion.strip())])  # fmt: skip


def export_run(run: Path, to: Path, *, merge: bool, step: int | None) -> None:
    """Write the policy of a run as a Hugging Face folder, never over an existing one."""
    recipe = read_recipe(run)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise SettingError("--to", str(to), "a new or empty folder", "choose another name")
    steps = checkpoints(run)
    if not steps or (step is not None and step not in steps):
        raise SettingError(
            "--step", step, f"a saved step ({steps or 'none yet'})", "train further or choose one of these"
        )
    policy = checkpoint_path(run, steps[-1] if step is None else step) / "policy"
    if recipe.model.lora is None or not merge:
        if merge:
            raise SettingError("--merge", True, "a run with model.lora", "leave it out: the weights are whole already")
        shutil.copytree(policy, to, dirs_exist_ok=True)
    else:
        lm = load_language_model(recipe.model)
        load_weights(lm, policy)
        lm.module.merge_and_unload().save_pretrained(to)
        lm.tokenizer.save_pretrained(to)
    kind = "adapter" if recipe.model.lora is not None and not merge else "model"
    print(f"{kind} of {run} written to {to}; load it with transformers"
          + (f" (base model: {recipe.model.path})" if kind == "adapter" else ""))  # fmt: skip
