"""A plan or a comparison as one self-contained HTML page: stacked bars as SVG, tables, no scripts, nothing fetched."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from quatrain.planner.show import UNMEASURED, letter, text_plan

COLOURS = {
    "W": "#4e79a7", "w": "#6f9bc8", "a": "#9dbfe0", "M": "#2f5d8a", "O": "#76b7b2", "G": "#59a14f", "R": "#9c755f",
    "P": "#c49a6c", "V": "#b07aa1", "A": "#f28e2b", "L": "#e15759", "K": "#edc948", "U": "#86bcb6", "T": "#8cd17d",
    "t": "#d4a6c8", "E": "#499894", "e": "#c7dedc", "S": "#79706e", "f": "#bab0ac", "c": "#a0a0a0", "n": "#cfcfcf",
}  # fmt: skip
STYLE = """
:root{color-scheme:light dark;--ink:#1c1f23;--soft:#5c6570;--line:#d8dde3;--page:#fff;--card:#f6f8fa;--bad:#b42318;
--good:#1a7f37}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa4af;--line:#343b43;--page:#14171a;--card:#1d2126;
--bad:#ff8a80;--good:#7ee2a0}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:1080px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .5rem}p{margin:.3rem 0;color:var(--soft)}
.verdict{font-size:1.15rem;margin:1rem 0;padding:.7rem 1rem;background:var(--card);border-left:5px solid var(--good)}
.verdict.no{border-color:var(--bad)}.verdict b{color:var(--good)}.verdict.no b{color:var(--bad)}
table{border-collapse:collapse;width:100%;font-size:.9rem}td,th{padding:.3rem .6rem;border-bottom:1px solid var(--line);
text-align:left;vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
th{color:var(--soft);font-weight:600}.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;
margin-right:.4em;vertical-align:-.05em}.legend span{margin-right:1.1em;white-space:nowrap;font-size:.85rem}
svg{width:100%;height:auto;display:block}svg text{fill:var(--ink);font:12px system-ui,sans-serif}
svg text.soft{fill:var(--soft)}.peak{font-weight:700}.wide{overflow-x:auto}
"""


def page(data: Mapping[str, Any]) -> str:
    """The page of a plan (`answer`) or of a comparison (`comparison`)."""
    body = "".join(_comparison(data) if "methods" in data else _plan(data))
    title = "Methods compared" if "methods" in data else f"Plan: {data['model']['name'] or 'model states'}"
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
            f'content="width=device-width,initial-scale=1"><title>{escape(title)}</title><style>{STYLE}</style></head>'
            f"<body>{body}</body></html>\n")  # fmt: skip


def _plan(data: Mapping[str, Any]) -> Iterator[str]:
    lines = text_plan({**data, "advice": [], "time": None, "notes": []}).split("\n")
    verdict = next(index for index, line in enumerate(lines) if line.startswith(("fits", "DOES NOT FIT")))
    yield f"<h1>{escape(lines[0])}</h1>"
    if "precision" in data["settings"]:
        yield f"<p>{escape(lines[1])}</p>"
    word, _, rest = lines[verdict].partition(":")
    yield f'<div class="verdict{"" if data["fits"] else " no"}"><b>{escape(word)}</b>:{escape(rest)}</div>'
    yield from (f"<p>{escape(line)}</p>" for line in lines[verdict + 1 :] if line)
    limit = data["device"]["memory_gb" if data["model"]["name"] is None else "usable_gb"]
    yield "<h2>One step, phase by phase (GB per device)</h2>"
    bars = [(phase["name"], phase["per_gpu_gb"], phase["components"], phase["name"] == data["peak"]["phase"])
            for phase in data["phases"]]  # fmt: skip
    yield chart(bars, limit, "what the device gives a process")
    yield legend(name for phase in data["phases"] for name in phase["components"])
    yield "<h2>At the peak</h2>" + _peak(data) + _advice(data) + _time(data)
    if data["notes"]:
        yield "<h2>Notes</h2>" + "".join(f"<p>{escape(note)}</p>" for note in data["notes"])


def chart(bars: Sequence[tuple[str, float, Mapping[str, float], bool]], limit: float, label: str) -> str:
    """Stacked horizontal bars (name, total, components, marked) with a line at `limit`; GB."""
    left, width, row = 210, 790, 30
    largest = max(total for _, total, _, _ in bars)
    most = max(largest, limit if limit < 4 * largest else 0.0) * 1.04
    scale, height = width / most, row * len(bars) + 34
    parts = [f'<svg viewBox="0 0 {left + width + 80} {height}" role="img" aria-label="memory of every phase">']
    for index, (name, total, components, marked) in enumerate(bars):
        y, x = 24 + index * row, float(left)
        parts.append(f'<text x="{left - 10}" y="{y + 15}" text-anchor="end"{" class=peak" if marked else ""}>'
                     f"{escape(name)}</text>")  # fmt: skip
        for part, value in components.items():
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{max(0.0, value * scale):.1f}" height="{row - 9}" '
                         f'fill="{colour(part)}"><title>{escape(part)}: {value:.2f} GB</title></rect>')  # fmt: skip
            x += value * scale
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 15}"{" class=peak" if marked else ""}>{total:.1f}</text>')
    if limit <= most:
        x = left + limit * scale
        anchor = "end" if x > left + width / 2 else "start"
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="18" y2="{height - 6}" stroke="#b42318" stroke-width="1.5" '
                     f'stroke-dasharray="5 3"/><text class="soft" x="{x:.1f}" y="12" text-anchor="{anchor}">'
                     f"{escape(label)}: {limit:.1f}</text>")  # fmt: skip
    return "".join([*parts, "</svg>"])


def colour(component: str) -> str:
    """A component's colour, the same on every page."""
    return COLOURS.get(letter(component), "#888888")


def legend(components: Iterator[str]) -> str:
    """The components by colour."""
    shown: dict[str, str] = {}
    for name in components:
        shown.setdefault(letter(name), "critic states" if letter(name) == "V" else name)
    items = (f'<span><i class="key" style="background:{colour(name)}"></i>{escape(name)}</span>'
             for name in shown.values())  # fmt: skip
    return f'<p class="legend">{"".join(items)}</p>'


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Sequence[int] = ()) -> str:
    """A table; columns in `numbers` are right-aligned. Cells are escaped except those that are ready-made markup."""

    def row(cells: Sequence[Any], tag: str) -> str:
        shown = [cell if isinstance(cell, Markup) else escape(str(cell)) for cell in cells]
        made = (f"<{tag}{' class=n' if index in numbers else ''}>{cell}</{tag}>" for index, cell in enumerate(shown))
        return f"<tr>{''.join(made)}</tr>"

    return f'<div class="wide"><table>{row(head, "th")}{"".join(row(cells, "td") for cells in rows)}</table></div>'


