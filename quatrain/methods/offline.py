"""Offline training (SFT, reward models, preferences): one step, top to bottom.

examples -> samples -> reference -> statistics of the update -> update
"""

from collections.abc import Sequence
from dataclasses import replace

from quatrain.config import OfflineRecipe
from quatrain.data.examples import Example
from quatrain.errors import Interrupted, NonFiniteError
from quatrain.methods.offline_run import OfflineRun, offline_arithmetic, open_offline
from quatrain.methods.offline_summary import columns_of, show_measures
from quatrain.methods.result import Result
from quatrain.methods.run_folder import load_measures, save_measures, save_samples
from quatrain.methods.step_metrics import Stopwatch
from quatrain.telemetry.console import Console
from quatrain.telemetry.metrics import Metric, Sum, merge_metrics
from quatrain.train.learner import Progress
from quatrain.types import Sample


def train(recipe: OfflineRecipe, console: Console | None = None) -> Result:
    """Run or resume `recipe`. Ctrl-C and SIGTERM save the state and raise Interrupted."""
    console = console or Console()
    with console, open_offline(recipe, console, evaluate) as run:
        console.say(offline_arithmetic(run))
        try:
            evaluate(run, 0, interruptible=True)
            console.start(run.record.steps, run.record.step + 1, columns_of(run.algorithm))
            while run.record.step < run.record.steps:
                run.record.finish_step(offline_step(run, run.record.step + 1))
                run.record.stop.check()
            evaluate(run, run.record.step, interruptible=True)
            path = run.record.save()
            run.finish(path)
            show_measures(run)
            return Result(run.record.folder, run.record.step)
        except Interrupted:
            raise run.record.interrupted() from None


def offline_step(run: OfflineRun, step: int) -> dict[str, Metric]:
    """Example -> Sample -> TrainBatch -> sums -> update; returns the metrics."""
    clock = Stopwatch()
    examples = run.examples.take(run.recipe.train.examples_per_step)
    samples = with_beside(run, to_samples(run, examples), run.record.phase("baseline"))
    clock.lap("prepare")
    run.record.stop.check()
    try:
        metrics = run.record.learner.update(samples, run.algorithm, step, run.record.phase("update"))
    except NonFiniteError as error:
        path = save_samples(run.record.folder, step, error.samples)
        raise NonFiniteError(f"step {step}: {error}; they are written to {path}") from None
    clock.lap("update")
    tokens = sum(len(sample.token_ids) for sample in samples)
    counts: dict[str, Metric] = {"data/examples": Sum(len(examples)), "data/tokens": Sum(tokens)}
    return merge_metrics(metrics, counts, run.examples.metrics(), clock.metrics_of(tokens))


def to_samples(run: OfflineRun, examples: Sequence[Example]) -> list[Sample]:
    """The samples of a batch: a group per example, completions numbered over the batch, reference where it is read."""
    found: list[Sample] = []
    for group, example in enumerate(examples):
        known = run.reference.of(example) if run.reference is not None else None
        for number, sample in enumerate(example.samples):
            one = replace(sample, group=group, completion=len(found))
            found.append(one.with_streams(reference_logprobs=known[number]) if known is not None else one)
    return found


def with_beside(run: OfflineRun, samples: list[Sample], progress: Progress) -> list[Sample]:
    """What the statistics of the update need besides its samples: forwards without gradient on others."""
    if run.algorithm.beside is None:
        return samples
    others = run.algorithm.beside.samples(samples)
    streams = frozenset({"old_logprobs", "reference_logprobs"})
    return run.algorithm.beside.apply(samples, run.record.learner.annotate(others, streams, progress))


def evaluate(run: OfflineRun, step: int, interruptible: bool = False) -> dict[str, Metric] | None:
    """eval/...: the loss on the held-out examples, and what the algorithm says of them; None without such examples.

    An evaluation of the same examples that is on disk is not made again; one of earlier weights cannot be.
    """
    if not run.held_out or (step != run.record.step and load_measures(run.record.folder, step) is None):
        return None
    done = load_measures(run.record.folder, step)
    if done is None or done.asked != run.asked:
        if step != run.record.step:
            return None
        show = run.record.phase("evaluating")

        def progress(finished: int, total: int) -> None:
            show(finished, total)
            if interruptible:
                run.record.stop.check()

        samples = with_beside(run, to_samples(run, run.held_out), progress)
        found = run.record.learner.measure(samples, run.algorithm, progress)
        values = {evaluated(name): metric.value for name, metric in found.items()}
        done = save_measures(run.record.folder, step, run.asked, values)
        run.record.log.event("evaluation", f"{len(run.held_out)} held-out examples", step, **values)
        for tracker in run.record.trackers:
            tracker.log(step, values)
    return done.metrics()


def evaluated(name: str) -> str:
    """The name of a statistic in evaluations: `preference/accuracy` is `eval/accuracy`."""
    return f"eval/{name.rpartition('/')[2]}"
