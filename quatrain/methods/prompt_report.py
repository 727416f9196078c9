"""Which prompts of a run are solved, and which are dead: what its last checkpoint knows of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quatrain.config import Recipe
from quatrain.data.history import PromptHistory
from quatrain.data.prompts import load_sources, row_index
from quatrain.data.sources import source_names
from quatrain.methods.run_folder import last_checkpoint, read_recipe
from quatrain.recipe_file import online
from quatrain.telemetry.console import Console
from quatrain.train.checkpoint import checkpoint_path


def prompt_report(run: Path, count: int, as_json: bool = False) -> None:
    """Print success by source and the `count` hardest and easiest prompts; as JSON every prompt, hardest first."""
    recipe, step = online(read_recipe(run)), last_checkpoint(run)
    state = json.loads((checkpoint_path(run, step) / "state" / "trainer.json").read_text(encoding="utf-8"))
    history = PromptHistory(recipe.curriculum)
    history.load_state_dict(state.get("history", {}))
    prompts = seen_prompts(recipe, history)
    sources = by_source(recipe, prompts)
    if as_json:
        print(json.dumps({"run": str(run), "step": step, "sources": sources, "prompts": prompts}))
        return
    console = Console()
    heading = ("source", "seen", "success", "always right", "never right", "passed over")
    console.table(f"{run} after step {step}: prompts by source",
                  [heading, *((name, *_cells(cell)) for name, cell in sources.items())])  # fmt: skip
    for title, some in (("hardest", prompts), ("easiest", prompts[::-1])):
        console.say("")
        console.table(f"the {title} prompts", [("row", "source", "right", "groups", "in a row", "last step",
                                                "question"), *map(_row, some[:count])])  # fmt: skip


def seen_prompts(recipe: Recipe, history: PromptHistory) -> list[dict[str, Any]]:
    """Every prompt with a record, the hardest first; of equally hard ones that with most completions."""
    names = source_names(recipe.prompts)
    found = []
    for number, rows in enumerate(load_sources(recipe.prompts, "prompts")):
        for row in rows:
            index = row_index(number, row)
            if record := history.records.get(index):
                found.append({"index": index, "row": row.number + 1, "source": names[number], "question": row.question,
                              **record._asdict(), "success": record.success,
                              "passed_over": history.passed_over(index)})  # fmt: skip
    return sorted(found, key=lambda one: (one["success"], -one["judged"] if one["success"] < 1 else one["judged"]))


def by_source(recipe: Recipe, prompts: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Counts of a source's seen prompts and their mean success (None when none was seen)."""
    result = {}
    for name in source_names(recipe.prompts):
        own = [prompt for prompt in prompts if prompt["source"] == name]
        rates = [prompt["success"] for prompt in own]
        result[name] = {
            "seen": len(own),
            "success": sum(rates) / len(rates) if rates else None,
            "always_right": sum(rate == 1 for rate in rates),
            "never_right": sum(rate == 0 for rate in rates),
            "passed_over": sum(prompt["passed_over"] is not None for prompt in own),
        }
    return result


def _cells(cell: dict[str, Any]) -> list[str]:
    return ["none" if value is None else f"{value:.0%}" if name == "success" else str(value)
            for name, value in cell.items()]  # fmt: skip


def _row(prompt: dict[str, Any]) -> tuple[str, ...]:
    streak = prompt["streak"]
    in_a_row = f"{abs(streak)} all {'right' if streak > 0 else 'wrong'}" if streak else ""
    question = " ".join(prompt["question"].split())
    return (str(prompt["row"]), prompt["source"], f"{prompt['right']} of {prompt['judged']}", str(prompt["groups"]),
            in_a_row, str(prompt["last_step"]), question if len(question) <= 60 else question[:57] + "...")  # fmt: skip