class Markup(str):
    """Text that is HTML already."""


def _swatch(name: str) -> Markup:
    return Markup(f'<i class="key" style="background:{colour(name)}"></i>{escape(name)}')


def _peak(data: Mapping[str, Any]) -> str:
    phase = next(phase for phase in data["phases"] if phase["name"] == data["peak"]["phase"])
    rows = [(_swatch(name), f"{value:.2f}", f"{value / phase['per_gpu_gb']:.1%}",
             "allowance, unmeasured" if name in UNMEASURED and data["device"]["name"] != "cpu" else "")
            for name, value in sorted(phase["components"].items(), key=lambda part: -part[1])]  # fmt: skip
    return f"<p>{escape(data['peak']['why'])}</p>" + table(("component", "GB per device", "share", ""), rows, (1, 2))


def _advice(data: Mapping[str, Any]) -> str:
    if not data["advice"]:
        return ""
    rows = [(one["change"], f"{one['saves_gb']:.1f}", "yes" if one["fits"] else "no", one["cost"])
            for one in data["advice"]]  # fmt: skip
    first = ""
    if data.get("together"):
        first = f"<p>To make it fit: {escape('; and '.join(data['together']))}. Then {data['together_gb']:.1f} GB.</p>"
    head = ("change", "saves GB", "fits then", "cost")
    return f"<h2>What would lower the peak, cheapest first</h2>{first}{table(head, rows, (1,))}"


def _time(data: Mapping[str, Any]) -> str:
    time = data.get("time")
    if not time:
        return ""
    rows = [(name, f"{value:.3g} s", f"{value / time['step_s']:.0%}") for name, value in time["seconds"].items()]
    rows.append(("a step", f"{time['step_s']:.3g} s", "100%"))
    said = (f"{time['steps']} steps take {time['run_s'] / 3600:.2f} hours, {time['device_hours']:,.1f} device hours"
            + (f", {time['cost']:,.2f} at the given price" if time.get("cost") is not None else ""))  # fmt: skip
    return f"<h2>Time</h2><p>{escape(said)}</p>{table(('phase', 'time', 'share'), rows, (1, 2))}"


def _comparison(data: Mapping[str, Any]) -> Iterator[str]:
    methods = data["methods"]
    yield "<h1>Methods side by side</h1><p>GB per device at each method's peak</p>"
    share = [method["per_gpu_gb"] / (sum(method["components"].values()) or 1) for method in methods]
    bars = [(method["name"], method["per_gpu_gb"], {n: v * part for n, v in method["components"].items()}, False)
            for method, part in zip(methods, share, strict=True)]  # fmt: skip
    yield chart(bars, float("inf"), "")
    yield legend(name for method in methods for name in method["components"])
    rows = [
        (method["name"], f"{method['per_gpu_gb']:.1f}", f"{method['total_gb']:.1f}", method["gpus_needed"] or "many",
         "yes" if method["fits"] else "no", method["peak"])
        for method in methods
    ]  # fmt: skip
    yield table(("method", "GB per device", "GB in all", "devices needed", "fits", "peak in"), rows, (1, 2, 3))
    for key, title in (("model_states", "Model states: a published table"),
                       ("seven_billion", "A published 7B table, term by term"),
                       ("other_figures", "Other published figures on memory and time")):  # fmt: skip
        lines = [(line["topic"], line["quoted"], line["ours"], line["reason"]) for line in data[key]]
        yield f"<h2>{title}</h2>" + table(("", "quoted", "ours", "why"), lines)
