"""Everything about a recipe that can be checked without its weights."""

from itertools import chain
from pathlib import Path

from quatrain.algorithms import ALGORITHMS, OFFLINE_ALGORITHMS, OfflineAlgorithm
from quatrain.config import AnyRecipe, OfflineRecipe, Recipe, batch_arithmetic, warnings_of
from quatrain.data.chat import render
from quatrain.data.formats import load_examples
from quatrain.data.overlap import check_disjoint, to_exclude
from quatrain.data.prompts import load_sources
from quatrain.errors import SettingError
from quatrain.methods.offline_run import check_best_metric, open_data
from quatrain.models.load import load_max_positions, load_tokenizer, resolve_model
from quatrain.models.quantise import with_own_adapter
from quatrain.planner.from_recipe import model_word
from quatrain.planner.models import find_model
from quatrain.rewards.rubric import build_verifiers
from quatrain.rollout import ENGINES


def dry_run(recipe: AnyRecipe) -> None:
    """Read the data, build the verifiers, check the overlap, render a prompt when the tokenizer is at hand."""
    if recipe.model.lora is not None and Path(recipe.model.path).expanduser().exists():
        with_own_adapter(recipe.model, resolve_model(recipe.model.path))
    if isinstance(recipe, OfflineRecipe):
        _dry_run_offline(recipe)
    else:
        _dry_run_online(recipe)
    print(f"the recipe is whole; it would write to {recipe.output}")


def _dry_run_offline(recipe: OfflineRecipe) -> None:
    algorithm: OfflineAlgorithm = OFFLINE_ALGORITHMS.get(recipe.algorithm.name, "algorithm.name")(recipe.algorithm)
    print(f"algorithm: {recipe.algorithm.name}, on {algorithm.data}")
    check_best_metric(recipe, algorithm)
    for section, sources in (("data", recipe.data), ("held_out", recipe.held_out)):
        counts = [(len(load_examples(source, algorithm.data, f"{section}[{number}]")), source.source)
                  for number, source in enumerate(sources)]  # fmt: skip
        print(f"{section}: {', '.join(f'{count} from {name}' for count, name in counts) or 'none'}")
    _render_examples(recipe, algorithm)


def _render_examples(recipe: OfflineRecipe, algorithm: OfflineAlgorithm) -> None:
    try:
        tokenizer = load_tokenizer(recipe.model.path, local_only=True)
        limit = load_max_positions(recipe.model.path, local_only=True)
    except SettingError:
        print(f"tokenizer of {recipe.model.path} is not on this machine: rows were read but not rendered")
        return
    examples, held_out = open_data(recipe, algorithm, tokenizer, limit)
    print(f"{len(examples)} examples can be trained on, {len(held_out)} are held out")
    example = examples.take(1)[0]
    print(f"first example, {len(example.samples[0].token_ids)} tokens:\n{example.prompt}{example.answers[0]}")


def unusual_settings(recipe: Recipe) -> list[str]:
    """`warnings_of` the recipe, with the size of its model where the planner knows it."""
    try:
        model, _ = find_model(model_word(recipe.model.path))
    except SettingError:
        return warnings_of(recipe)
    return warnings_of(recipe, model.parameters, model.experts > 0)


def _dry_run_online(recipe: Recipe) -> None:
    print(batch_arithmetic(recipe))
    for line in unusual_settings(recipe):
        print(f"warning: {line}")
    build_verifiers(recipe.rubrics).close()
    print(f"verifiers: {', '.join(f'{name}.{part}' for name, parts in recipe.verifiers.items() for part in parts)}")
    loaded = {"held_out": load_sources(recipe.held_out, "held_out", recipe.verifiers)}
    exclude = to_exclude(chain.from_iterable(loaded["held_out"]), recipe.overlap)
    loaded["prompts"] = load_sources(recipe.prompts, "prompts", recipe.verifiers, exclude)
    for section, sources in (("prompts", recipe.prompts), ("held_out", recipe.held_out)):
        counts = ", ".join(
            f"{len(rows)} from {source.source}" for source, rows in zip(sources, loaded[section], strict=True)
        )
        print(f"{section}: {counts or 'none'}")
    check_disjoint(chain.from_iterable(loaded["prompts"]), chain.from_iterable(loaded["held_out"]))
    print("held-out prompts: none of them is a training prompt")
    ALGORITHMS.get(recipe.algorithm.name, "algorithm.name")(recipe.algorithm, recipe.rollout.max_tokens)
    ENGINES.get(recipe.rollout.engine, "rollout.engine")
    print(f"algorithm: {recipe.algorithm.name}, preset {recipe.algorithm.preset}; engine: {recipe.rollout.engine}")
    _render_one(recipe, loaded["prompts"][0][0])


def _render_one(recipe: Recipe, row: object) -> None:
    try:
        tokenizer = load_tokenizer(recipe.model.path, local_only=True)
    except SettingError:
        print(f"tokenizer of {recipe.model.path} is not on this machine: prompts were read but not rendered")
        return
    rendered = render(row, recipe.prompts[0], tokenizer, "prompts[0]")  # type: ignore[arg-type]
    print(f"first prompt, {len(rendered.token_ids)} tokens:\n{rendered.text}")
