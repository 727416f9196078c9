"""PPO-ptx: samples of other text in a policy update, which take part in the language-modelling term alone.

    loss + gamma * mean over their tokens of -logp          Ouyang et al. 2022, arXiv:2203.02155 eq. 2, gamma 27.8

Deviation: the paper's term is a sum over the pre-training distribution as its batch has it; here it is a mean over
tokens, so that gamma does not depend on the length of the examples.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from quatrain.types import Sample

PRETRAINING = "pretraining"  # stream: 1 on the tokens of such a sample, 0 elsewhere; also the name of the loss term


def is_pretraining(sample: Sample) -> bool:
    """True for a sample of the pre-training text."""
    return PRETRAINING in sample.streams and bool(sample.streams[PRETRAINING].any())


def with_pretraining(samples: Sequence[Sample], others: Sequence[Sample]) -> list[Sample]:
    """The samples of an update and those of the text, which get a zero for every stream that the former have."""
    names = [name for name in samples[0].streams if name != "completion_tokens"]
    own = [sample.with_streams(**{PRETRAINING: np.zeros(sample.num_tokens)}) for sample in samples]
    first = 1 + max(max(sample.group, sample.completion) for sample in samples)
    text = [
        replace(other, group=first + number, completion=first + number, streams={}).with_streams(
            **{name: np.zeros(other.num_tokens) for name in names},
            completion_tokens=np.full(other.num_tokens, float(other.num_tokens)),
            **{PRETRAINING: np.ones(other.num_tokens)},
        )
        for number, other in enumerate(others)
    ]
    return own + text
