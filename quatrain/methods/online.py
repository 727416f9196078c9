"""Online reinforcement learning: one step, top to bottom.

prompts -> rollouts -> scores -> credit -> batches -> update -> publish the weights
"""

import itertools
from collections.abc import Sequence

from quatrain.algorithms import Group
from quatrain.config import Recipe, batch_arithmetic
from quatrain.errors import Interrupted, QuatrainError
from quatrain.methods.dry_run import unusual_settings
from quatrain.methods.refill import Attempt, attempts, chosen, missing, refill_metrics
from quatrain.methods.result import Result
from quatrain.methods.run import Run, held_out, open_run
from quatrain.methods.run_folder import save_rollouts
from quatrain.methods.step_metrics import Stopwatch, rollout_metrics
from quatrain.methods.updates import make_updates
from quatrain.rollout import Request
from quatrain.telemetry.console import Console
from quatrain.telemetry.metrics import Metric, merge_metrics
from quatrain.types import Prompt, Rollout, Sample

TRAINING_STREAM = 0  # second word of every seed: see methods/evaluate.py


def train(recipe: Recipe, console: Console | None = None) -> Result:
    """Run or resume `recipe`. Ctrl-C and SIGTERM save the state and raise Interrupted."""
    console = console or Console()
    with console, open_run(recipe, console) as run:
        console.say(batch_arithmetic(recipe))
        for line in unusual_settings(recipe):
            console.warn(line)
        try:
            before = held_out(run, 0, interruptible=True)
            console.start(recipe.train.steps, run.step + 1)
            while run.step < recipe.train.steps:
                run.finish_step(online_step(run, run.step + 1))
                run.stop.check()
            after = held_out(run, run.step, interruptible=True)
            run.save()  # there already; but which checkpoints are the best is known only now
            return Result(run.folder, run.step, before, after)
        except Interrupted:
            raise run.record.interrupted() from None


def online_step(run: Run, step: int) -> dict[str, Metric]:
    """Prompt -> Rollout -> Score -> advantages -> Sample -> TrainBatch -> sums -> update; returns the metrics."""
    clock = Stopwatch()
    wanted = run.recipe.train.prompts_per_step
    tried: list[Attempt] = []
    for _ in range(1 + run.recipe.algorithm.refill_rounds):
        prompts = run.prompts.take(missing(tried, wanted))
        rollouts = sample(run, prompts, step, len(tried))
        clock.lap("rollout")
        scores = run.verifiers.score(rollouts)
        clock.lap("score")
        run.stop.check()
        tried += attempts(prompts, rollouts, scores, run.verifiers, run.recipe.algorithm)
        if not missing(tried, wanted):
            break
    warn_of_errors(run, tried)

    kept = chosen(tried, wanted)
    rollouts = [rollout for attempt in kept for rollout in attempt.rollouts]
    samples = to_samples(rollouts)
    samples = run.learner.annotate(samples, streams_needed(run), run.phase("reference"))
    samples, credit = run.algorithm.credit(to_groups(kept, samples))

    updates = make_updates(run, samples, step)
    steered = run.algorithm.finish_step(samples)
    run.engine.update_weights(step)
    clock.lap("update")
    for attempt in tried:
        judged = [score for score in attempt.scores if score.usable]
        right = [score.correct for score in judged]
        run.prompts.history.record(step, attempt.prompt.index, right, attempt.informative)

    if run.recipe.log.rollouts_every and step % run.recipe.log.rollouts_every == 0:
        save_rollouts(run.folder, step, rollouts, [score for attempt in kept for score in attempt.scores], samples)
    sampled = [rollout for attempt in tried for rollout in attempt.rollouts]
    refill = refill_metrics(tried, wanted) if run.recipe.algorithm.refill_rounds else {}
    return merge_metrics(rollout_metrics(sampled), refill, credit, *updates, steered, clock.metrics(sampled))


def sample(run: Run, prompts: Sequence[Prompt], step: int, first: int) -> list[Rollout]:
    """A group of completions per prompt, each from its own random stream (seed, step, group, index); groups count on
    from `first`."""
    config = run.recipe.rollout
    run.engine.submit(
        [
            Request(prompt=prompt, group=group, index=index, sampling=config,
                    seed=(run.recipe.seed, TRAINING_STREAM, step, group, index))
            for group, prompt in enumerate(prompts, first)
            for index in range(config.group_size)
        ]
    )  # fmt: skip
    rollouts: list[Rollout] = []
    progress = run.phase("sampling")
    while batch := run.engine.completed():
        rollouts += batch
        progress(len(rollouts), len(prompts) * config.group_size)
        run.stop.check()
    if len(rollouts) != len(prompts) * config.group_size:
        raise QuatrainError(
            f"rollout.engine: got {len(rollouts)} completions, need {len(prompts) * config.group_size}; "
            "run the same command again to go on from the last checkpoint"
        )
    return sorted(rollouts, key=lambda rollout: (rollout.group, rollout.index))


def warn_of_errors(run: Run, tried: Sequence[Attempt]) -> None:
    """Say once for each reason that completions could not be judged; they are left out and counted, never zeros."""
    for reason in sorted({score.error for attempt in tried for score in attempt.scores if score.status == "error"}):
        run.console.warn(f"a completion could not be judged and is left out: {reason}")


def to_samples(rollouts: Sequence[Rollout]) -> list[Sample]:
    """One sample per trajectory; `completion` is the rollout's number in the step."""
    return [
        Sample(
            token_ids=trajectory.token_ids,
            trained=trajectory.trained,
            group=rollout.group,
            completion=number,
            prompt_length=trajectory.segments[0].end,
            label=f"prompt {rollout.prompt.index} of {rollout.prompt.source}, completion {rollout.index}",
            streams={"sampler_logprobs": trajectory.sampler_logprobs[trajectory.trained]},
        )
        for number, rollout in enumerate(rollouts)
        for trajectory in rollout.trajectories
    ]


def to_groups(kept: Sequence[Attempt], samples: Sequence[Sample]) -> list[Group]:
    """The step's completions by prompt, each with its samples."""
    of_completion: dict[int, list[Sample]] = {}
    for item in samples:
        of_completion.setdefault(item.completion, []).append(item)
    numbers = itertools.count()  # as in `to_samples`: completions are numbered over the whole step
    return [
        Group(
            prompt=attempt.prompt,
            scores=attempt.scores,
            samples=tuple(tuple(of_completion[next(numbers)]) for _ in attempt.rollouts),
            truncated=tuple(rollout.stop_reason == "length" for rollout in attempt.rollouts),
        )
        for attempt in kept
    ]


def streams_needed(run: Run) -> frozenset[str]:
    """What the algorithm asks for, and the old log-probabilities when weights move before the last update."""
    several = run.recipe.train.updates_per_step * run.recipe.train.epochs > 1
    return run.algorithm.needs.streams | ({"old_logprobs"} if several else set())
