"""PPO with a critic (Schulman et al. 2017, arXiv:1707.06347; for language models Ouyang et al. 2022, arXiv:2203.02155).

    r_t    = -beta k1_t + [t is last] score
    delta  = r_t + gamma V_{t+1} - V_t,   A_t = sum_l (gamma lambda)^l delta_{t+l},   R_t = A_t + V_t
    policy = mean_t -min(rho A, clip(rho, 1 - eps, 1 + eps) A)                          A whitened over the update
    value  = c_v mean_t 0.5 max((V - R)^2, (clip(V, V_old - eps_v, V_old + eps_v) - R)^2)

PPO acts on tokens, not on whole completions: V_t is read before token t. The policy's loss is that of `grpo.py`; the
critic is a model of its own with its own optimizer, or a value head whose loss is a term beside the policy's.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quatrain.algorithms import ALGORITHMS, Group, LossSums, Needs, Outputs
from quatrain.algorithms.credit import Credit, Verdict, credited_samples, judge
from quatrain.algorithms.grpo import GRPO
from quatrain.algorithms.statistics import Reading, credit_statistics, reduce_readings
from quatrain.algorithms.value_statistics import VALUE_DOCUMENTED, value_statistics
from quatrain.batch import TrainBatch
from quatrain.config import AlgorithmConfig, CriticConfig
from quatrain.ops.advantages import Floats
from quatrain.ops.controllers import RunningMoments
from quatrain.ops.gae import gae, token_rewards, whiten
from quatrain.ops.value_loss import value_loss
from quatrain.telemetry.metrics import Last, Mean, Metric
from quatrain.types import Sample

DOCUMENTED = VALUE_DOCUMENTED  # beside those of `grpo.py`
OF_GROUPS = ("groups/", "reward/std_within_group")  # completions are not compared here: such shares would mislead


class ValueObjective:
    """The critic's loss on the tokens of judged completions, coefficient included."""

    role = "critic"
    needs = Needs()

    def __init__(self, config: CriticConfig) -> None:
        self.config = config

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples as they are: returns are taken before any whitening."""
        return list(samples)

    def contributes(self, sample: Sample) -> bool:
        """False for a completion that nobody could judge, and for pre-training text."""
        return bool(sample.streams["valued"].any())

    def denominators(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Trained tokens of judged completions."""
        return {"value": max(sum(float(sample.streams["valued"].sum()) for sample in samples), 1.0)}

    def loss(self, batch: TrainBatch, outputs: Outputs) -> LossSums:
        """The sum of `value` over the trained tokens."""
        if outputs.values_NK is None:
            raise ValueError("values_NK: got none, need the critic's values of the trained tokens")
        values_N = outputs.values_NK[:, 0]
        streams = {name: batch.streams[name].to(values_N) for name in ("values", "returns", "valued")}
        loss_N = value_loss(values_N, streams["values"], streams["returns"], self.config.value_clip)
        judged_N = streams["valued"] > 0
        moved_N = (values_N - streams["values"]).abs()[judged_N]
        readings: list[Reading] = [("critic/value_mean", Mean, values_N[judged_N])]
        if self.config.value_clip is not None:
            readings.append(("critic/clip_fraction", Mean, moved_N > self.config.value_clip))
        total = self.config.value_coefficient * (streams["valued"] * loss_N).sum()
        return LossSums(terms={"value": total}, statistics=reduce_readings(readings))


