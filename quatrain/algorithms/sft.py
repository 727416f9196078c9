"""Supervised fine-tuning: -logp of the answers' tokens.

token      sum over trained tokens of -logp / trained tokens of the update
sequence   mean over examples of their mean -logp
"""

from collections.abc import Sequence

from quatrain.algorithms import OFFLINE_ALGORITHMS, LossSums, Needs, Outputs
from quatrain.algorithms.statistics import Reading, reduce_readings
from quatrain.batch import TrainBatch
from quatrain.config import SFTConfig
from quatrain.ops.segments import segment_count
from quatrain.telemetry.metrics import Mean
from quatrain.types import Sample


@OFFLINE_ALGORITHMS.register("sft")
class SFT:
    """The loss on prompts with one answer."""

    role = "policy"
    data = "sft"
    uses_ties = False
    beside = None
    needs = Needs()

    def __init__(self, config: SFTConfig) -> None:
        self.config = config

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples as they are."""
        return list(samples)

    def contributes(self, sample: Sample) -> bool:
        """Every answer does."""
        return sample.num_tokens > 0

    def denominators(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Trained tokens, or examples."""
        by_token = self.config.aggregate == "token"
        return {"sft": float(sum(sample.num_tokens for sample in samples) if by_token else len(samples))}

    def loss(self, batch: TrainBatch, outputs: Outputs) -> LossSums:
        """The sum of `sft`."""
        nll_N = -outputs.logprobs_N
        weighted_N = nll_N
        if self.config.aggregate == "sequence":
            weighted_N = nll_N / segment_count(batch.sample_N, batch.num_samples, nll_N)[batch.sample_N]
        readings: list[Reading] = [("sft/nll", Mean, nll_N), ("policy/entropy", Mean, outputs.entropy_N)]
        return LossSums(terms={"sft": weighted_N.sum()}, statistics=reduce_readings(readings))


DOCUMENTED = {"sft/nll": "Mean negative log-probability of the answers' tokens (nats); its exp is the perplexity."}
