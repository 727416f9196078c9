"""The outcome of `quatrain eval`: as a file with all answers, as one JSON object, and as tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quatrain.config import Recipe
from quatrain.errors import SettingError
from quatrain.methods import measures, paired
from quatrain.methods.evaluate import Evaluation, without_nan
from quatrain.methods.measures import LABELS
from quatrain.telemetry.console import Console
from quatrain.telemetry.files import replace_text

MODES = ("sampled", "greedy")
ASKED = ("held_out", "verifiers", "seed")


@dataclass(frozen=True, slots=True)
class Report:
    """What a target answered: sampled, greedy or both, with what it was asked (held_out, verifiers, seed)."""

    target: str
    modes: Mapping[str, Evaluation]
    asked: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Stable keys: target, prompts, held_out, verifiers, seed, and sampled and greedy (null: not made)."""
        found: dict[str, Any] = {"target": self.target, "prompts": prompts(self.modes)}
        found |= {name: self.asked.get(name) for name in ASKED}
        for mode in MODES:
            own = self.modes.get(mode)
            found[mode] = None if own is None else _mode_json(own)
        return without_nan(found)


def _mode_json(evaluation: Evaluation) -> dict[str, Any]:
    made = {"step": evaluation.step, "samples": evaluation.samples, "asked": evaluation.asked,
            "sampling": dict(evaluation.sampling)}  # fmt: skip
    return {"measures": measures.table(evaluation), "sources": measures.by_source(evaluation), **made}