@ALGORITHMS.register("ppo")
class PPO:
    """Credit by generalised advantage estimation, the clipped policy loss, and the critic's objective."""

    role = "policy"

    def __init__(self, config: AlgorithmConfig, max_tokens: int) -> None:
        assert config.critic is not None
        self.config, self.settings = config, config.critic
        self.policy = GRPO(config, max_tokens)
        self.controller = self.policy.controller
        self.values = ValueObjective(config.critic)
        self.shared = config.critic.model == "shared"
        self.critic = None if self.shared else self.values
        streams = self.policy.needs.streams | {"values"}
        self.needs = replace(self.policy.needs, streams=streams, values=self.shared)
        self.moments = self._seen = RunningMoments()

    def credit(self, groups: Sequence[Group]) -> tuple[list[Sample], dict[str, Metric]]:
        """Samples with `advantages` (not yet whitened), `returns`, `valued`, `completion_tokens` and `active`."""
        verdicts = [judge(group, self.config, self.controller.coefficient) for group in groups]
        scores = self._rewards(verdicts)
        samples, credits = [], []
        for group, verdict, own in zip(groups, verdicts, scores, strict=True):
            advantages = [self._advantages(group, verdict, index, own[index]) for index in range(len(own))]
            credits.append(Credit(verdict=verdict, advantages=advantages))
            samples += self._valued(group, credits[-1])
        statistics = {**credit_statistics(groups, credits), **value_statistics(samples)}
        statistics = {name: metric for name, metric in statistics.items() if not name.startswith(OF_GROUPS)}
        if self.config.reward.normalise == "running":
            statistics["reward/seen_mean"] = Last(self._seen.mean)
            statistics["reward/seen_std"] = Last(float(np.sqrt(self._seen.variance)))
        return samples, statistics

    def prepare(self, samples: Sequence[Sample]) -> list[Sample]:
        """Advantages whitened over every trained token of the update that has one."""
        valued = [sample for sample in samples if sample.streams["valued"].any()]
        if not self.settings.whiten or not valued:
            return list(samples)
        white = whiten(np.concatenate([sample.streams["advantages"] for sample in valued]))
        pieces = np.split(white, np.cumsum([sample.num_tokens for sample in valued])[:-1])
        new = {id(sample): piece for sample, piece in zip(valued, pieces, strict=True)}
        return [one.with_streams(advantages=new[id(one)]) if id(one) in new else one for one in samples]

    def contributes(self, sample: Sample) -> bool:
        """Whether the policy's loss, or the value head's beside it, acts on the sample."""
        return self.policy.contributes(sample) or (self.shared and self.values.contributes(sample))

    def denominators(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Those of the policy's terms, and of the value head's."""
        return self.policy.denominators(samples) | (self.values.denominators(samples) if self.shared else {})

    def loss(self, batch: TrainBatch, outputs: Outputs) -> LossSums:
        """Sums of the policy's terms, and with a shared backbone of `value`."""
        sums = self.policy.loss(batch, outputs)
        if not self.shared:
            return sums
        own = self.values.loss(batch, outputs)
        return LossSums(terms={**sums.terms, **own.terms}, statistics={**sums.statistics, **own.statistics})

    def finish_step(self, samples: Sequence[Sample]) -> dict[str, Metric]:
        """Steer the KL coefficient; the scores of the step are counted among those seen."""
        self.moments = self._seen
        return self.policy.finish_step(samples)

    def state_dict(self) -> dict[str, Any]:
        """The KL coefficient and the moments of the scores."""
        return {**self.policy.state_dict(), "moments": self.moments.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        self.policy.load_state_dict(state)
        if "moments" in state:
            self.moments = RunningMoments()
            self.moments.load_state_dict(state["moments"])
        self._seen = self.moments

    def _rewards(self, verdicts: Sequence[Verdict]) -> list[Floats]:
        """The scores of every group as they are used: normalised by all scores seen, this step's included, then cut."""
        own = self.config.reward
        if own.normalise == "running":
            self._seen = copy.copy(self.moments)
            self._seen.update(score for verdict in verdicts for score in verdict.scores[verdict.usable])
        result = []
        for verdict in verdicts:
            scores = verdict.scores.copy()
            if own.normalise == "running":
                scores = np.array([self._seen.normalise(score) for score in scores])
            result.append(scores if own.clip is None else scores.clip(-own.clip, own.clip))
        return result

    def _advantages(self, group: Group, verdict: Verdict, index: int, score: float) -> Floats:
        """GAE over all trained tokens of a completion; zeros where it could not be judged.

        A completion that was cut is ended by the critic's value in place of its score with `truncated: bootstrap`.
        """
        samples, penalties = group.samples[index], verdict.penalties[index]
        if not verdict.usable[index]:
            return np.zeros(len(penalties))
        values = np.concatenate([sample.streams["values"] for sample in samples])
        after = 0.0
        if group.truncated[index] and self.config.truncated == "bootstrap":
            score, after = 0.0, float(samples[-1].streams["next_values"][-1])
        rewards = token_rewards(penalties, score, group.scores[index].placed)
        following = np.append(values[1:], after)
        return gae(rewards, values, following, self.settings.gamma, self.settings.gae_lambda)[0]

    def _valued(self, group: Group, credit: Credit) -> list[Sample]:
        """The samples of a group with the critic's targets and a flag of those that have one."""
        usable = {group.samples[index][0].completion for index in np.flatnonzero(credit.verdict.usable)}
        return [
            sample.with_streams(
                returns=sample.streams["advantages"] + sample.streams["values"],
                valued=np.full(sample.num_tokens, float(sample.completion in usable)),
            )
            for sample in credited_samples(group, credit)
        ]
