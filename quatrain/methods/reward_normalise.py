"""A finished reward model's scores brought to a known place, and the constants stored with it."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quatrain.config import RewardModelConfig
from quatrain.methods.reward_scores import Scored
from quatrain.models.scalar import RewardInfo, store_reward_info
from quatrain.train.checkpoint import save_configuration

if TYPE_CHECKING:
    from quatrain.methods.offline_run import OfflineRun


def normalise_reward(run: "OfflineRun", checkpoint: Path, scored: Scored) -> RewardInfo:
    """Take mean and deviation of every head over the answers in `scored`, write them into config.json, return them.

    standard    mean 0 and deviation 1 over all answers (Ziegler et al. 2019, arXiv:1909.08593)
    zero_mean   mean 0 over the preferred answers alone (Stiennon et al. 2020, arXiv:2009.01325)
    """
    config, lm = run.recipe.algorithm, run.record.learner.roles["reward"].lm
    assert isinstance(config, RewardModelConfig)
    names = tuple(config.attributes) or ("reward",)
    weights = tuple(config.attributes.values()) or (1.0,)
    means, deviations = [0.0] * len(names), [1.0] * len(names)
    if config.normalise != "none":
        scores_NH = np.concatenate(scored.scores)
        if config.normalise == "zero_mean":
            samples = [sample for example in scored.examples for sample in example.samples]
            scores_NH = scores_NH[[sample.streams["rank"][0] == 0 for sample in samples]]
        else:
            deviations = [value if value > 1e-8 else 1.0 for value in scores_NH.std(0).tolist()]
        means = scores_NH.mean(0).tolist()
    info = RewardInfo(attributes=names, weights=weights, mean=tuple(means), std=tuple(deviations))
    store_reward_info(lm, info)
    save_configuration(lm, checkpoint / "reward")
    return info
