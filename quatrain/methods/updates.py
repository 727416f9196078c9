"""The updates of a step: which samples each takes, and when the policy or the critic sits one out."""

from collections.abc import Sequence

import numpy as np

from quatrain.algorithms.pretraining import with_pretraining
from quatrain.config import Recipe
from quatrain.errors import NonFiniteError
from quatrain.methods.run import Run
from quatrain.methods.run_folder import save_samples
from quatrain.telemetry.metrics import Metric, Sum
from quatrain.types import Sample

MINI_BATCH_STREAM = 2  # second word of the seed of the mini-batches' order


def make_updates(run: Run, samples: Sequence[Sample], step: int) -> list[dict[str, Metric]]:
    """Policy and critic on every batch of the step.

    The policy waits for the critic in its first `critic.warmup_steps` steps, and makes no further update of this step
    once an update saw it more than `early_stop_kl` away from the weights that sampled. A loss that is not finite ends
    the run; its samples are written down.
    """
    own = run.recipe.algorithm
    warming = own.critic is not None and step <= own.critic.warmup_steps
    stopped, done = False, []
    for number, batch in enumerate(update_batches(run.recipe, samples, step), 1):
        if number == 1:
            run.stop.check()
        try:
            if run.algorithm.critic is not None:
                progress = run.phase(f"critic update {number}")
                done.append(run.learner.update(batch, run.algorithm.critic, step, progress))
            if warming or stopped:
                done.append({"train/updates_early_stopped" if stopped else "train/updates_skipped": Sum(1)})
                continue
            if own.pretraining is not None and run.pretraining is not None:
                text = run.pretraining.take(own.pretraining.examples_per_update)
                batch = with_pretraining(batch, [sample for example in text for sample in example.samples])
            done.append(run.learner.update(batch, run.algorithm, step, run.phase(f"update {number}")))
        except NonFiniteError as error:
            path = save_samples(run.folder, step, error.samples)
            raise NonFiniteError(f"step {step}: {error}; they are written to {path}") from None
        moved = done[-1].get("kl/old_k3")
        stopped = own.early_stop_kl is not None and moved is not None and float(moved.value) > own.early_stop_kl
    return done


def update_batches(recipe: Recipe, samples: Sequence[Sample], step: int) -> list[list[Sample]]:
    """The samples of each update: groups stay whole; from the second epoch on they are shuffled anew."""
    groups = list(range(recipe.train.prompts_per_step))
    batches = []
    for epoch in range(recipe.train.epochs):
        key = (recipe.seed, MINI_BATCH_STREAM, step, epoch)
        order = groups if epoch == 0 else np.random.default_rng(key).permutation(groups)
        for part in np.array_split(order, recipe.train.updates_per_step):
            chosen = set(part.tolist())
            batches.append([item for item in samples if item.group in chosen])
    return [batch for batch in batches if batch]
