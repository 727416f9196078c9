"""Before a run: would these prompts teach this model anything, and how fast is it here?"""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from quatrain.config import Recipe, batch_arithmetic
from quatrain.data.overlap import to_exclude
from quatrain.data.prompts import PromptStream, load_sources
from quatrain.errors import DataError
from quatrain.methods.evaluate import Floats, interval, mean
from quatrain.methods.refill import Attempt, attempts
from quatrain.methods.run import open_engine, prompt_room
from quatrain.models.load import load_language_model
from quatrain.rewards.rubric import build_verifiers
from quatrain.rollout import Request
from quatrain.telemetry.console import Console
from quatrain.types import Rollout, Score

WANTED_INFORMATIVE = 0.7  # share of informative groups below which a run is not worth its time
REBALANCE, REVIEW = 0.35, 0.40  # shares of uniform groups above which prompts, and then the whole task, need work
KINDS = ("informative", "all_right", "all_wrong", "all_equal", "too_few_scores")


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """A group of completions per prompt and how long they took."""

    tried: Sequence[Attempt]
    skipped_long: int  # prompts
    sampling_s: float
    scoring_s: float


def probe(recipe: Recipe, count: int, as_json: bool = False) -> None:
    """Print what a run would have to learn from: a group for each of the first `count` prompts of its order.

    The completions are those that the first step of the run would sample (as many as it has prompts).
    """
    with Console(sys.stderr if as_json else None) as console:
        probed = sample_groups(recipe, count, console)
        found = findings(recipe, probed)
        if as_json:
            print(json.dumps(found))
            return
        console.say(batch_arithmetic(recipe))
        console.table(f"{found['prompts']} prompts x {found['group_size']} completions", table(found))
        console.say(found["verdict"])


def sample_groups(recipe: Recipe, count: int, console: Console) -> Probed:
    """Load the model, sample and score; nothing is written."""
    console.say(f"loading {recipe.model.path}")
    lm = load_language_model(recipe.model, trainable=recipe.model.lora is not None)
    lm.module.eval()
    held_out = load_sources(recipe.held_out, "held_out") if recipe.overlap == "drop" else []
    stream = PromptStream(recipe.prompts, lm.tokenizer, recipe.seed, prompt_room(recipe, lm),
                          recipe.rollout.long_prompts, verifiers=recipe.verifiers,
                          exclude=to_exclude(chain.from_iterable(held_out), recipe.overlap))  # fmt: skip
    prompts = stream.take(min(count, len(stream)))
    total = len(prompts) * recipe.rollout.group_size
    with build_verifiers(recipe.rubrics) as verifiers:
        engine = open_engine(recipe, lm)
        engine.submit(
            [
                Request(prompt=prompt, group=group, index=index, sampling=recipe.rollout,
                        seed=(recipe.seed, 0, 1, group, index))
                for group, prompt in enumerate(prompts)
                for index in range(recipe.rollout.group_size)
            ]
        )  # fmt: skip
        start = time.perf_counter()
        rollouts: list[Rollout] = []
        while batch := engine.completed():
            rollouts += batch
            console.phase("sampling", len(rollouts), total)
        sampled = time.perf_counter()
        rollouts.sort(key=lambda rollout: (rollout.group, rollout.index))
        scores = verifiers.score(rollouts)
        scored = time.perf_counter()
        engine.close()
        tried = attempts(prompts, rollouts, scores, verifiers, recipe.algorithm)
        return Probed(tried=tried, skipped_long=stream.skipped_long, sampling_s=sampled - start,
                      scoring_s=scored - sampled)  # fmt: skip