def with_answers(shown: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """The JSON of a report with every answer, as `read_report` takes it."""
    return {
        **shown,
        **{mode: {**shown[mode], "answers": own.to_json()["answers"]} for mode, own in report.modes.items()},
    }


def prompts(modes: Mapping[str, Evaluation]) -> int:
    """How many were asked."""
    return max((len(one.answers) // one.samples for one in modes.values()), default=0)


def asked_by(recipe: Recipe) -> dict[str, Any]:
    """What a recipe asks, as a report keeps it: settings that differ from their defaults."""
    dumped = recipe.model_dump(mode="json", include={"held_out", "verifiers"}, exclude_defaults=True)
    return {**dumped, "seed": recipe.seed}


def is_report(target: str) -> bool:
    """True for FILE.json."""
    return Path(target).suffix == ".json"


def read_report(path: str, setting: str) -> Report:
    """A file that `--out` wrote, or one evaluation of a run (RUN/evaluations/step-000040.json)."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if "answers" in data:
            modes = {_mode(data): Evaluation.from_json(data)}
        else:
            modes = {mode: Evaluation.from_json(data[mode]) for mode in MODES if data[mode] is not None}
    except OSError as error:
        raise SettingError(setting, path, "a file of results", error.strerror or str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SettingError(setting, path, "results with their answers", "make them with quatrain eval --out") from None
    asked = {name: data.get(name) for name in ASKED}
    return Report(data.get("target", path), modes, asked)


def _mode(data: Mapping[str, Any]) -> str:
    greedy = data["samples"] == 1 and not data.get("sampling", {}).get("temperature", 0)
    return "greedy" if greedy else "sampled"


def compared(target: Report, against: Report) -> dict[str, Any]:
    """Both reports' common modes, measure by measure; keys: target, against, prompts, ASKED, sampled, greedy, notes."""
    common = [mode for mode in MODES if mode in target.modes and mode in against.modes]
    if not common:
        shown = [" and ".join(report.modes) for report in (target, against)]
        raise SettingError("--against", f"{shown[1]} answers, where the target has {shown[0]}", "the same kind",
                           "add --greedy, or the same --samples, to both")  # fmt: skip
    notes: list[str] = []
    if target.asked.get("verifiers") != against.asked.get("verifiers") and against.asked.get("verifiers"):
        notes.append("verifiers differ")
    if target.asked.get("seed") != against.asked.get("seed") and against.asked.get("seed") is not None:
        notes.append(f"seed {target.asked.get('seed')} and {against.asked['seed']}")
    found: dict[str, Any] = {"target": target.target, "against": against.target, "prompts": prompts(target.modes)}
    found |= {name: target.asked.get(name) for name in ASKED}
    for mode in MODES:
        pair = (target.modes[mode], against.modes[mode]) if mode in common else None
        found[mode] = pair and {"measures": paired.paired(*pair), "sources": paired.by_source(*pair)}
        notes += [f"{mode}: {note}" for note in paired.differing(*pair)] if pair else []
    return without_nan({**found, "notes": notes})


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Results under their final name once they are whole."""
    replace_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


# --- tables -----------------------------------------------------------------------------------------------------------


def show(data: Mapping[str, Any], console: Console) -> None:
    """Print a report's JSON: a table with a column per mode, and one for each source when there are several."""
    for line in _asked_lines(data):
        console.say(line)
    console.say("; ".join(f"{mode}: {_how(data[mode])}" for mode in MODES if data[mode]))
    for title, tables in _tables(data, f"{data['target']}: {data['prompts']} prompts, 95 % bootstrap intervals"):
        names = dict.fromkeys(name for cells in tables.values() for name, one in cells.items() if _measured(one))
        rows: list[Sequence[object]] = [("measure", *tables)]
        rows += [(label(name), *(_cell(cells.get(name)) for cells in tables.values())) for name in names]
        console.say("")
        console.table(title, rows)


def show_comparison(found: Mapping[str, Any], console: Console) -> None:
    """Print a table per mode and source: both means, the paired difference, and how many prompts went which way."""
    for line in _asked_lines(found):
        console.say(line)
    for note in found["notes"]:
        console.warn(f"not the same for both: {note}")
    for title, tables in _tables(found, f"{found['prompts']} prompts, paired 95 % bootstrap intervals"):
        for mode, cells in tables.items():
            heading = ("measure", "target", "against", "difference", "win rate", "higher/lower/equal", "p")
            rows: list[Sequence[object]] = [heading]
            rows += [(label(name), _number(one["target"]["value"]), _number(one["against"]["value"]),
                      _cell(one["difference"], "+"), _percent(one.get("win_rate")),
                      f"{one['higher']}/{one['lower']}/{one['equal']}",
                      "" if one["p"] is None else f"{one['p']:.3g}")
                     for name, one in cells.items() if _measured(one["target"], one["against"])]  # fmt: skip
            console.say("")
            console.table(f"{mode}, {title}", rows)
    console.say(f"target: {found['target']}; against: {found['against']}; difference: target - against; win rate: "
                "share of prompts with more, of those that differ; p: exact sign test (McNemar)")  # fmt: skip


def _tables(data: Mapping[str, Any], title: str) -> list[tuple[str, dict[str, Any]]]:
    """The whole, then every source: a title and the measures by mode."""
    made = {mode: data[mode] for mode in MODES if data[mode]}
    sources = dict.fromkeys(name for own in made.values() for name in own["sources"])
    found = [(title, {mode: own["measures"] for mode, own in made.items()})]
    return found + [(f"source {name}", {mode: own["sources"][name] for mode, own in made.items()}) for name in sources]


def _measured(*cells: Mapping[str, Any]) -> bool:
    """Whether there is a number to show; where only a reward model judges, nothing says which answers are right."""
    return any(cell["value"] is not None for cell in cells)


def label(name: str) -> str:
    """How a measure is called in a table."""
    return LABELS.get(name, name)


def _number(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.4f}"


def _cell(cell: Mapping[str, Any] | None, sign: str = "") -> str:
    if cell is None or cell["value"] is None:
        return "-"
    return f"{_number(cell['value'], sign)} [{_number(cell['low'], sign)}, {_number(cell['high'], sign)}]"


def _percent(cell: Mapping[str, Any] | None) -> str:
    """`79 % [71, 86]`."""
    if cell is None or cell["value"] is None:
        return "-"
    return f"{cell['value']:.0%} [{100 * cell['low']:.0f}, {100 * cell['high']:.0f}]".replace("%", " %", 1)


def _how(mode: Mapping[str, Any]) -> str:
    """`8 completions a prompt at temperature 1, at most 256 tokens`."""
    count, own = mode["samples"], mode["sampling"]
    drawn = f" at temperature {own['temperature']:g}, at most {own['max_tokens']} tokens" if own else ""
    return f"{count} completion{'' if count == 1 else 's'} a prompt{drawn}"


def _asked_lines(asked: Mapping[str, Any]) -> list[str]:
    """In which words each source is asked, and what reads the answers."""
    keys = ("options", "system", "template", "prefill", "limit")
    lines = []
    for source in asked.get("held_out") or []:
        words = [f"{key} {source[key]!r}" for key in keys if source.get(key)]
        lines.append(f"asked: {source['source']}: " + (", ".join(words) or f"column {source.get('prompt', 'prompt')}"))
    for name, parts in (asked.get("verifiers") or {}).items():
        rubric = ", ".join(f"{part} {_settings(settings)}" for part, settings in parts.items())
        lines.append(f"scored: {name}: {rubric}")
    return lines


def _settings(part: Mapping[str, Any]) -> str:
    extra = [f"{key}={value}" for key, value in part.items() if key != "kind" and value is not None]
    return f"{part['kind']} ({', '.join(extra)})" if extra else str(part["kind"])
