"""A plan as text: a bar for every phase, stacked by component, and tables. Plain characters, no colours needed."""

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LETTERS = {
    "weights": "W", "adapters": "w", "reference adapters": "a", "master weights": "M", "optimizer moments": "O",
    "gradients": "G", "reference": "R", "reward model": "P", "activations": "A", "logits": "L", "KV cache": "K",
    "gathered layers": "U", "gradients in transit": "T", "weights in transit": "t", "engine weights": "E",
    "engine reservation": "e", "optimizer step": "S", "fragments": "f", "context": "c", "communication": "n",
}  # fmt: skip
LIMITS = {"tokens": "micro-batch", "context": "context", "group": "group", "rows": "completions side by side"}
UNMEASURED = ("fragments", "context", "communication")


def letter(component: str) -> str:
    """The letter that stands for a component in a bar; a critic's states are V."""
    if component in LETTERS:
        return LETTERS[component]
    if component.startswith("critic "):
        return "V"
    known = [name for name in LETTERS if component.endswith(name)]  # of a role's states: `actor optimizer moments`
    kept = next((name for name in ("reference", "reward model") if component.startswith(name)), "")
    return LETTERS[kept or max(known, key=len, default="weights")]


def text_plan(data: Mapping[str, Any]) -> str:
    """The whole plan for a terminal."""
    lines = [*_head(data), "", *_phases(data), "", *_peak(data), "", *_verdict(data), *_advice(data), *_time(data)]
    return "\n".join([*lines, *_notes(data)])


def _head(data: Mapping[str, Any]) -> Iterator[str]:
    model, device, own = data["model"], data["device"], data["settings"]
    count = f"{model['parameters'] / 1e9:.4g}e9 parameters"
    active = f", {model['active'] / 1e9:.3g}e9 active" if model["active"] not in (None, model["parameters"]) else ""
    yield f"{model['name'] or 'a model'} ({count}{active}), {own['method']}, on {device['count']} x {device['name']}"
    if "precision" in own:
        lora = f", LoRA rank {own['lora']['rank']} on {own['base_bits']}-bit weights" if own["lora"] else ""
        yield (f"{own['precision']} precision, {own['optimizer']}{lora}, {own['sharding']}, "
               f"{'checkpointing' if own['checkpointing'] else 'no checkpointing'}, {own['attention']} attention, "
               f"engine {own['engine']}, {own['tokens']} tokens a micro-batch")  # fmt: skip


def _phases(data: Mapping[str, Any]) -> Iterator[str]:
    """A line for every phase: GB per device and a bar, with | where the device's memory ends."""
    phases, usable = data["phases"], _limit(data)
    width = max(20, min(72, shutil.get_terminal_size((100, 24)).columns - 46))
    most = max([usable if usable < 4 * max(p["per_gpu_gb"] for p in phases) else 0, *(p["per_gpu_gb"] for p in phases)])
    yield f"{'GB per device':<34}{'':>7}  one character is {most / width:.2g} GB"
    for phase in phases:
        peak = ">" if phase["name"] == data["peak"]["phase"] else " "
        bar = stacked(phase["components"], most / width)
        mark = round(usable / most * width)
        if mark <= width:
            bar = f"{bar:<{mark}}"
            bar = bar[:mark] + "|" + bar[mark:]
        yield f"{peak} {phase['name']:<32}{phase['per_gpu_gb']:>7.2f}  {bar.rstrip()}"
    used: dict[str, str] = {}
    for phase in phases:
        for name in phase["components"]:
            used.setdefault(letter(name), name)
    legend = "  ".join(f"{mark} {'critic states' if mark == 'V' else name}" for mark, name in used.items())
    yield from textwrap.wrap(f"{legend}  | what the device gives a process", 110)


def stacked(components: Mapping[str, float], unit: float) -> str:
    """Letters in proportion to the components, each rounded so that the whole bar has the rounded total's length."""
    bar, end = "", 0.0
    for name, value in components.items():
        end += value
        bar += letter(name) * (round(end / unit) - len(bar))
    return bar


def _limit(data: Mapping[str, Any]) -> float:
    states_only = data["model"]["name"] is None
    return float(data["device"]["memory_gb" if states_only else "usable_gb"])


def _peak(data: Mapping[str, Any]) -> Iterator[str]:
    phase = next(phase for phase in data["phases"] if phase["name"] == data["peak"]["phase"])
    yield f"At the peak ({phase['name']}):"
    for name, value in sorted(phase["components"].items(), key=lambda part: -part[1]):
        share = value / phase["per_gpu_gb"]
        yield f"  {letter(name)} {name:<28}{value:>9.2f} GB {share:>6.1%}" + (
            "   allowance, unmeasured" if name in UNMEASURED and data["device"]["name"] != "cpu" else ""
        )
    if phase["host_gb"]:
        yield f"  and {phase['host_gb']:.2f} GB of host memory per device"