def findings(recipe: Recipe, probed: Probed) -> dict[str, Any]:
    """All that the probe knows, as plain JSON. Raises DataError when no completion could be judged."""
    scores = [score for attempt in probed.tried for score in attempt.scores]
    if not any(score.usable for score in scores):
        errors = next((score.error for score in scores if score.error), "every verifier abstained")
        raise DataError(f"verifiers: no completion could be scored ({errors}); try `quatrain score` on some rows")
    whole = summary(probed.tried)
    names = sorted({attempt.prompt.source for attempt in probed.tried})
    sources = {name: summary([a for a in probed.tried if a.prompt.source == name]) for name in names}
    tokens = sum(rollout.num_tokens for attempt in probed.tried for rollout in attempt.rollouts)
    return {
        "prompts": len(probed.tried),
        "group_size": recipe.rollout.group_size,
        "skipped_long": probed.skipped_long,
        **whole,
        "speed": {"sampling_tokens_per_s": tokens / max(probed.sampling_s, 1e-9),
                  "scoring_completions_per_s": len(scores) / max(probed.scoring_s, 1e-9)},
        "estimate": estimate(recipe, probed, whole["groups"]["informative"]),
        "sources": sources if len(sources) > 1 else {},
        "verdict": verdict(recipe, whole["groups"]),
    }  # fmt: skip


def summary(tried: Sequence[Attempt]) -> dict[str, Any]:
    """Kinds of groups (shares), reward and pass rate (mean over prompts, 95 % bootstrap interval), lengths, errors."""
    kinds = [kind(attempt) for attempt in tried]
    lengths = np.array([rollout.num_tokens for attempt in tried for rollout in attempt.rollouts])
    statuses = [score.status for attempt in tried for score in attempt.scores]
    cut = [rollout.stop_reason == "length" for attempt in tried for rollout in attempt.rollouts]
    return {
        "groups": {name: kinds.count(name) / len(kinds) for name in KINDS},
        "reward": _with_interval([score.value for score in judged(attempt)] for attempt in tried),
        "pass_rate": _with_interval([float(score.correct) for score in judged(attempt)] for attempt in tried),
        "tokens": {"median": float(np.median(lengths)), "p95": float(np.percentile(lengths, 95)),
                   "max": int(lengths.max()), "cut": float(np.mean(cut))},
        "verifier_errors": statuses.count("error") / len(statuses),
        "abstained": statuses.count("abstained") / len(statuses),
    }  # fmt: skip


def judged(attempt: Attempt) -> list[Score]:
    """The scores that count."""
    return [score for score in attempt.scores if score.usable]


def kind(attempt: Attempt) -> str:
    """One of KINDS: a group is informative when two completions differ in correctness (form and length do not count).

    Where nobody can tell right from wrong, a score of at least 1 is right and one of 0 or less wrong.
    """
    scores = judged(attempt)
    if attempt.informative:
        return "informative"
    if len(scores) < 2:
        return "too_few_scores"
    if all(score.correct for score in scores):
        return "all_right"
    return "all_wrong" if all(score.wrong for score in scores) else "all_equal"


def _with_interval(groups: Iterable[Sequence[float]]) -> dict[str, float | None]:
    """Mean of the prompts' means, without the prompts of which no completion was judged; None when that is all."""
    values: Floats = np.array([np.mean(group) if len(group) else np.nan for group in groups])
    low, high = interval(values)
    return {name: None if np.isnan(value) else value
            for name, value in (("mean", mean(values)), ("low", low), ("high", high))}  # fmt: skip


def estimate(recipe: Recipe, probed: Probed, informative: float) -> dict[str, float]:
    """Seconds of sampling and scoring at this speed; updates, evaluations and checkpoints come on top.

    With R refill rounds and a share p of informative groups a step of n groups samples
    n (1 + (1 - p) + ... + (1 - p)^R) of them on average.
    """
    refills = sum((1 - informative) ** done for done in range(1 + recipe.algorithm.refill_rounds))
    groups = recipe.train.prompts_per_step * refills
    step_s = groups * (probed.sampling_s + probed.scoring_s) / len(probed.tried)
    return {"groups_per_step": groups, "rollout_s_per_step": step_s, "rollout_s_of_run": step_s * recipe.train.steps}


