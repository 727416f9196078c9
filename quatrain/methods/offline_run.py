"""An offline run's parts, put together from its recipe: opened fresh, or continued from its last checkpoint."""

import contextlib
import hashlib
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quatrain.algorithms import OFFLINE_ALGORITHMS, OfflineAlgorithm
from quatrain.config import OfflineRecipe, RewardModelConfig
from quatrain.data.examples import Example, ExampleStream, held_out_examples, split_share
from quatrain.data.overlap import check_disjoint, to_exclude
from quatrain.errors import DataError, Interrupted, SettingError, nearest
from quatrain.methods.record import Record, StopRequest, forecast, loading
from quatrain.methods.reference_cache import ReferenceCache
from quatrain.methods.reward_normalise import normalise_reward
from quatrain.methods.reward_report import report_reward
from quatrain.methods.reward_scores import score_answers
from quatrain.methods.run_folder import owned, save_recipe, settle_model, settle_recipe
from quatrain.models.forward import check_forward
from quatrain.models.load import LanguageModel, load_language_model, load_reference
from quatrain.models.scalar import load_scalar_model
from quatrain.telemetry.console import Console
from quatrain.telemetry.metrics import Metric
from quatrain.telemetry.run_log import RunLog
from quatrain.train.learner import Learner
from quatrain.types import Sample


@dataclass(kw_only=True)
class OfflineRun:
    """Everything that an offline step touches. `asked` names the held-out examples and how they are measured."""

    record: Record
    recipe: OfflineRecipe
    algorithm: OfflineAlgorithm
    examples: ExampleStream
    held_out: list[Example]
    reference: ReferenceCache | None
    asked: str
    start: dict[str, Any]  # of the examples, before the first step

    def finish(self, checkpoint: Path) -> None:
        """What is left after the last step: a reward model's normalisation and report."""
        if isinstance(self.recipe.algorithm, RewardModelConfig):
            scored = score_answers(self)
            report_reward(self, scored, normalise_reward(self, checkpoint, scored))


Evaluate = Callable[[OfflineRun, int], Mapping[str, Metric] | None]


@contextlib.contextmanager
def open_offline(recipe: OfflineRecipe, console: Console, evaluate: Evaluate) -> Iterator[OfflineRun]:
    """Load all parts; a folder that already holds this recipe's run is continued from its last checkpoint."""
    with contextlib.ExitStack() as stack:
        with loading() as inner:
            run = _load(recipe, console, inner, evaluate)
            stack.push(inner.pop_all())
        stack.enter_context(run.record.stop.listening())
        if run.reference is not None:
            fill_reference(run, run.reference)
        yield run


def _load(recipe: OfflineRecipe, console: Console, stack: contextlib.ExitStack, evaluate: Evaluate) -> OfflineRun:
    folder = Path(recipe.output)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    stack.enter_context(owned(folder))
    notes = settle_recipe(folder, recipe)
    log = RunLog(folder)
    plan = forecast(recipe, console) if recipe.length.max_tokens else None
    console.say(f"loading {recipe.model.path}")
    torch.manual_seed(recipe.seed)  # adapters start from random numbers
    algorithm: OfflineAlgorithm = OFFLINE_ALGORITHMS.get(recipe.algorithm.name, "algorithm.name")(recipe.algorithm)
    check_best_metric(recipe, algorithm)
    lm = open_model(recipe)
    examples, held_out = open_data(recipe, algorithm, lm.tokenizer, lm.max_positions)
    plan = plan or forecast(recipe, console, examples.longest)  # without a limit only the data say how long rows are
    steps = recipe.train.steps or math.ceil(recipe.train.epochs * len(examples) / recipe.train.examples_per_step)
    config = recipe.train.model_copy(update={"steps": steps})
    learner = Learner(lm, config, 1.0, name=algorithm.role)
    record = Record(
        folder=folder, console=console, stop=StopRequest(console), learner=learner, log=log, forecast=plan,
        checkpoint=recipe.checkpoint, steps=steps, most_empty_steps=steps, stream=("examples", examples), live={},
        evaluate=lambda step: evaluate(run, step), evaluate_every=recipe.evaluation.every,
    )  # fmt: skip
    reads = "reference_logprobs" in algorithm.needs.streams
    run = OfflineRun(
        record=record, recipe=recipe, algorithm=algorithm, examples=examples, held_out=held_out,
        reference=ReferenceCache(folder / "reference.npz") if reads else None,
        asked=question_key(held_out, recipe), start=examples.state_dict(),
    )  # fmt: skip
    settle_model(folder, recipe.model)
    save_recipe(folder, recipe)
    record.resume(notes)
    if algorithm.beside is not None and recipe.model.lora is None:
        learner.reference = load_reference(recipe.model)
    record.open_trackers([*(["tensorboard"] if recipe.log.tensorboard else []), *recipe.log.trackers], stack)
    return run


def open_model(recipe: OfflineRecipe) -> LanguageModel:
    """The model that learns: a policy, or a reward model with a fresh head for every attribute."""
    if isinstance(recipe.algorithm, RewardModelConfig):
        names = list(recipe.algorithm.attributes) or ["reward"]
        return load_scalar_model(recipe.model, names, fresh_head=True, seed=recipe.seed)
    lm = load_language_model(recipe.model)
    check_forward(lm)
    return lm


