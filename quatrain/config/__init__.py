"""The recipe: every setting of a run, validated before anything is loaded; importable without torch."""

from collections.abc import Mapping
from typing import Any

from quatrain.config.algorithm import (
    PRESETS,
    AlgorithmConfig,
    CriticConfig,
    KLConfig,
    MismatchConfig,
    PretrainingConfig,
    RewardConfig,
)
from quatrain.config.base import Fraction, NonNegative, Positive, Section, merge
from quatrain.config.label import LabelJudgeConfig, LabelRecipe
from quatrain.config.offline import (
    OFFLINE,
    LengthConfig,
    OfflineAlgorithm,
    OfflineEvalConfig,
    OfflineRecipe,
    OfflineTrainConfig,
    PreferenceConfig,
    RewardModelConfig,
    SFTConfig,
)
from quatrain.config.online import Recipe, batch_arithmetic, check_recipe
from quatrain.config.parts import (
    CheckpointConfig,
    CurriculumConfig,
    DataConfig,
    EvalConfig,
    LogConfig,
    LoraConfig,
    ModelConfig,
    OptimizerConfig,
    ReferenceConfig,
    RolloutConfig,
    SamplingConfig,
    SourceConfig,
    TrainConfig,
    VerifierConfig,
)
from quatrain.config.ranges import warnings_of

AnyRecipe = Recipe | OfflineRecipe


def is_offline(data: Mapping[str, Any]) -> bool:
    """Which kind of recipe plain settings are: told by the method, and without one by the algorithm's name."""
    algorithm = data.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
    return data.get("method", "offline" if name in OFFLINE else "online") == "offline"


__all__ = [
    "OFFLINE",
    "PRESETS",
    "AlgorithmConfig",
    "AnyRecipe",
    "CheckpointConfig",
    "CriticConfig",
    "CurriculumConfig",
    "DataConfig",
    "EvalConfig",
    "Fraction",
    "KLConfig",
    "LabelJudgeConfig",
    "LabelRecipe",
    "LengthConfig",
    "LogConfig",
    "LoraConfig",
    "MismatchConfig",
    "ModelConfig",
    "NonNegative",
    "OfflineAlgorithm",
    "OfflineEvalConfig",
    "OfflineRecipe",
    "OfflineTrainConfig",
    "OptimizerConfig",
    "Positive",
    "PreferenceConfig",
    "PretrainingConfig",
    "Recipe",
    "ReferenceConfig",
    "RewardConfig",
    "RewardModelConfig",
    "RolloutConfig",
    "SFTConfig",
    "SamplingConfig",
    "Section",
    "SourceConfig",
    "TrainConfig",
    "VerifierConfig",
    "batch_arithmetic",
    "check_recipe",
    "is_offline",
    "merge",
    "warnings_of",
]