def verdict(recipe: Recipe, groups: dict[str, float]) -> str:
    """One line of advice."""
    share, uniform = groups["informative"], groups["all_right"] + groups["all_wrong"] + groups["all_equal"]
    if share >= WANTED_INFORMATIVE:
        return f"good: {share:.0%} of the groups have something to learn from"
    line = f"warning: only {share:.0%} of the groups are informative, {WANTED_INFORMATIVE:.0%} are wanted"
    if uniform > REVIEW:
        line += f"; {uniform:.0%} are uniform, above {REVIEW:.0%}: review the task and its verifier before a run"
    elif uniform > REBALANCE:
        line += f"; {uniform:.0%} are uniform, above {REBALANCE:.0%}: rebalance the prompts"
    return f"{line}; {_remedy(recipe, groups)}"


def _remedy(recipe: Recipe, groups: dict[str, float]) -> str:
    """What to change for the largest share of groups that teach nothing."""
    largest = max(KINDS[1:], key=lambda name: groups[name])
    if largest == "too_few_scores":
        return "most others have fewer than two scores: see why the verifier fails (quatrain score)"
    side = {"all_right": "right", "all_wrong": "wrong"}.get(largest)
    if side is None:
        return "most others are all equal, neither right nor wrong: give correctness finer steps"
    ways = ["mix in harder prompts" if side == "right" else "mix in easier prompts or give partial credit",
            f"raise rollout.group_size above {recipe.rollout.group_size}"]  # fmt: skip
    if not getattr(recipe.curriculum, f"skip_{side}"):
        ways.append(f"set curriculum.skip_{side}")
    if not recipe.algorithm.refill_rounds:
        ways.append("set algorithm.refill_rounds")
    level = "easy" if side == "right" else "hard"
    return f"most others are all {side} (too {level}): {', '.join(ways[:-1])}, or {ways[-1]}"


def table(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """The findings as rows, with a column per source when there are several."""
    columns = [found, *found["sources"].values()]
    rows = [("measure", "all" if found["sources"] else "value", *found["sources"])]
    rows += [tuple(cells) for cells in zip(_LABELS, *map(_cells, columns), strict=True)]
    speed, own = found["speed"], found["estimate"]
    blank = [""] * len(found["sources"])
    last = [
        ("sampling", f"{speed['sampling_tokens_per_s']:.0f} tokens/s"),
        ("scoring", f"{speed['scoring_completions_per_s']:.0f} completions/s"),
        ("a step, rollout only", f"about {own['rollout_s_per_step']:.1f} s ({own['groups_per_step']:.1f} groups)"),
        ("the run, rollout only", f"about {own['rollout_s_of_run'] / 60:.1f} min"),
        ("prompts skipped, too long", f"{found['skipped_long']}"),
    ]
    return rows + [(*row, *blank) for row in last]


_LABELS = (f"informative groups (at least {WANTED_INFORMATIVE:.0%} wanted)", "  all right", "  all wrong",
           "  all equal", "  fewer than two scores", "mean reward", "pass rate", "tokens, median", "tokens, 95 %",
           "tokens, longest", "cut at max_tokens", "verifier errors", "abstained")  # fmt: skip


def _cells(part: dict[str, Any]) -> list[str]:
    """A column of the table: the values of `_LABELS`."""
    tokens = part["tokens"]
    return [
        *(f"{part['groups'][name]:.0%}" for name in KINDS),
        *(_shown(part[name]) for name in ("reward", "pass_rate")),
        *(f"{tokens[name]:.0f}" for name in ("median", "p95", "max")),
        *(f"{share:.1%}" for share in (tokens["cut"], part["verifier_errors"], part["abstained"])),
    ]


def _shown(cell: dict[str, float | None]) -> str:
    if cell["mean"] is None:
        return "none was judged"
    return f"{cell['mean']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]"
