"""Before a run: would these prompts teach this model anything, and how fast is it here?"""

import time
from collections.abc import Sequence

import numpy as np

from quatrain.config import Recipe, batch_arithmetic
from quatrain.data.prompts import PromptStream
from quatrain.errors import DataError
from quatrain.methods.evaluate import interval
from quatrain.methods.run import open_engine, prompt_room
from quatrain.models.load import load_language_model
from quatrain.ops.advantages import is_uniform
from quatrain.rewards.rubric import build_verifiers
from quatrain.rollout import Request
from quatrain.telemetry.console import Console
from quatrain.types import Rollout, Score

WANTED_INFORMATIVE = 0.7  # share of groups with two different scores below which a run is not worth its time


def probe(recipe: Recipe, count: int) -> None:
    """Sample a group for each of `count` training prompts and print what a run would have to learn from."""
    console = Console()
    with console, build_verifiers(recipe.verifiers) as verifiers:
        console.say(f"loading {recipe.model.path}")
        lm = load_language_model(recipe.model, trainable=recipe.model.lora is not None)
        lm.module.eval()
        stream = PromptStream(recipe.prompts, lm.tokenizer, recipe.seed, prompt_room(recipe, lm),
                              recipe.rollout.long_prompts, verifiers=recipe.verifiers)  # fmt: skip
        prompts = stream.take(min(count, len(stream)))
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
            console.phase("sampling", len(rollouts), len(prompts) * recipe.rollout.group_size)
        sampling_s = time.perf_counter() - start
        rollouts.sort(key=lambda rollout: (rollout.group, rollout.index))
        scores = verifiers.score(rollouts)
        score_s = time.perf_counter() - start - sampling_s
        console.say(batch_arithmetic(recipe))
        rows = [
            ("measure", "value"),
            *report(rollouts, scores, sampling_s, score_s),
            ("skipped, too long", stream.skipped_long),
        ]
        console.table(f"{len(prompts)} prompts x {recipe.rollout.group_size} completions", rows)
        console.say(verdict(rollouts, scores))


def report(
    rollouts: Sequence[Rollout], scores: Sequence[Score], sampling_s: float, score_s: float
) -> list[tuple[str, str]]:
    """Rows of the table."""
    values = np.array([score.value for score in scores if score.usable])
    if not len(values):
        errors = next((score.error for score in scores if score.error), "every verifier abstained")
        raise DataError(f"verifiers: no completion could be scored ({errors}); try `quatrain score` on some rows")
    low, high = interval(values)
    lengths = np.array([rollout.num_tokens for rollout in rollouts])
    return [
        ("mean reward", f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"),
        ("informative groups", f"{informative_share(rollouts, scores):.0%} (at least {WANTED_INFORMATIVE:.0%} wanted)"),
        ("verifier errors", f"{np.mean([score.status == 'error' for score in scores]):.1%}"),
        (
            "tokens per completion",
            f"median {np.median(lengths):.0f}, 95 % {np.percentile(lengths, 95):.0f}, max {lengths.max()}",
        ),
        ("cut at max_tokens", f"{np.mean([rollout.stop_reason == 'length' for rollout in rollouts]):.0%}"),
        ("sampling", f"{lengths.sum() / sampling_s:.0f} tokens/s"),
        ("scoring", f"{len(scores) / max(score_s, 1e-9):.0f} completions/s"),
    ]


def informative_share(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> float:
    """Groups with at least two different scores, as a share of all groups."""
    groups: dict[int, list[float]] = {}
    for rollout, score in zip(rollouts, scores, strict=True):
        groups.setdefault(rollout.group, []).extend([score.value] if score.usable else [])
    return float(np.mean([len(values) > 1 and not is_uniform(np.array(values)) for values in groups.values()]))


def verdict(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> str:
    """One line of advice."""
    share = informative_share(rollouts, scores)
    if share >= WANTED_INFORMATIVE:
        return f"good: {share:.0%} of the groups have something to learn from"
    values = [score.value for score in scores if score.usable]
    side = "hard" if np.mean(values) < (min(values) + max(max(values), 1.0)) / 2 else "easy"
    return (
        f"warning: only {share:.0%} of the groups have two different scores, {WANTED_INFORMATIVE:.0%} are wanted; the "
        f"prompts are mostly too {side} for this model: choose others, raise rollout.group_size, or give partial credit"
    )
