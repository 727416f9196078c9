"""Settings outside the ranges that runs are known to work in: each with its effect, in one line; nothing is refused."""

from collections.abc import Iterator

from quatrain.config.online import Recipe

LARGE, LARGE_RATE = 7e9, 1e-6  # the largest learning rate for so many parameters, all of them trained


def warnings_of(recipe: Recipe, parameters: int | None = None, experts: bool = False) -> list[str]:
    """What is unusual about a recipe. `parameters` and `experts` (a mixture of them): of the model, where known.

    The ranges of PPO: beta 0.02-0.2, eps 0.1-0.2, lambda 0.9-0.99, c_v 0.1-1, c_e up to 0.01, K up to 4, 64-512
    completions a step. The group-relative methods: eps up to 0.3, K up to 4, groups of 8 (16 of a mixture of experts).
    A learning rate is large above 1e-6 * 7e9 / parameters, and above 1e-6 for more than that, all weights trained.
    """
    found = [*_clip(recipe), *_epochs(recipe), *_rate(recipe, parameters)]
    return [*found, *(_ppo(recipe) if recipe.algorithm.name == "ppo" else _group(recipe, experts))]


def _clip(recipe: Recipe) -> Iterator[str]:
    own = recipe.algorithm
    for name, value in (("clip_low", own.clip_low), ("clip_high", own.clip_high)):
        if own.clip == "detached_cap" and name == "clip_low":
            continue
        if value > 0.3:
            yield (f"algorithm.{name}: {value:g} is far above 0.2: one update may move a token's probability by more "
                   "than 30 %, and the policy may collapse within a few steps")  # fmt: skip
        elif own.name == "ppo" and not 0.1 <= value <= 0.2:
            effect = "updates are cut early and learning is slow" if value < 0.1 else "updates are large and unsteady"
            yield f"algorithm.{name}: {value:g} is outside 0.1-0.2: {effect}"


def _epochs(recipe: Recipe) -> Iterator[str]:
    if recipe.train.epochs > 4:
        yield (f"train.epochs: {recipe.train.epochs} is above 4: later passes learn from completions that the policy "
               "would no longer write, and most of their tokens are clipped")  # fmt: skip


def _rate(recipe: Recipe, parameters: int | None) -> Iterator[str]:
    if parameters is None or recipe.model.lora is not None:
        return
    largest = LARGE_RATE * max(1.0, LARGE / max(parameters, 1))
    if recipe.train.learning_rate > largest:
        yield (f"train.learning_rate: {recipe.train.learning_rate:g} is above {largest:.2g}, which is large for "
               f"{parameters:,} trained parameters: the reward may rise for a few steps and then collapse")  # fmt: skip


def _group(recipe: Recipe, experts: bool) -> Iterator[str]:
    size, usual = recipe.rollout.group_size, 16 if experts else 8
    if size < usual:
        yield (f"rollout.group_size: {size} is below {usual}{', for a mixture of experts' if experts else ''}: the "
               "baseline is a mean of few scores, and more groups have no difference to learn from")  # fmt: skip


def _ppo(recipe: Recipe) -> Iterator[str]:
    yield from _penalty(recipe)
    own, completions = recipe.algorithm, recipe.train.prompts_per_step * recipe.rollout.group_size
    critic = own.critic
    if critic is not None and not 0.9 <= critic.gae_lambda <= 0.99:
        low, high = "less variance, but the critic's errors become bias", "less bias from the critic, but more variance"
        effect = low if critic.gae_lambda < 0.9 else high
        yield f"algorithm.critic.gae_lambda: {critic.gae_lambda:g} is outside 0.9-0.99: {effect}"
    if critic is not None and not 0.1 <= critic.value_coefficient <= 1:
        shared, own_model = "it competes with the policy on one backbone", "Adam undoes most of it; set its rate"
        effect = shared if critic.model == "shared" else own_model
        yield f"algorithm.critic.value_coefficient: {critic.value_coefficient:g} is outside 0.1-1: {effect}"
    if own.entropy_coefficient > 0.01:
        yield (f"algorithm.entropy_coefficient: {own.entropy_coefficient:g} is above 0.01: the bonus may outweigh the "
               "reward, and completions turn to noise")  # fmt: skip
    if not 64 <= completions <= 512:
        few, many = "advantages of few completions make noisy updates", "many samples are old when they are used"
        effect = few if completions < 64 else many
        yield f"train.prompts_per_step: {completions} completions a step are outside 64-512: {effect}"


def _penalty(recipe: Recipe) -> Iterator[str]:
    kl = recipe.algorithm.kl
    beta = kl.coefficient if kl.active else 0.0
    if beta < 0.02:
        yield (f"algorithm.kl.coefficient: {beta:g} is below 0.02: little holds the policy near the reference, and it "
               "may learn what only the reward model likes")  # fmt: skip
    elif beta > 0.2:
        yield f"algorithm.kl.coefficient: {beta:g} is above 0.2: the penalty outweighs the reward, little is learned"
