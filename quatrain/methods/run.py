"""A run's parts, put together from its recipe: opened fresh, or continued from its last checkpoint."""

import contextlib
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from quatrain.algorithms import ALGORITHMS, Algorithm
from quatrain.config import Recipe, SamplingConfig
from quatrain.data.history import PromptHistory
from quatrain.data.overlap import check_disjoint, to_exclude
from quatrain.data.prompts import PromptStream, held_out_prompts, load_sources
from quatrain.errors import DataError, Interrupted, SettingError, nearest
from quatrain.methods.evaluate import Evaluation, evaluate, load_evaluation, question_key
from quatrain.methods.run_folder import (
    best_steps,
    owned,
    save_recipe,
    set_files_aside,
    settle_environment,
    settle_model,
    settle_recipe,
)
from quatrain.models.forward import check_forward
from quatrain.models.load import LanguageModel, load_language_model
from quatrain.rewards.audit import quick_audit
from quatrain.rewards.rubric import Verifiers, build_verifiers
from quatrain.rollout import ENGINES, RolloutEngine
from quatrain.telemetry import TRACKERS, Tracker
from quatrain.telemetry.catalogue import CATALOGUE
from quatrain.telemetry.console import Console
from quatrain.telemetry.metrics import Last, Metric
from quatrain.telemetry.run_log import RunLog
from quatrain.train.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from quatrain.train.learner import Learner
from quatrain.types import Prompt


class StopRequest:
    """Ctrl-C and SIGTERM as a request that the loop reads where the state is whole; a second Ctrl-C stops at once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.signal: int | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals while inside (in the main thread; elsewhere signals cannot be caught)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        old = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        self._console.say("stopping: the state is saved first (Ctrl-C again stops at once)")

    def check(self) -> None:
        """Raise Interrupted when a stop was asked for."""
        if self.signal is not None:
            raise Interrupted("stopped by the user")


@dataclass(kw_only=True)
class Run:
    """Everything that a step touches. `step` is the last finished one; `boundary` the prompts' state after it."""

    recipe: Recipe
    folder: Path
    console: Console
    stop: StopRequest
    learner: Learner
    engine: RolloutEngine
    algorithm: Algorithm
    prompts: PromptStream
    held_out: list[Prompt]
    verifiers: Verifiers
    log: RunLog
    trackers: list[Tracker]
    step: int = 0
    empty_steps: int = 0
    boundary: dict[str, Any] = field(default_factory=dict)

    def phase(self, name: str) -> Callable[[int, int], None]:
        """Where a phase of the step reports how far it is."""
        return lambda done, total: self.console.phase(name, done, total)

    def finish_step(self, metrics: dict[str, Metric]) -> None:
        """The step is whole: count it, move the reference, record it, evaluate and save when due.

        Raises DataError after `train.empty_steps` steps in a row in which no update was made.
        """
        self.step += 1
        self.boundary = self.prompts.state_dict()
        self.empty_steps = 0 if "train/updates" in metrics else self.empty_steps + 1
        metrics["prompts/skipped_long"] = Last(self.prompts.skipped_long)
        metrics |= self.prompts.history.metrics()
        metrics |= self.learner.move_reference(self.step)
        recipe, last = self.recipe, self.step == self.recipe.train.steps
        evaluation = held_out(self, self.step) if self._due(recipe.evaluation.every) and not last else None
        metrics |= evaluation.metrics() if evaluation else {}
        self.log.metrics(self.step, metrics)
        self.console.step(self.step, metrics)
        for tracker in self.trackers:
            tracker.log(self.step, {name: metric.value for name, metric in metrics.items()})
        if last or self._due(recipe.checkpoint.every) or (evaluation and self.step in self._best()):
            self.save()
        if self.empty_steps >= recipe.train.empty_steps:
            self.save()
            raise DataError(
                f"train.empty_steps: {self.empty_steps} steps in a row made no update, because no group had two "
                "different scores; check the verifier (quatrain score) and how hard the prompts are (quatrain probe)"
            )

    def save(self) -> Path:
        """Checkpoint of the last finished step."""
        state = {"prompts": self.boundary, "history": self.prompts.history.state_dict(),
                 "empty_steps": self.empty_steps}  # fmt: skip
        return save_checkpoint(
            self.folder, self.step, self.learner, state, self.recipe.checkpoint.keep_last, self._best()
        )

    def _due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def _best(self) -> list[int]:
        """Steps whose checkpoints are kept for what their evaluation says, this one included."""
        own = self.recipe.checkpoint
        return best_steps(self.folder, own.best_metric, own.keep_best, self.step) if own.keep_best else []


