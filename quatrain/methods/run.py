"""An online run's parts, put together from its recipe: opened fresh, or continued from its last checkpoint."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from quatrain.algorithms import ALGORITHMS, Algorithm
from quatrain.config import Recipe, SamplingConfig
from quatrain.data.examples import ExampleStream
from quatrain.data.history import PromptHistory
from quatrain.data.overlap import check_disjoint, to_exclude
from quatrain.data.prompts import PromptStream, held_out_prompts, load_sources
from quatrain.errors import SettingError, nearest
from quatrain.methods.evaluate import Evaluation, evaluate, load_evaluation, question_key
from quatrain.methods.record import Record, Stateful, StopRequest, forecast, loading
from quatrain.methods.roles import open_learner, open_pretraining, other_models
from quatrain.methods.run_folder import owned, save_recipe, settle_model, settle_recipe
from quatrain.models.forward import check_forward
from quatrain.models.load import LanguageModel, load_language_model
from quatrain.rewards.audit import quick_audit
from quatrain.rewards.rubric import Verifiers, build_verifiers
from quatrain.rollout import ENGINES, RolloutEngine
from quatrain.telemetry.catalogue import CATALOGUE
from quatrain.telemetry.console import Console
from quatrain.telemetry.metrics import Last, Metric
from quatrain.telemetry.run_log import RunLog
from quatrain.train.learner import Learner
from quatrain.types import Prompt


@dataclass(kw_only=True)
class Run:
    """Everything that an online step touches."""

    record: Record
    recipe: Recipe
    engine: RolloutEngine
    algorithm: Algorithm
    prompts: PromptStream
    held_out: list[Prompt]
    verifiers: Verifiers
    pretraining: ExampleStream | None = None

    @property
    def folder(self) -> Path:
        """Where the run is written."""
        return self.record.folder

    @property
    def console(self) -> Console:
        """What the user sees."""
        return self.record.console

    @property
    def stop(self) -> StopRequest:
        """Whether the user wants to stop."""
        return self.record.stop

    @property
    def learner(self) -> Learner:
        """The models that learn, and the reference."""
        return self.record.learner

    @property
    def step(self) -> int:
        """The last finished step."""
        return self.record.step

    def phase(self, name: str) -> Callable[[int, int], None]:
        """Where a phase of the step reports how far it is."""
        return self.record.phase(name)

    def finish_step(self, metrics: dict[str, Metric]) -> None:
        """The step is whole; see `Record.finish_step`."""
        metrics["prompts/skipped_long"] = Last(self.prompts.skipped_long)
        metrics |= self.prompts.history.metrics()
        self.record.finish_step(metrics)

    def save(self) -> Path:
        """Checkpoint of the last finished step."""
        return self.record.save()


@contextlib.contextmanager
def open_run(recipe: Recipe, console: Console) -> Iterator[Run]:
    """Load all parts; a folder that already holds this recipe's run is continued from its last checkpoint."""
    with contextlib.ExitStack() as stack:
        with loading() as inner:
            run = _load(recipe, console, inner)
            stack.push(inner.pop_all())
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
    check_tells(recipe, verifiers)
    plan = forecast(recipe, console)
    console.say(f"loading {recipe.model.path}")
    torch.manual_seed(recipe.seed)  # adapters start from random numbers
    policy = load_language_model(recipe.model)
    check_forward(policy)
    prompts, held_out_rows, first = _load_prompts(recipe, policy)
    algorithm = ALGORITHMS.get(recipe.algorithm.name, "algorithm.name")(recipe.algorithm, recipe.rollout.max_tokens)
    engine = open_engine(recipe, policy)
    stack.callback(engine.close)
    learner = open_learner(recipe, policy, algorithm)
    pretraining = open_pretraining(recipe, policy)
    live: dict[str, Stateful] = {"history": prompts.history, "algorithm": algorithm}
    record = Record(
        folder=folder, console=console, stop=StopRequest(console), learner=learner, log=log, forecast=plan,
        checkpoint=recipe.checkpoint, steps=recipe.train.steps, most_empty_steps=recipe.train.empty_steps,
        evaluate=lambda step: evaluation_metrics(run, step), evaluate_every=recipe.evaluation.every,
        stream=("prompts", prompts), live=live | ({"pretraining": pretraining} if pretraining else {}),
    )  # fmt: skip
    run = Run(record=record, recipe=recipe, engine=engine, algorithm=algorithm, prompts=prompts,
              held_out=held_out_rows, verifiers=verifiers, pretraining=pretraining)  # fmt: skip
    settle_model(folder, recipe.model, other_models(recipe))
    save_recipe(folder, recipe)
    record.resume(notes)
    if run.step:
        engine.update_weights(run.step)
    for line in quick_audit(verifiers, first[:2]) if run.step == 0 else []:
        console.warn(line)
    record.open_trackers([*(["tensorboard"] if recipe.log.tensorboard else []), *recipe.log.trackers], stack)
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


def evaluation_metrics(run: Run, step: int) -> Mapping[str, Metric] | None:
    """The metrics of an evaluation during the run; None without held-out prompts."""
    evaluation = held_out(run, step)
    return evaluation.metrics() if evaluation else None


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
    run.record.log.event("evaluation", f"{len(run.held_out)} held-out prompts", step, **values)
    for tracker in run.record.trackers:
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
    behind = recipe.algorithm.critic is not None and limit == policy.max_positions  # the state after the last token
    return limit - longest - behind


def eval_sampling(recipe: Recipe) -> SamplingConfig:
    """Sampling of evaluations: the evaluation's own settings, length and stops of the rollout where it has none."""
    own = recipe.evaluation
    return SamplingConfig(
        temperature=own.temperature, top_p=own.top_p, top_k=own.top_k, min_p=own.min_p,
        max_tokens=own.max_tokens or recipe.rollout.max_tokens, stop=own.stop or recipe.rollout.stop,
    )  # fmt: skip


def check_tells(recipe: Recipe, verifiers: Verifiers) -> None:
    """Raises SettingError when the best checkpoints are to be those with the most right answers and nobody can tell."""
    own = recipe.checkpoint
    if own.keep_best and own.best_metric == "eval/accuracy" and all(one.graded for one in verifiers.rubrics.values()):
        raise SettingError("checkpoint.best_metric", own.best_metric, "a metric that these verifiers tell (what they "
                           "say is a degree, never right or wrong)", "use eval/reward")  # fmt: skip


def check_best_metric(recipe: Recipe) -> None:
    """Raises SettingError for a `checkpoint.best_metric` that no evaluation of this recipe has."""
    own = recipe.checkpoint
    known = {name for name in CATALOGUE if name.startswith("eval/") and "<" not in name}
    known |= {f"eval/{part}" for parts in recipe.rubrics.values() for part in parts}
    if own.keep_best and own.best_metric not in known:
        raise SettingError("checkpoint.best_metric", own.best_metric, "a metric of the held-out evaluation",
                           nearest(own.best_metric, known))  # fmt: skip
