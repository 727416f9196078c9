"""AI feedback: answers are sampled and compared by a judge, and become a preference dataset.

prompts -> answers -> pairs -> verdicts (both orders) -> pairs.jsonl          (Bai et al. 2022, arXiv:2212.08073)
prompts -> first answer -> critique -> revision -> revisions.jsonl
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from quatrain.config import LabelRecipe, SamplingConfig
from quatrain.data.prompts import PromptStream
from quatrain.errors import Interrupted, QuatrainError
from quatrain.methods.record import StopRequest
from quatrain.methods.run_folder import owned, save_recipe, settle_recipe
from quatrain.models.load import LanguageModel, load_language_model
from quatrain.rewards.build import judge_of
from quatrain.rollout import ENGINES, Request, RolloutEngine
from quatrain.telemetry.console import Console
from quatrain.telemetry.files import append_line, replace_text
from quatrain.types import Prompt, Rollout

ANSWERS, CRITIQUES, REVISIONS, PRINCIPLES = 10, 11, 12, 13  # second word of every seed


class Comparer(Protocol):
    """A judge of pairs."""

    def preferences(self, pairs: Sequence[tuple[Rollout, Rollout]], rubrics: Sequence[str] = ()) -> list[float]:
        """P(the first is better) of every pair, 1/2 for a tie; NaN where there is no verdict."""
        ...

    def close(self) -> None:
        """End what was started for judging."""
        ...


@dataclass(frozen=True, kw_only=True)
class Labelling:
    """What a labelling run works with."""

    recipe: LabelRecipe
    lm: LanguageModel
    engine: RolloutEngine
    judge: Comparer
    console: Console
    stop: StopRequest


def label(recipe: LabelRecipe, console: Console | None = None) -> Path:
    """Label every prompt once; run again it goes on behind the last prompt that is done. Returns the folder."""
    console, folder = console or Console(), Path(recipe.output)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    with console, owned(folder):
        settle_recipe(folder, recipe)
        console.say(f"loading {recipe.model.path}")
        lm = load_language_model(recipe.model, trainable=False)
        room = (recipe.rollout.max_context or lm.max_positions) - recipe.rollout.max_tokens
        stream = PromptStream(recipe.prompts, lm.tokenizer, recipe.seed, room, recipe.rollout.long_prompts)
        judge = judge_of(recipe.judge.kind, recipe.judge_settings, recipe.judge.timeout_s)
        rollout = recipe.rollout
        engine = ENGINES.get(rollout.engine, "rollout.engine")(
            lm, max_rows=rollout.max_rows, max_context=rollout.max_context
        )
        save_recipe(folder, recipe)
        run = Labelling(recipe=recipe, lm=lm, engine=engine, judge=judge, console=console, stop=StopRequest(console))
        try:
            with run.stop.listening():
                _label_all(run, stream, folder)
        except Interrupted:
            raise Interrupted(f"stopped; {folder} holds what is labelled, run the same command to go on") from None
        finally:
            judge.close()
            engine.close()
    return folder


def _label_all(run: Labelling, stream: PromptStream, folder: Path) -> None:
    recipe, done = run.recipe, finished(folder)
    total = min(recipe.limit or len(stream), len(stream))
    counts = {"pairs": 0, "ties": 0, "no verdict": 0}
    for start in range(0, total, recipe.prompts_per_step):
        batch = [one for one in stream.take(min(recipe.prompts_per_step, total - start)) if one.index not in done]
        if not batch:
            continue
        answers = sample(run, batch, recipe.rollout, recipe.rollout.group_size, ANSWERS)
        run.stop.check()
        rows = compared(run, batch, answers)
        if not rows:
            raise QuatrainError(
                f"judge: got no verdict on any pair of {len(batch)} prompts, need a judge that answers; see to it "
                "(judge.address, judge.model), and run the same command to go on"
            )
        revised = revisions(run, batch, answers) if recipe.revise else []
        for prompt in batch:  # a prompt is done when its last line is written
            own = [row for row in rows if row["prompt_index"] == prompt.index]
            again = [row for row in revised if row["prompt_index"] == prompt.index]
            for name, lines in (("pairs", own), ("revisions", again), ("done", [{"prompt_index": prompt.index}])):
                for row in lines:
                    append_line(folder / f"{name}.jsonl", json.dumps(row, ensure_ascii=False))
            counts["pairs"] += len(own)
            counts["ties"] += sum(row["tie"] for row in own)
        counts["no verdict"] += len(batch) * len(_places(recipe)) - len(rows)
        run.console.say(f"{min(start + recipe.prompts_per_step, total)}/{total} prompts: "
                        + ", ".join(f"{count} {name}" for name, count in counts.items()))  # fmt: skip
        run.stop.check()
    run.console.say(f"\n{folder / 'pairs.jsonl'} can be the data of reward_model, dpo, ...")


def finished(folder: Path) -> set[int]:
    """Prompts whose rows are all written; those of a prompt that was broken off are taken out."""
    done = {row["prompt_index"] for row in _rows(folder / "done.jsonl")}
    for name in ("pairs", "revisions", "done"):
        path = folder / f"{name}.jsonl"
        kept = [row for row in _rows(path) if row["prompt_index"] in done]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept)
        if path.is_file() and path.read_text(encoding="utf-8") != text:
            replace_text(path, text)
    return done


def _rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; a last one without its end was torn."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    return [json.loads(line) for line in lines]


def as_prompt(prompt: Prompt) -> str | list[dict[str, str]]:
    """The prompt as a row of data has it: its messages, or the text of a single one of the user."""
    if len(prompt.messages) == 1 and prompt.messages[0]["role"] == "user":
        return str(prompt.messages[0]["content"])
    return [dict(message) for message in prompt.messages] or prompt.text


def sample(
    run: Labelling, prompts: Sequence[Prompt], sampling: SamplingConfig, group_size: int, stream: int
) -> list[list[Rollout]]:
    """`group_size` completions of every prompt; seeds depend on the prompt alone, not on its place in the run."""
    run.engine.submit(
        [
            Request(prompt=prompt, group=group, index=index, sampling=sampling,
                    seed=(run.recipe.seed, stream, prompt.index, index))
            for group, prompt in enumerate(prompts)
            for index in range(group_size)
        ]
    )  # fmt: skip
    rollouts: list[Rollout] = []
    while batch := run.engine.completed():
        rollouts += batch
        run.console.phase("sampling", len(rollouts), len(prompts) * group_size)
        run.stop.check()
    rollouts.sort(key=lambda rollout: (rollout.group, rollout.index))
    return [rollouts[start : start + group_size] for start in range(0, len(rollouts), group_size)]


def _places(recipe: LabelRecipe) -> list[tuple[int, int]]:
    """Which answers of a prompt are compared."""
    return list(itertools.combinations(range(recipe.rollout.group_size), 2))[: recipe.pairs_per_prompt]


def principle(recipe: LabelRecipe, prompt: Prompt, number: int) -> str:
    """The principle of a pair or a revision, drawn by the seed; none without a constitution."""
    if not recipe.constitution:
        return ""
    draw = np.random.default_rng((recipe.seed, PRINCIPLES, prompt.index, number))
    return recipe.constitution[int(draw.integers(len(recipe.constitution)))]


def compared(run: Labelling, prompts: Sequence[Prompt], answers: Sequence[Sequence[Rollout]]) -> list[dict[str, Any]]:
    """Rows of preference data: the better answer is `chosen`; ties are kept, pairs without a verdict are not."""
    places = [(prompt, own, number, pair) for prompt, own in zip(prompts, answers, strict=True)
              for number, pair in enumerate(_places(run.recipe))]  # fmt: skip
    principles = [principle(run.recipe, prompt, number) for prompt, _, number, _ in places]
    pairs = [(own[one], own[other]) for _, own, _, (one, other) in places]
    verdicts = run.judge.preferences(pairs, principles if run.recipe.constitution else ())
    rows = []
    for (prompt, _, _, _), (first, second), rule, p in zip(places, pairs, principles, verdicts, strict=True):
        if p != p:
            continue
        better, worse = (first, second) if p >= 0.5 else (second, first)
        rows.append({
            "prompt": as_prompt(prompt), "chosen": better.text, "rejected": worse.text, "tie": p == 0.5,
            "confidence": max(p, 1 - p), "principle": rule, "prompt_index": prompt.index,
        })  # fmt: skip
    return rows


CRITIQUE = "Criticise your last answer by this principle, in a few sentences: {principle}"
REVISION = "Now write your answer anew so that it follows the principle. Write nothing but the answer."


def revisions(run: Labelling, prompts: Sequence[Prompt], answers: Sequence[Sequence[Rollout]]) -> list[dict[str, Any]]:
    """Each first answer criticised and rewritten by one principle: rows for SFT (`prompt`, `completion`)."""
    rules = [principle(run.recipe, prompt, len(_places(run.recipe))) for prompt in prompts]
    said = [
        [{"role": "assistant", "content": own[0].text}, {"role": "user", "content": CRITIQUE.format(principle=rule)}]
        for own, rule in zip(answers, rules, strict=True)
    ]
    critiques = _talk(run, prompts, said, CRITIQUES)
    for own, critique in zip(said, critiques, strict=True):
        own += [{"role": "assistant", "content": critique}, {"role": "user", "content": REVISION}]
    revised = _talk(run, prompts, said, REVISIONS)
    return [
        {"prompt": as_prompt(prompt), "completion": text, "before": own[0].text, "critique": critique,
         "principle": rule, "prompt_index": prompt.index}
        for prompt, own, rule, critique, text in zip(prompts, answers, rules, critiques, revised, strict=True)
        if text.strip()
    ]  # fmt: skip


def _talk(
    run: Labelling, prompts: Sequence[Prompt], turns: Sequence[Sequence[dict[str, str]]], stream: int
) -> list[str]:
    """What the model says next in each conversation; its front is left out where it has grown too long."""
    room = run.lm.max_positions - run.recipe.rollout.max_tokens
    asked = []
    for prompt, own in zip(prompts, turns, strict=True):
        text = continued(run.lm, prompt, own)
        ids = run.lm.tokenizer.encode(text, add_special_tokens=False)[-room:]
        asked.append(Prompt(index=prompt.index, token_ids=tuple(ids), text=text))
    return [own[0].text for own in sample(run, asked, run.recipe.rollout, 1, stream)]


def continued(lm: LanguageModel, prompt: Prompt, turns: Sequence[dict[str, str]]) -> str:
    """The conversation so far, as the model reads it before its next turn."""
    if not lm.tokenizer.chat_template:
        return prompt.text + "".join(f"{turn['content']}\n\n" for turn in turns)
    messages = [*(dict(message) for message in prompt.messages), *turns]
    text: str = lm.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text
