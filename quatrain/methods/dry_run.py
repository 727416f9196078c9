"""Everything about a recipe that can be checked without its weights."""

from itertools import chain

from quatrain.algorithms import ALGORITHMS
from quatrain.config import Recipe, batch_arithmetic
from quatrain.data.chat import render
from quatrain.data.overlap import check_disjoint, to_exclude
from quatrain.data.prompts import load_sources
from quatrain.errors import SettingError
from quatrain.rewards.rubric import build_verifiers
from quatrain.rollout import ENGINES


def dry_run(recipe: Recipe) -> None:
    """Read the data, build the verifiers, check the overlap, render a prompt when the tokenizer is at hand."""
    print(batch_arithmetic(recipe))
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
    print(f"the recipe is whole; it would write to {recipe.output}")


def _render_one(recipe: Recipe, row: object) -> None:
    from quatrain.models.load import load_tokenizer

    try:
        tokenizer = load_tokenizer(recipe.model.path, local_only=True)
    except SettingError:
        print(f"tokenizer of {recipe.model.path} is not on this machine: prompts were read but not rendered")
        return
    rendered = render(row, recipe.prompts[0], tokenizer, "prompts[0]")  # type: ignore[arg-type]
    print(f"first prompt, {len(rendered.token_ids)} tokens:\n{rendered.text}")
