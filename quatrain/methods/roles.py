"""The models of an online run by role: policy, reference, critic; and the text of a pre-training term."""

from quatrain.algorithms import Algorithm
from quatrain.config import LengthConfig, Recipe
from quatrain.data.examples import ExampleStream
from quatrain.errors import SettingError
from quatrain.models.load import LanguageModel, load_reference, load_tokenizer
from quatrain.models.scalar import add_value_head, load_scalar_model
from quatrain.train.learner import Learner

PRETRAINING_STREAM = 5  # added to the seed of the examples' order


def open_learner(recipe: Recipe, policy: LanguageModel, algorithm: Algorithm) -> Learner:
    """The learner with its roles: a frozen copy of the start when the algorithm reads a reference and adapters do not
    hold it, and the critic that `algorithm.critic` asks for."""
    reads = algorithm.needs.full_kl or any(name.startswith("reference") for name in algorithm.needs.streams)
    kl, critic = recipe.algorithm.kl, recipe.algorithm.critic
    frozen = load_reference(recipe.model) if reads and recipe.model.lora is None else None
    moving = kl if reads and kl.moves else None
    if critic is not None and critic.model == "shared":
        add_value_head(policy)
        critic = None
    return Learner(policy, recipe.train, recipe.rollout.temperature, frozen, moving,
                   critic=open_critic(recipe, policy) if critic else None,
                   critic_rate=critic.learning_rate if critic else None)  # fmt: skip


def open_critic(recipe: Recipe, policy: LanguageModel) -> LanguageModel:
    """A separate critic: from `critic.path`, else the reward model if its tokenizer is the policy's, else the policy.

    Its regression head is fresh (Ouyang et al. 2022 start the value function from the reward model).
    """
    own = recipe.algorithm.critic
    assert own is not None
    path = own.path
    if path is not None and not same_tokenizer(path, policy):
        raise SettingError("algorithm.critic.path", path, "a model with the policy's tokenizer",
                           "the critic reads the policy's token ids; choose another, or leave it out")  # fmt: skip
    rewards = reward_paths(recipe).values()
    path = path or next((path for path in rewards if same_tokenizer(path, policy)), recipe.model.path)
    config = recipe.model.model_copy(update={"path": path})
    if config.lora is not None:
        config = config.model_copy(update={"lora": config.lora.model_copy(update={"adapter": None})})
    return load_scalar_model(config, ["value"], fresh_head=True, seed=recipe.seed)


def reward_paths(recipe: Recipe) -> dict[str, str]:
    """Folders of the reward models among the verifiers by their setting, in order."""
    extras = {f"verifiers.{rubric}.{name}.path": part.model_extra or {} for rubric, parts in recipe.verifiers.items()
              for name, part in parts.items() if part.kind == "reward_model"}  # fmt: skip
    return {setting: str(extra["path"]) for setting, extra in extras.items() if "path" in extra}


def other_models(recipe: Recipe) -> dict[str, str]:
    """The models besides the policy that a run reads from folders, by their settings."""
    critic = recipe.algorithm.critic
    own = {"algorithm.critic.path": critic.path} if critic is not None and critic.path is not None else {}
    return reward_paths(recipe) | own


def same_tokenizer(path: str, policy: LanguageModel) -> bool:
    """Whether the tokenizer of a model gives the policy's ids; a padding token that only one of them has is none."""
    own, other = policy.tokenizer, load_tokenizer(path)
    first, second = own.get_vocab(), other.get_vocab()
    return _without(first, own.pad_token, second) == _without(second, other.pad_token, first)


def _without(vocabulary: dict[str, int], padding: str | None, beside: dict[str, int]) -> dict[str, int]:
    return {token: number for token, number in vocabulary.items() if token != padding or token in beside}


def open_pretraining(recipe: Recipe, policy: LanguageModel) -> ExampleStream | None:
    """The examples of `algorithm.pretraining`; None without that section."""
    own = recipe.algorithm.pretraining
    if own is None:
        return None
    return ExampleStream(own.data, policy.tokenizer, recipe.seed + PRETRAINING_STREAM, "sft",
                         LengthConfig(max_tokens=min(own.max_tokens, policy.max_positions)), policy.max_positions,
                         section="algorithm.pretraining.data")  # fmt: skip
