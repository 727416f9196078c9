"""What a run is predicted to take, said before it starts, and what it took, written beside it after the first step.

`predicted(recipe)` is for before anything is loaded: its "line" is a warning, or None. `save_plan(folder, forecast,
measured())` after the first step writes RUN/plan.json.
"""

import json
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quatrain.errors import SettingError
from quatrain.planner.advice import together
from quatrain.planner.from_recipe import job_from_recipe
from quatrain.planner.hardware import GB
from quatrain.planner.plan import Plan


def predicted(recipe: Any, prompt: int | None = None, longest: int | None = None) -> dict[str, Any]:
    """Peak GB of a recipe on its device, by phase; `line` says in one line when it will not fit, else it is None.

    `prompt` is the longest prompt in tokens where it is known, `longest` an offline recipe's longest row. A model whose
    config is not at hand is no error here: `why` says so and nothing is predicted.
    """
    try:
        asked = job_from_recipe(recipe, prompt=prompt, longest=longest)
        plan = Plan(asked.job)
        chosen = [] if plan.fits else [one.change for one in together(asked.job)]
    except SettingError as error:
        return {"per_gpu_gb": None, "why": str(error), "line": None}
    tensors = max(phase.total for phase in plan.allocated)
    return {
        "per_gpu_gb": plan.per_gpu / GB, "allocated_gb": tensors / GB, "reserved_gb": plan.bands["reserved"][1] / GB,
        "usable_gb": plan.usable / GB, "fits": plan.fits, "device": asked.job.device.name, "peak": plan.peak.name,
        "phases": {phase.name: phase.total / GB for phase in plan.phases}, "notes": list(asked.notes),
        "line": None if plan.fits else _warning(plan, chosen),
    }  # fmt: skip


def _warning(plan: Plan, chosen: list[str]) -> str:
    place = "this machine's memory" if plan.job.device.name == "cpu" else plan.job.device.name
    do = "; ".join(chosen) if chosen else "see `quatrain plan` for what would lower it"
    return (f"this run will probably not fit: {plan.per_gpu / GB:.1f} GB in {plan.peak.name}, and {place} has "
            f"{plan.usable / GB:.1f} GB; {do}")  # fmt: skip


def measured() -> dict[str, float]:
    """Peaks of this process so far, GB: resident memory, and on a GPU what torch allocated and reserved."""
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    found = {"rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GB}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["allocated_gb"] = torch.cuda.max_memory_allocated() / GB
        found["reserved_gb"] = torch.cuda.max_memory_reserved() / GB
    return found


def save_plan(folder: Path, forecast: Mapping[str, Any], peaks: Mapping[str, float]) -> Path:
    """Write `plan.json`: predicted, measured and the relative error of what can be compared, under its final name at
    once. On a CPU the process's resident memory is compared, on a GPU what torch allocated and reserved."""
    pairs = [("rss_gb", "per_gpu_gb")] if "allocated_gb" not in peaks else []
    pairs += [(name, name) for name in ("allocated_gb", "reserved_gb") if name in peaks]
    errors = {ours: forecast[theirs] / peaks[ours] - 1 for ours, theirs in pairs if forecast.get(theirs)}
    target = Path(folder) / "plan.json"
    temporary = target.with_suffix(".json.tmp")
    data = {"predicted": dict(forecast), "measured": dict(peaks), "error": errors}
    temporary.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, target)
    return target
