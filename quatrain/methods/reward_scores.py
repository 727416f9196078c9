"""What a finished reward model says of its held-out answers, scored once for normalisation and report."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from quatrain.batch import build, split_by_tokens
from quatrain.data.examples import Example
from quatrain.methods.evaluate import Floats
from quatrain.models.scalar import token_values
from quatrain.types import Sample

if TYPE_CHECKING:
    from quatrain.methods.offline_run import OfflineRun

MOST_EXAMPLES = 1000  # training examples that stand in for held-out ones


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """Examples with the raw score of every head for each of their answers, scores_KH in float64."""

    examples: tuple[Example, ...]
    scores: tuple[Floats, ...]
    held_out: bool


def score_answers(run: "OfflineRun") -> Scored:
    """All held-out answers, or those of up to MOST_EXAMPLES training examples where nothing is held out.

    Raises Interrupted when the user asks to stop.
    """
    record = run.record
    examples = run.held_out or training_examples(run, MOST_EXAMPLES)
    samples: list[Sample] = []
    for group, example in enumerate(examples):
        samples += [replace(one, group=group, completion=len(samples) + k) for k, one in enumerate(example.samples)]
    lm, train = record.learner.roles["reward"].lm, record.learner.config
    micro_batches = split_by_tokens(samples, train.tokens_per_micro_batch, train.builder)
    scores_NH = np.zeros((len(samples), len(lm.causal.score.weight)))
    show = record.phase("scoring")
    with lm.inference():
        for number, micro in enumerate(micro_batches, 1):
            rows = [sample.completion for sample in micro]
            scores_NH[rows] = token_values(lm, build(micro, train.builder)).double().cpu().numpy()
            show(number, len(micro_batches))
            record.stop.check()
    ends = np.cumsum([len(example.samples) for example in examples])[:-1]
    return Scored(examples=tuple(examples), scores=tuple(np.split(scores_NH, ends)), held_out=bool(run.held_out))


def training_examples(run: "OfflineRun", most: int) -> list[Example]:
    """The next `most` training examples (all, where there are fewer); the stream is left where it stands."""
    now = run.examples.state_dict()
    found = run.examples.take(min(most, len(run.examples)))
    run.examples.load_state_dict(now)
    return found