@contextlib.contextmanager
def open_run(recipe: Recipe, console: Console) -> Iterator[Run]:
    """Load all parts; a folder that already holds this recipe's run is continued from its last checkpoint."""
    with contextlib.ExitStack() as stack:
        try:
            run = _load(recipe, console, stack)
        except KeyboardInterrupt:
            raise Interrupted("stopped while loading: nothing was changed; run the same command again") from None
        stack.enter_context(run.stop.listening())
        yield run


def _load(recipe: Recipe, console: Console, stack: contextlib.ExitStack) -> Run:
    """The parts of a run, put together; what they hold is let go of by `stack`."""
    folder = Path(recipe.output)
    check_best_metric(recipe)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    stack.enter_context(owned(folder))
    notes = settle_recipe(folder, recipe)
    log = RunLog(folder)
    verifiers = stack.enter_context(build_verifiers(recipe.rubrics))
    console.say(f"loading {recipe.model.path}")
    torch.manual_seed(recipe.seed)  # adapters start from random numbers
    policy = load_language_model(recipe.model)
    check_forward(policy)
    prompts, held_out, first = _load_prompts(recipe, policy)
    algorithm = ALGORITHMS.get(recipe.algorithm.name, "algorithm.name")(recipe.algorithm, recipe.rollout.max_tokens)
    engine = open_engine(recipe, policy)
    stack.callback(engine.close)
    run = Run(
        recipe=recipe, folder=folder, console=console, stop=StopRequest(console), engine=engine, algorithm=algorithm,
        learner=open_learner(recipe, policy, algorithm), prompts=prompts, held_out=held_out, verifiers=verifiers,
        log=log, trackers=[],
    )  # fmt: skip
    settle_model(folder, recipe.model)
    save_recipe(folder, recipe)
    _resume(run, notes)
    for line in quick_audit(verifiers, first[:2]) if run.step == 0 else []:
        console.warn(line)
    for name in [*(["tensorboard"] if recipe.log.tensorboard else []), *recipe.log.trackers]:
        run.trackers.append(TRACKERS.get(name, "log.trackers")(folder, run.step + 1))
        stack.callback(run.trackers[-1].close)
    return run


def _load_prompts(recipe: Recipe, policy: LanguageModel) -> tuple[PromptStream, list[Prompt], list[Prompt]]:
    """The prompts of training, the held-out ones, which have none in common with them, and those of the first step."""
    room = prompt_room(recipe, policy)
    held_out_rows = list(chain.from_iterable(load_sources(recipe.held_out, "held_out")))
    prompts = PromptStream(recipe.prompts, policy.tokenizer, recipe.seed, room, recipe.rollout.long_prompts,
                           verifiers=recipe.verifiers,
                           exclude=to_exclude(held_out_rows, recipe.overlap),
                           history=PromptHistory(recipe.curriculum))  # fmt: skip
    held_out = held_out_prompts(recipe.held_out, policy.tokenizer, prompt_room(recipe, policy, held_out=True),
                                recipe.rollout.long_prompts, verifiers=recipe.verifiers)  # fmt: skip
    check_disjoint(prompts.rows(), held_out_rows)
    start, seen = prompts.state_dict(), prompts.history.state_dict()
    first = prompts.take(recipe.train.prompts_per_step)  # raises when no prompt leaves room for an answer
    prompts.load_state_dict(start)
    prompts.history.load_state_dict(seen)  # which forgets what this trial took
    return prompts, held_out, first