def open_data(
    recipe: OfflineRecipe, algorithm: OfflineAlgorithm, tokenizer: Any, max_positions: int
) -> tuple[ExampleStream, list[Example]]:
    """The stream of training examples and the held-out ones, which have no question in common with it.

    Raises SettingError for data that the algorithm cannot use, DataError when there is nothing in it to learn from.
    """
    heads = tuple(recipe.algorithm.attributes) if isinstance(recipe.algorithm, RewardModelConfig) else ()
    limits = (algorithm.data, recipe.length, max_positions)

    def stream(exclude: Container[str]) -> ExampleStream:
        return ExampleStream(recipe.data, tokenizer, recipe.seed, *limits, exclude=exclude, attributes=heads)

    if recipe.held_out_share:
        share = split_share(recipe.held_out_share)
        examples = stream(share)
        held_out = held_out_examples(recipe.data, tokenizer, *limits, only=share, attributes=heads)
    else:
        held_out = held_out_examples(recipe.held_out, tokenizer, *limits, attributes=heads) if recipe.held_out else []
        examples = stream(to_exclude(held_out, recipe.overlap))
        check_disjoint(examples.rows(), held_out)
    if isinstance(recipe.algorithm, RewardModelConfig) and not heads and len(examples.attributes) > 1:
        weights = ", ".join(f"{name}: 1.0" for name in examples.attributes)
        raise SettingError("algorithm.attributes", "none", "the heads to train, of those that the data name",
                           f"e.g. attributes: {{{weights}}}")  # fmt: skip
    check_decided(algorithm, examples, held_out)
    start = examples.state_dict()
    examples.take(recipe.train.examples_per_step)  # raises where no example can be trained on
    examples.load_state_dict(start)
    return examples, held_out


def check_decided(algorithm: OfflineAlgorithm, examples: ExampleStream, held_out: Sequence[Example]) -> None:
    """Raises DataError where no answer is preferred to another and the algorithm learns nothing from ties."""
    if algorithm.data not in ("pairs", "scores") or algorithm.uses_ties:
        return
    ranks = {"data": [set(row.streams["rank"]) for row in examples.rows()],
             "held_out": [{sample.streams["rank"][0] for sample in one.samples} for one in held_out]}  # fmt: skip
    for section, rows in ranks.items():
        if rows and all(len(row) < 2 for row in rows):
            raise DataError(f"{section}: every comparison is a tie, from which this algorithm learns nothing; "
                            "give pairs with a better answer, or use dpo or reward_model with ties: half")  # fmt: skip


def offline_arithmetic(run: OfflineRun) -> str:
    """The line printed at the start of a run."""
    rows, each = len(run.examples), run.recipe.train.examples_per_step
    passes = run.record.steps * each / max(rows, 1)
    return (
        f"{rows} examples, {len(run.held_out)} held out; {each} examples per update, {run.record.steps} updates "
        f"({passes:.3g} passes); {run.recipe.train.tokens_per_micro_batch} tokens per micro-batch"
    )


def fill_reference(run: OfflineRun, cache: ReferenceCache) -> None:
    """Reference log-probabilities of every example of the run that are not on disk yet.

    At the start the policy is the reference; later a full-weight reference is loaded for what is missing, and let go.
    Raises Interrupted when the user asks to stop; what is done by then is kept.
    """
    record, each = run.record, run.recipe.train.examples_per_step
    held_out = [run.held_out[start : start + each] for start in range(0, len(run.held_out), each)]
    batches = cache.missing([*planned_batches(run), *held_out])
    if not batches:
        return
    record.console.say(f"reference log-probabilities of {sum(map(len, batches))} examples, once (kept in {cache.path})")
    learner, lora = record.learner, run.recipe.model.lora is not None
    kept = learner.reference
    if record.step and not lora and kept is None:
        learner.reference = load_reference(run.recipe.model)
    stream = "reference_logprobs" if lora or learner.reference is not None else "old_logprobs"

    def annotate(samples: Sequence[Sample]) -> list[Sample]:
        record.stop.check()
        done = learner.annotate(samples, frozenset({stream}), lambda *_: None)
        return [sample.with_streams(reference_logprobs=sample.streams[stream]) for sample in done]

    try:
        cache.fill(batches, annotate, record.phase("reference"))
    except Interrupted:
        raise Interrupted(f"stopped while the reference was computed; {cache.path} keeps what is done, run the same "
                          "command to go on") from None  # fmt: skip
    finally:
        learner.reference = kept


def planned_batches(run: OfflineRun) -> list[list[Example]]:
    """What each step of the whole run takes, until all examples were taken; the stream is left where it stands."""
    now, each = run.examples.state_dict(), run.recipe.train.examples_per_step
    run.examples.load_state_dict(run.start)
    batches: list[list[Example]] = []
    seen: set[int] = set()
    while len(batches) < run.record.steps and len(seen) < len(run.examples):
        batches.append(run.examples.take(each))
        seen |= {example.index for example in batches[-1]}
    run.examples.load_state_dict(now)
    return batches


def question_key(held_out: Sequence[Example], recipe: OfflineRecipe) -> str:
    """Equal for evaluations that ask the same: the examples and the loss."""
    digest = hashlib.sha256(repr(recipe.algorithm.model_dump()).encode())
    for example in held_out:
        for sample in example.samples:
            digest.update(sample.token_ids.tobytes())
    return digest.hexdigest()[:16]


def check_best_metric(recipe: OfflineRecipe, algorithm: OfflineAlgorithm) -> None:
    """Raises SettingError for a `checkpoint.best_metric` that no evaluation of this recipe has."""
    known = ["eval/loss", *(["eval/accuracy"] if algorithm.data in ("pairs", "scores") else [])]
    if recipe.checkpoint.keep_best and recipe.checkpoint.best_metric not in known:
        raise SettingError("checkpoint.best_metric", recipe.checkpoint.best_metric, "a metric of this evaluation",
                           nearest(recipe.checkpoint.best_metric, known))  # fmt: skip