def _verdict(data: Mapping[str, Any]) -> Iterator[str]:
    limit, need = _limit(data), data["per_gpu_gb"]
    word = "fits" if data["fits"] else "DOES NOT FIT"
    room = f"{limit - need:.1f} GB to spare" if limit >= need else f"{need - limit:.1f} GB too much"
    yield f"{word}: {need:.1f} of {limit:.1f} GB per device, {room}; {data['total_gb']:.1f} GB over all devices"
    if "bands_gb" in data:
        low, typical, high = data["bands_gb"]["process"]
        yield (f"allocated {data['bands_gb']['allocated'][1]:.1f} GB; the process {typical:.1f} GB, "
               f"{low:.1f} to {high:.1f} by how fragmented the allocator gets")  # fmt: skip
        if data["fits"] and high > limit and data["device"]["name"] != "cpu":
            yield "close: at the high end of fragmentation it would not fit"
    needed = data["gpus_needed"]
    yield f"devices needed: {needed if needed is not None else 'more than 16384'} x {data['device']['name']}"
    if data.get("engine_gpus"):
        yield f"of which the engine {data['engine_gpus']}"
    if data.get("host_gb"):
        count = data["device"]["count"]
        yield f"host memory: up to {data['host_gb'] * count:.1f} GB for {count} device(s)"
    if data.get("limits"):
        found = (f"{LIMITS[name]} {'none' if value is None else value}" for name, value in data["limits"].items())
        yield f"largest that fits, each alone: {'; '.join(found)}"


def _advice(data: Mapping[str, Any]) -> Iterator[str]:
    if not data["advice"]:
        return
    yield ""
    if data.get("together"):
        yield from textwrap.wrap(f"To make it fit: {'; and '.join(data['together'])}. Then the peak is "
                                 f"{data['together_gb']:.1f} GB.", 110)  # fmt: skip
    yield f"{'What would lower the peak, cheapest first':<62}{'saves':>9}  cost"
    for one in data["advice"]:
        mark = "*" if one["fits"] and not data["fits"] else " "
        first, *rest = textwrap.wrap(one["cost"], 60) or [""]
        yield f"{mark} {one['change'][:60]:<60}{one['saves_gb']:>6.1f} GB  {first}"
        yield from (f"{'':<73}{line}" for line in rest)
    if any(one["fits"] for one in data["advice"]) and not data["fits"]:
        yield "* enough alone"


def _time(data: Mapping[str, Any]) -> Iterator[str]:
    time = data.get("time")
    if not time:
        return
    yield ""
    parts = ", ".join(f"{name} {_seconds(value)}" for name, value in time["seconds"].items())
    yield f"time of a step: {_seconds(time['step_s'])} ({parts}); {time['tokens_per_s']:,.0f} tokens a second"
    cost = f", {time['cost']:,.2f} at the given price" if time.get("cost") is not None else ""
    yield (f"run of {time['steps']} steps: {_seconds(time['run_s'])}, {time['device_hours']:,.1f} device hours{cost}; "
           f"training at {time['utilisation']:.0%} of the datasheet's rate ({time['source']})")  # fmt: skip


def _seconds(value: float) -> str:
    return f"{value / 3600:.1f} h" if value >= 7200 else f"{value / 60:.1f} min" if value >= 120 else f"{value:.3g} s"


def _notes(data: Mapping[str, Any]) -> Iterator[str]:
    if data["notes"]:
        yield ""
    yield from (f"note: {note}" for note in data["notes"])


def text_comparison(data: Mapping[str, Any]) -> str:
    """Methods side by side, then quoted figures with ours and the reasons."""
    lines = list(_methods(data["methods"]))
    for key, title in (("model_states", "Model states, published table (36 and 18 bytes a parameter)"),
                       ("seven_billion", "A published 7B table: no single accounting, so each term by itself"),
                       ("other_figures", "Other published figures on memory and time")):  # fmt: skip
        lines += ["", title, *_quotes(data[key])]
    return "\n".join(lines)


def _methods(methods: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = list(dict.fromkeys(name for method in methods for name in method["components"]))
    yield f"{'GB':<30}" + "".join(f"{method['name']:>21}" for method in methods)
    for name in names:
        cells = (f"{method['components'][name]:>21.1f}" if name in method["components"] else f"{'':>21}"
                 for method in methods)  # fmt: skip
        yield f"{letter(name)} {name:<28}" + "".join(cells)
    for key, label in (("per_gpu_gb", "per device"), ("total_gb", "over all devices"), ("host_gb", "host, per device")):
        yield f"{label:<30}" + "".join(f"{method[key]:>21.1f}" for method in methods)
    yield f"{'peak in':<30}" + "".join(f"{method['peak'].replace('policy update', 'update'):>21}" for method in methods)
    yield f"{'fits':<30}" + "".join(f"{'yes' if method['fits'] else 'no':>21}" for method in methods)
    yield f"{'devices needed':<30}" + "".join(f"{method['gpus_needed'] or '> 16384':>21}" for method in methods)


def _quotes(lines: Sequence[Mapping[str, str]]) -> Iterator[str]:
    for line in lines:
        yield f"  {line['topic']}"
        yield f"      quoted: {line['quoted']}   ours: {line['ours']}"
        yield from textwrap.wrap(line["reason"], 104, initial_indent="      ", subsequent_indent="      ")