def _resume(run: Run, notes: list[str]) -> None:
    """Continue from the last checkpoint, if there is one; later rows of the record are set aside."""
    steps = checkpoints(run.folder)
    differing = settle_environment(run.folder)
    if steps:
        trainer = load_checkpoint(run.folder, steps[-1], run.learner)
        run.step, run.empty_steps = trainer["step"], trainer["empty_steps"]
        run.prompts.load_state_dict(trainer["prompts"])
        run.prompts.history.load_state_dict(trainer.get("history", {}))
        run.engine.update_weights(run.step)
    run.boundary = run.prompts.state_dict()
    moved = run.log.set_aside(run.step)
    set_files_aside(run.folder, run.step)
    for leftover in (run.folder / "checkpoints").glob(".writing-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if run.step or moved:
        run.console.say(
            f"continuing {run.folder} after step {run.step}" + (f" ({moved} later rows set aside)" if moved else "")
        )
        run.log.event("resume", f"continued after step {run.step}", run.step, set_aside=moved, changed=notes)
        if differing:
            run.console.warn(
                "this environment is not the one the run began in, so bits may differ: " + "; ".join(differing[:3])
            )
            run.log.event("environment", "environment differs", run.step, changed=differing)


def held_out(run: Run, step: int, interruptible: bool = False) -> Evaluation | None:
    """Evaluate the held-out prompts at `step`; an evaluation of the same prompts that is on disk is not made again.

    None without held-out prompts, and for an earlier step that was not evaluated in this way: its weights are gone.
    """
    if not run.held_out:
        return None
    own, sampling = run.recipe.evaluation, eval_sampling(run.recipe)
    asked = question_key(run.held_out, sampling, own.samples)
    done = load_evaluation(run.folder, step)
    if done is not None and done.asked == asked:
        return done
    if step != run.step:
        run.console.warn(f"held-out prompts or evaluation settings are new since step {step}: no comparison with it")
        return None
    show = run.phase("evaluating")

    def progress(finished: int, total: int) -> None:
        show(finished, total)
        if interruptible:
            run.stop.check()

    done = evaluate(run.engine, run.held_out, run.verifiers, sampling, samples=own.samples,
                    seed=run.recipe.seed, step=step, progress=progress)  # fmt: skip
    done.save(run.folder)
    values = {name: metric.value for name, metric in done.metrics().items()}
    run.log.event("evaluation", f"{len(run.held_out)} held-out prompts", step, **values)
    for tracker in run.trackers:
        tracker.log(step, values)
    return done


def open_engine(recipe: Recipe, policy: LanguageModel) -> RolloutEngine:
    """The engine of a recipe. Raises SettingError for what it cannot do, rather than sampling something else."""
    rollout = recipe.rollout
    engine: RolloutEngine = ENGINES.get(rollout.engine, "rollout.engine")(
        policy, max_rows=rollout.max_rows, max_context=rollout.max_context
    )
    if not engine.capabilities.shares_weights:
        raise SettingError("rollout.engine", rollout.engine, "an engine that reads the trainer's own weights",
                           "sending weights to another process is not in this version")  # fmt: skip
    if not engine.capabilities.truncation and (rollout.top_p < 1 or rollout.top_k or rollout.min_p):
        raise SettingError("rollout.engine", rollout.engine, "an engine that truncates, for top_p, top_k or min_p",
                           "leave these at their defaults or choose another engine")  # fmt: skip
    return engine


def prompt_room(recipe: Recipe, policy: LanguageModel, held_out: bool = False) -> int:
    """Most tokens that a prompt may have, so that a whole answer of training (or of evaluation) fits behind it."""
    limit = recipe.rollout.max_context or policy.max_positions
    if limit > policy.max_positions:
        raise SettingError("rollout.max_context", limit, f"at most the model's {policy.max_positions} positions",
                           "lower it")  # fmt: skip
    setting, longest = "rollout.max_tokens", recipe.rollout.max_tokens
    if held_out and recipe.evaluation.max_tokens:
        setting, longest = "evaluation.max_tokens", recipe.evaluation.max_tokens
    if longest >= limit:
        raise SettingError(setting, longest, f"fewer than the {limit} tokens of a prompt and its answer",
                           "lower it, or raise rollout.max_context if that is set")  # fmt: skip
    return limit - longest


def eval_sampling(recipe: Recipe) -> SamplingConfig:
    """Sampling of evaluations: the evaluation's own settings, length and stops of the rollout where it has none."""
    own = recipe.evaluation
    return SamplingConfig(
        temperature=own.temperature, top_p=own.top_p, top_k=own.top_k, min_p=own.min_p,
        max_tokens=own.max_tokens or recipe.rollout.max_tokens, stop=own.stop or recipe.rollout.stop,
    )  # fmt: skip


def open_learner(recipe: Recipe, policy: LanguageModel, algorithm: Algorithm) -> Learner:
    """The learner, with a frozen copy of the start when the algorithm reads a reference and adapters do not hold it."""
    reads = algorithm.needs.full_kl or any(name.startswith("reference") for name in algorithm.needs.streams)
    kl = recipe.algorithm.kl
    frozen = load_language_model(recipe.model, trainable=False) if reads and recipe.model.lora is None else None
    return Learner(policy, recipe.train, recipe.rollout.temperature, frozen, kl if reads and kl.moves else None)


def check_best_metric(recipe: Recipe) -> None:
    """Raises SettingError for a `checkpoint.best_metric` that no evaluation of this recipe has."""
    own = recipe.checkpoint
    known = {name for name in CATALOGUE if name.startswith("eval/") and "<" not in name}
    known |= {f"eval/{part}" for parts in recipe.rubrics.values() for part in parts}
    if own.keep_best and own.best_metric not in known:
        raise SettingError("checkpoint.best_metric", own.best_metric, "a metric of the held-out evaluation",
                           nearest(own.best_metric, known))  # fmt: skip
