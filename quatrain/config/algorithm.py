"""Credit and loss of the online methods: the group-relative family and PPO as orthogonal choices."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from quatrain.config.base import Fraction, NonNegative, Positive, Section, merge
from quatrain.config.parts import DataConfig
from quatrain.errors import SettingError, nearest


class KLConfig(Section):
    """The KL penalty towards the reference: estimator, where it acts, and how strongly."""

    placement: Literal["none", "loss", "reward", "score"] = "loss"
    estimator: Literal["k1", "k2", "k3", "abs", "full"] = "k3"
    coefficient: Annotated[float, Field(ge=0)] = Field(0.04, description="beta; with a target its first value")
    target: Annotated[float, Field(gt=0)] | None = Field(
        None, description="KL (nats) that the coefficient is steered towards, Ziegler et al. 2019; null: it is fixed"
    )
    target_per: Literal["token", "sequence"] = Field("token", description="what the target is measured over")
    measure: bool = Field(False, description="show the KL to the reference though no penalty is placed anywhere")
    horizon: Positive = Field(10000, description="completions over which the coefficient adapts")
    spike: Annotated[float, Field(gt=0)] | None = Field(
        None, description="mean KL per token (nats) of a step at which the coefficient starts anew; null: never"
    )
    ratio_weighted: bool = Field(False, description="loss placement: rho * estimator with the differentiable ratio")
    refresh_every: NonNegative = Field(0, description="steps after which the reference becomes the policy; 0: never")
    ema: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="after every step, reference = ema * reference + (1 - ema) * policy"
    )

    @model_validator(mode="after")
    def _k1_in_the_loss(self) -> "KLConfig":
        if self.placement == "loss" and self.estimator == "k1" and not self.ratio_weighted:
            raise SettingError(
                "algorithm.kl.estimator",
                "k1",
                "k2, k3, abs or full for kl.placement loss",
                "k1 has zero expected gradient there; or set algorithm.kl.ratio_weighted=true",
            )
        if self.ratio_weighted and self.estimator == "full":
            raise SettingError("algorithm.kl.ratio_weighted", True, "an estimator on sampled tokens",
                               "full is already exact; remove it")  # fmt: skip
        if self.ratio_weighted and self.placement != "loss":
            raise SettingError("algorithm.kl.ratio_weighted", True, "kl.placement loss", "remove it")
        if not self.active and (self.target is not None or self.spike is not None):
            name = "target" if self.target is not None else "spike"
            raise SettingError(f"algorithm.kl.{name}", getattr(self, name), "a KL penalty to steer",
                               "set kl.placement and a kl.coefficient above 0, or remove it")  # fmt: skip
        for name in ("horizon", "target_per"):
            if self.target is None and getattr(self, name) != type(self).model_fields[name].default:
                raise SettingError(f"algorithm.kl.{name}", getattr(self, name), "a kl.target, which alone reads it",
                                   "set kl.target, or remove it")  # fmt: skip
        if self.spike is not None and self.target is None:
            raise SettingError("algorithm.kl.spike", self.spike, "a kl.target: a fixed coefficient has nothing to "
                               "start anew", "set kl.target, or remove it")  # fmt: skip
        return self

    @property
    def active(self) -> bool:
        """True when a reference is needed."""
        return self.placement != "none" and self.coefficient > 0

    @property
    def moves(self) -> bool:
        """True when the reference does not stay the model at the start."""
        return self.refresh_every > 0 or self.ema is not None


class MismatchConfig(Section):
    """Correction for the difference between the sampler's probabilities and the trainer's."""

    truncate: Annotated[float, Field(gt=0)] | None = Field(None, description="weight min(exp(old - sampler), this)")
    level: Literal["token", "sequence"] = "token"
    mask_below: Annotated[float, Field(ge=0)] | None = Field(None, description="drop tokens whose weight is below")
    mask_above: Annotated[float, Field(gt=0)] | None = Field(None, description="drop tokens whose weight is above")


class CriticConfig(Section):
    """The value function of PPO: where it starts, and how it learns and is used."""

    model: Literal["separate", "shared"] = Field(
        "separate", description="a model of its own, or a value head on the policy's backbone"
    )
    path: str | None = Field(
        None, description="model that a separate critic starts from; default: the reward model if its tokenizer is the "
        "policy's, else the policy"
    )  # fmt: skip
    gamma: Fraction = 1.0
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = Field(
        0.95, description="GAE's lambda: higher means more variance and less bias"
    )
    whiten: bool = Field(True, description="advantages of an update are brought to mean 0 and deviation 1")
    value_clip: Annotated[float, Field(gt=0)] | None = Field(0.2, description="range of a value around its old one")
    value_coefficient: Annotated[float, Field(gt=0)] = 0.1
    learning_rate: Annotated[float, Field(gt=0)] | None = Field(None, description="default: train.learning_rate")
    warmup_steps: NonNegative = Field(0, description="first steps in which only the critic learns")


class RewardConfig(Section):
    """What is done to a score before credit is assigned."""

    clip: Annotated[float, Field(gt=0)] | None = Field(None, description="scores are cut to [-clip, clip]")
    normalise: Literal["none", "running"] = Field(
        "none", description="running: divided by the deviation of all scores so far, less their mean"
    )


class PretrainingConfig(Section):
    """PPO-ptx: a language-modelling term on other text in every policy update (Ouyang et al. 2022)."""

    data: list[DataConfig] = Field(min_length=1)
    coefficient: Annotated[float, Field(gt=0)] = 27.8
    examples_per_update: Positive = 8
    max_tokens: Positive = Field(512, description="tokens of an example; longer ones are cut")


class AlgorithmConfig(Section):
    """The policy-gradient methods as orthogonal choices; `preset` fills in a row of the table."""

    name: str = Field("grpo", description="a registered algorithm or FILE.py:CLASS")
    preset: str = "grpo"
    baseline: Literal["group_mean", "leave_one_out", "none", "critic"] = "group_mean"
    scale: Literal["group", "batch", "none"] = "group"
    std: Literal["population", "sample"] = "population"
    std_epsilon: Annotated[float, Field(gt=0)] = 1e-4
    parts: Literal["sum", "normalised"] = Field("sum", description="weighted sum, or each part normalised in its group")
    uniform_groups: Literal["keep", "drop"] = "keep"
    truncated: Literal["as_scored", "mask", "penalise", "bootstrap"] = Field(
        "as_scored", description="completions cut at max_tokens: scored like others, left out, penalised, or "
        "(with a critic) ended by the critic's value in place of the score"
    )  # fmt: skip
    truncation_penalty: Annotated[float, Field(ge=0)] = Field(
        1.0, description="truncated penalise: subtracted from the score of a completion that was cut"
    )
    soft_overlong: Fraction | None = Field(
        None, description="length of DAPO's penalty slope before rollout.max_tokens, as a share of it; null: no penalty"
    )
    refill_rounds: NonNegative = Field(
        0, description="dynamic sampling: how often uniform groups are replaced by those of further prompts; 0: never"
    )
    ratio: Literal["token", "sequence", "sequence_sum"] = "token"
    clip: Literal["two_sided", "detached_cap"] = "two_sided"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    aggregate: Literal["sequence", "token", "constant", "sequence_sum"] = "sequence"
    entropy_coefficient: Annotated[float, Field(ge=0)] = 0.0
    early_stop_kl: Annotated[float, Field(gt=0)] | None = Field(
        None, description="mean KL per token (k3, nats) from the sampling weights after which a step makes no further "
        "policy update; null: never"
    )  # fmt: skip
    kl: KLConfig = Field(default_factory=KLConfig)
    mismatch: MismatchConfig = Field(default_factory=MismatchConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    critic: CriticConfig | None = None
    pretraining: PretrainingConfig | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "AlgorithmConfig":
        check_critic(self)
        if self.kl.refresh_every and self.kl.ema is not None:
            raise SettingError("algorithm.kl.ema", self.kl.ema, "null with algorithm.kl.refresh_every",
                               "a reference is either replaced or averaged; remove one of them")  # fmt: skip
        if not self.kl.active and (self.kl.refresh_every or self.kl.ema is not None):
            raise SettingError("algorithm.kl.placement", self.kl.placement, "a KL penalty, for a moving reference",
                               "set kl.placement and kl.coefficient, or remove refresh_every and ema")  # fmt: skip
        if self.parts == "normalised" and (self.baseline == "none" or self.scale != "group"):
            raise SettingError("algorithm.parts", "normalised", "a group baseline and algorithm.scale group",
                               "each part is centred and scaled within its group")  # fmt: skip
        return self

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        name = data.get("name", "grpo")
        preset = data.get("preset", name if isinstance(name, str) and name in PRESETS else "grpo")
        if not isinstance(preset, str) or preset not in PRESETS:
            raise SettingError("algorithm.preset", preset, "a known preset", nearest(str(preset), PRESETS))
        kl, without = data.get("kl"), PRESETS[preset]["kl"]["placement"] == "none"
        if without and isinstance(kl, Mapping) and kl.get("coefficient") and "placement" not in kl:
            raise SettingError("algorithm.kl.coefficient", kl["coefficient"],
                               f"a kl.placement beside it: the preset {preset} has no KL",
                               "add kl.placement=loss, reward or score")  # fmt: skip
        merged = merge(PRESETS[preset], data)
        settled = merged.get("kl")
        if isinstance(settled, Mapping) and (settled.get("placement") == "none" or settled.get("coefficient") == 0):
            given = kl if isinstance(kl, Mapping) else {}
            merged["kl"] = {name: value for name, value in settled.items() if name != "target" or name in given}
        return merged


# The preset table of the family, one row of data each; keys not named keep AlgorithmConfig's defaults.
PRESETS: dict[str, dict[str, Any]] = {
    "grpo": {"kl": {"placement": "loss", "estimator": "k3", "coefficient": 0.04}},
    "dapo": {"clip_high": 0.28, "aggregate": "token", "kl": {"placement": "none"}, "refill_rounds": 3,
             "soft_overlong": 0.2},
    "dr_grpo": {"scale": "none", "aggregate": "constant", "kl": {"placement": "none"}},
    "gspo": {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4, "kl": {"placement": "none"}},
    "cispo": {"clip": "detached_cap", "aggregate": "token", "kl": {"placement": "none"}},
    "rloo": {"baseline": "leave_one_out", "scale": "none", "ratio": "sequence_sum", "aggregate": "sequence_sum",
             "kl": {"placement": "score", "estimator": "k1", "coefficient": 0.05}},
    "reinforce_pp": {"baseline": "none", "scale": "batch", "aggregate": "token",
                     "kl": {"placement": "reward", "estimator": "k1", "coefficient": 0.01}},
    "ppo": {"name": "ppo", "baseline": "critic", "scale": "none", "aggregate": "token", "critic": {},
            "kl": {"placement": "reward", "estimator": "k1", "coefficient": 0.05, "target": 0.05}},
}  # fmt: skip


def check_critic(algorithm: AlgorithmConfig) -> None:
    """What a critic takes the place of, and what only a critic can do; raises SettingError."""
    has, ppo = algorithm.baseline == "critic", algorithm.name == "ppo"
    if has != ppo and algorithm.name in ("grpo", "ppo"):
        raise SettingError("algorithm.baseline", algorithm.baseline, f"{'critic' if ppo else 'a group baseline'} for "
                           f"algorithm.name {algorithm.name}", "choose algorithm.preset=ppo for a critic")  # fmt: skip
    if has != (algorithm.critic is not None):
        raise SettingError("algorithm.critic", algorithm.critic, "a section exactly when algorithm.baseline is critic",
                           "choose algorithm.preset=ppo, or remove the section")  # fmt: skip
    if not has:
        reward = algorithm.reward
        if algorithm.truncated == "bootstrap":
            raise SettingError("algorithm.truncated", "bootstrap", "a critic", "choose algorithm.preset=ppo")
        if reward.clip is not None or reward.normalise != "none":
            raise SettingError("algorithm.reward", reward.model_dump(), "a critic (groups are compared as scored)",
                               "choose algorithm.preset=ppo, or remove it")  # fmt: skip
        return
    assert algorithm.critic is not None
    if algorithm.critic.model == "shared":
        for name in ("path", "learning_rate", "warmup_steps"):
            if getattr(algorithm.critic, name):
                raise SettingError(f"algorithm.critic.{name}", getattr(algorithm.critic, name),
                                   "critic.model separate", "a shared one is trained with the policy")  # fmt: skip
    unused: dict[str, Any] = {"scale": "none", "std": "population", "std_epsilon": 1e-4, "parts": "sum",
                              "ratio": "token", "clip": "two_sided", "uniform_groups": "keep",
                              "refill_rounds": 0}  # fmt: skip
    for name, value in unused.items():
        if getattr(algorithm, name) != value:
            raise SettingError(f"algorithm.{name}", getattr(algorithm, name), f"{value} with a critic",
                               "it belongs to the group-relative methods; remove it")  # fmt: skip
    if algorithm.kl.placement == "score":
        raise SettingError("algorithm.kl.placement", "score", "reward, loss or none with a critic", "use reward")
