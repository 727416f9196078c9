"""Held-out sets by name: what is asked, in which words, and how the answer is read."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from quatrain.config import SourceConfig
from quatrain.data.sources import TASKS, source_names
from quatrain.errors import SettingError, nearest

HELD_OUT_SEED = (
    1_000_000  # of reasoning-gym: row i is made from seed + i, so that training from seed 0 does not meet it
)
HELD_OUT_SIZE = 100


@dataclass(frozen=True, slots=True)
class HeldOutSet:
    """Sections of a recipe for a known set: a source, the rubric that scores it, and the room for an answer."""

    source: Mapping[str, Any]
    rubric: Mapping[str, Mapping[str, Any]]
    max_tokens: int = 512
    options: Mapping[str, Any] = field(default_factory=dict)


SETS = {
    "gsm8k": HeldOutSet(
        source={"source": "${QUATRAIN_DATA}/gsm8k/test.jsonl", "prompt": "question",
                "template": "{question}\nThink step by step, then give the final number after '####'."},
        rubric={"correct": {"kind": "numeric", "extract": "last_number"},
                "form": {"kind": "numeric", "extract": "hashes", "weight": 0.0, "measures": "format"}},
    ),
    "mawps": HeldOutSet(
        source={"source": "${QUATRAIN_DATA}/mawps/test.jsonl", "prompt": "question", "prefill": "The answer is"},
        rubric={"correct": {"kind": "numeric", "extract": "first_number"}},
        max_tokens=16,
    ),
}  # fmt: skip


def held_out_set(name: str) -> HeldOutSet | None:
    """The set called `name`: gsm8k, mawps or reasoning-gym:TASK[?size=..&seed=..]; None for any other kind of source.

    Raises SettingError for a bare word that names neither a set nor a task.
    """
    kind, colon, rest = name.partition(":")
    if kind == "reasoning-gym":
        return _reasoning_gym(rest)
    if name in SETS:
        return SETS[name]
    if not colon and not any(mark in name for mark in "./") and name not in TASKS.names():
        known = [*SETS, "reasoning-gym:TASK"]
        raise SettingError("--task", name, f"a known set ({', '.join(known)}), FILE.jsonl, FILE.parquet, hf:NAME or "
                           "FILE.py:FUNCTION", nearest(name, known))  # fmt: skip
    return None


def _reasoning_gym(rest: str) -> HeldOutSet:
    """`TASK?size=50&seed=7&min_terms=2`: the task's own scorer on what stands between <answer> and </answer>."""
    task, _, query = rest.partition("?")
    options: dict[str, Any] = {"size": HELD_OUT_SIZE, "seed": HELD_OUT_SEED}
    for pair in filter(None, query.split("&")):
        key, equals, text = pair.partition("=")
        try:
            options[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            equals = ""
        if not equals:
            raise SettingError("--task", pair, "key=value after the question mark", "e.g. ?size=50&seed=7")
    return HeldOutSet(
        source={"source": f"reasoning-gym:{task}",
                "template": "{prompt}\nGive the final answer between <answer> and </answer>."},
        rubric={"correct": {"kind": "reasoning_gym", "extract": "tag"}},
        options=options,
    )  # fmt: skip


def ask_set(recipe: dict[str, Any], chosen: HeldOutSet) -> None:
    """Put a set in the place of a recipe's prompts and held-out prompts.

    A recipe that asks this very set (held out or in training) keeps its own words, verifiers and room for the answer;
    any other gets those of the set.
    """
    [name] = source_names([SourceConfig.model_validate(dict(chosen.source))])
    asked = [SourceConfig.model_validate(each) for each in [*(recipe.get("held_out") or []), *recipe["prompts"]]]
    own = next((each for each in asked if source_names([each]) == [name]), None)
    if own is not None:
        kept = own.model_dump(mode="json") | {"source": chosen.source["source"], "offset": 0, "limit": None}
        source = kept | {"options": {**own.options, **chosen.options}}
    else:
        source = {**chosen.source, "options": dict(chosen.options)}
        recipe["verifiers"] = {name: {part: dict(settings) for part, settings in chosen.rubric.items()}}
        for section in ("rollout", "evaluation"):
            recipe[section] = {**(recipe.get(section) or {}), "max_tokens": chosen.max_tokens, "stop": []}
    recipe["prompts"], recipe["held_out"] = [source], [copy.deepcopy(source)]
