"""Seeded generators of what users write by mistake: recipes, overrides and files of rows that are nearly right.

Every generator takes a `random.Random`, so that case number n of a seed is the same on every machine.
"""

import copy
import io
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

LONG = "long " * 200_000  # 1 MB
JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 2**64, 10**300, 0.0, -0.0, 0.5, 1.5, 1e-5, 1e308, -1e308,
    float("nan"), float("inf"), float("-inf"), "", " ", "\t", "no", "yes", "on", "null", "~", "1", "1e-5", "1e999",
    "0x10", "1_000", "12:30", "2024-02-30", "nan", "a\nb", "\x00", "\u2028", "\ufeff", "\x1b[31m", "ünïcödé", "数",
    "🙂", "${HOME}", "${NO_SUCH_VARIABLE}", "${NO_SUCH_VARIABLE:-7}", "${", "$", "{}", "{{}}", "{question}", "{prompt}",
    "%s", "../..", "/", "/dev/null", "~nobody-of-that-name/x", "a/b.jsonl", "x.py:f", ":", "hf:", "reasoning-gym:",
    "reasoning-gym:none", "jsonl:", "x" * 5000, LONG, [], [[]], [None], [1, 2], ["a"], {}, {"a": 1}, {"": {}}, {1: 2},
    {None: None}, {"a": {"b": {"c": []}}}, [{"role": "user", "content": "x"}], b"\x80bytes",
)  # fmt: skip

FRAGMENTS = (
    "no", "NO", "off", "1e-5", "1e5", "0o17", "0x1F", "0x" + "f" * 9000, "9" * 5000, "-" + "9" * 300, "1:30:15",
    "190:20:30", "2024-02-30", "2024-01-01", "2001-12-14t21:59:43.10-05:00", "!!binary aGk=", "!!binary gIGC",
    "!!set {a, b}", "!!omap [a: 1]", "!!pairs [a: 1, a: 2]", "!!int x", "!!float x", "!!int 3.5", "!!bool 3",
    "!!timestamp x", "!!python/object/apply:os.getcwd []", "!!python/name:os.getcwd", "!unknown x", "!!str 3",
    "&a [*a]", "&a {b: *a}", "*nothing", "{<<: {a: 1}}", "{<<: 3}", "{a: 1, a: 2}", "{a, b}", "{[1]: 2}", "{{a: 1}: 2}",
    "? x", "- 1", ": 1", "=", "'", '"', '"\\x00"', '"\\ud800"', '"\\q"', "@x", "`x", "%x", "|", ">", "|2\n x", ".nan",
    "-.inf", "1_000", "+1", "01", "1.", ".5", "1,5", "1 2", "#", "# 1", "[", "]", "[1", "{", "}", "[1, [2]]", "[,]",
    "\t1", "1\t", "\u00a01", "\u200b1", "\u22121", "1", "true false", "'a' 'b'", "a: b", "a:b", "---", "...", "--- 1",
)  # fmt: skip


# --- any tree of settings or columns ----------------------------------------------------------------------------------

Place = tuple[Any, ...]


def places(value: Any, so_far: Place = ()) -> Iterator[Place]:
    """The paths of every value inside a tree of mappings and lists, the tree itself left out."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*so_far, key)
        yield from places(inner, (*so_far, key))


def parent_of(tree: Any, place: Place) -> Any:
    for key in place[:-1]:
        tree = tree[key]
    return tree


def misspelt(key: str, draw: random.Random) -> str:
    """A key as fingers slip: a letter less, doubled, swapped, or in another case."""
    at = draw.randrange(len(key)) if key else 0
    before, letter, after = key[:at], key[at : at + 1], key[at + 1 :]
    ways = (before + after, before + letter * 2 + after, before + after[:1] + letter + after[1:], key.upper(),
            key.replace("_", "-"), f"{key} ", f" {key}")  # fmt: skip
    return draw.choice(ways)


def change_tree(tree: Any, draw: random.Random) -> None:
    """One mistake somewhere in the tree, in place."""
    found = list(places(tree))
    if not found:
        return
    place = draw.choice(found)
    parent, key = parent_of(tree, place), place[-1]
    kind = draw.choice(("junk", "junk", "junk", "junk", "delete", "rename", "unknown", "wrap", "copy", "nest"))
    if kind == "delete":
        del parent[key]
    elif kind == "rename" and isinstance(key, str):
        parent[misspelt(key, draw)] = parent.pop(key)
    elif kind == "unknown" and isinstance(parent, dict):
        parent[draw.choice(("unknown", "", "a.b", "0", "prompt", "kind", "seed", "ü"))] = draw.choice(JUNK)
    elif kind == "wrap":
        parent[key] = draw.choice(([parent[key]], {"value": parent[key]}, str(parent[key]), [parent[key]] * 3))
    elif kind == "copy":
        parent[key] = copy.deepcopy(parent_of(tree, other := draw.choice(found))[other[-1]])
    elif kind == "nest":
        for _ in range(draw.choice((5, 60))):
            parent[key] = [parent[key]] if draw.random() < 0.5 else {"inside": parent[key]}
    else:
        parent[key] = copy.deepcopy(draw.choice(JUNK))


# --- text and bytes ---------------------------------------------------------------------------------------------------


def change_text(text: str, draw: random.Random) -> str:
    """One mistake of an editor."""
    lines = text.splitlines(keepends=True) or [""]
    at = draw.randrange(len(lines))
    line = lines[at]
    indent = len(line) - len(line.lstrip())
    ways: tuple[Callable[[], str], ...] = (
        lambda: line * 2, lambda: "", lambda: line.replace("  ", "\t", 1), lambda: "\t" + line, lambda: "   " + line,
        lambda: line[1:], lambda: line[: draw.randrange(len(line) + 1)], lambda: line.replace(":", ""),
        lambda: line.replace(": ", ":"), lambda: line.replace("\n", "\r\n"), lambda: line.replace('"', "'"),
        lambda: line.rstrip("\n") + "  # note\n", lambda: "---\n" + line, lambda: "...\n" + line,
        lambda: " " * indent + "<<: *base\n" + line, lambda: f"{line.rstrip()} {draw.choice(FRAGMENTS)}\n",
        lambda: " " * indent + draw.choice(FRAGMENTS) + "\n", lambda: line.replace(",", ""),
        lambda: line.upper(), lambda: "\u2028" + line, lambda: line.replace("e", "\u00e9"),
    )  # fmt: skip
    lines[at] = draw.choice(ways)()
    return "".join(lines)


def change_bytes(data: bytes, draw: random.Random) -> bytes:
    """One accident on the way to the disk."""
    at = draw.randrange(len(data) + 1)
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: b"", lambda: data[:at], lambda: data[at:], lambda: data[:at] + bytes([draw.randrange(256)]) + data[at:],
        lambda: data[:at] + b"\x00" + data[at:], lambda: b"\xef\xbb\xbf" + data, lambda: b"\xff\xfe" + data,
        lambda: data.decode("utf-8", "replace").encode("utf-16"), lambda: data[:at] + "é".encode("latin-1") + data[at:],
        lambda: data.replace(b"\n", b"\r\n"), lambda: data.replace(b"\n", b"\r"), lambda: data + data,
        lambda: data[:at] + draw.randbytes(20) + data[at:], lambda: data.rstrip(b"\n"), lambda: b"\n\n" + data + b"\n",
        lambda: data + b"# " + b"x" * 1_000_000, lambda: data[::-1], lambda: draw.randbytes(2000),
        lambda: b"[" * draw.choice((50, 100_000)), lambda: b'{"a":' * draw.choice((50, 100_000)),
        lambda: data + bomb(draw),
    )  # fmt: skip
    return draw.choice(ways)()


def bomb(draw: random.Random) -> bytes:
    """A few lines of aliases that stand for a billion values."""
    names = "abcdefghi"[: draw.choice((4, 9))]
    lines = [f"{names[0]}: &{names[0]} [{', '.join('x' * 9)}]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in itertools.pairwise(names)]
    return "\n".join(lines).encode() + b"\n"


# --- recipes ----------------------------------------------------------------------------------------------------------


def dump(tree: Any, draw: random.Random) -> str:
    """YAML or JSON of a tree; bytes and odd keys need YAML."""
    try:
        text = json.dumps(tree, ensure_ascii=draw.random() < 0.5) if draw.random() < 0.15 else None
    except (TypeError, ValueError):
        text = None
    return text or yaml.safe_dump(tree, sort_keys=False, allow_unicode=draw.random() < 0.5)


def recipe_bytes(base: Mapping[str, Any], draw: random.Random) -> bytes:
    """A recipe with one to three mistakes: in its settings, in its text, or in its bytes."""
    tree = copy.deepcopy(dict(base))
    trap = draw.random() < 0.3
    for _ in range(0 if trap else draw.choice((0, 1, 1, 1, 2, 3))):
        change_tree(tree, draw)
    if trap:
        place = draw.choice(list(places(tree)))
        parent_of(tree, place)[place[-1]] = "@@"
        text = yaml.safe_dump(tree, sort_keys=False).replace("'@@'", draw.choice(FRAGMENTS))
    else:
        text = dump(tree, draw)
    if draw.random() < 0.2:
        text = change_text(text, draw)
    data = text.encode("utf-8", "surrogatepass")
    return change_bytes(data, draw) if draw.random() < 0.15 else data


def same_recipe_bytes(base: Mapping[str, Any], draw: random.Random) -> bytes:
    """The same recipe written otherwise: order, quotes, anchors, comments, line ends, byte order mark, JSON."""
    keys = list(base)
    draw.shuffle(keys)
    tree = {key: base[key] for key in keys}
    style = draw.choice((None, "'", '"'))
    text = draw.choice((
        lambda: yaml.safe_dump(tree, sort_keys=draw.random() < 0.5, default_flow_style=draw.choice((True, None))),
        lambda: yaml.safe_dump(tree, width=draw.choice((10, 1000)), indent=draw.choice((2, 4))),
        lambda: yaml.safe_dump(tree, allow_unicode=True, explicit_start=True, explicit_end=True),
        lambda: json.dumps(tree, indent=draw.choice((None, 1))),
        lambda: re_quoted(tree, style),
    ))()  # fmt: skip
    if draw.random() < 0.3:
        text = "# a note\n" + text
    data = text.encode()
    if draw.random() < 0.2:
        data = data.replace(b"\n", b"\r\n")
    return b"\xef\xbb\xbf" + data if draw.random() < 0.2 else data


def re_quoted(tree: Mapping[str, Any], style: str | None) -> str:
    """Strings in another style; numbers and the like as they are."""

    class Quoting(yaml.SafeDumper):
        pass

    Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style))
    out = io.StringIO()
    yaml.dump(dict(tree), out, Dumper=Quoting)
    return out.getvalue()


def override(base: Mapping[str, Any], draw: random.Random) -> str:
    """`KEY.SUB=VALUE`, nearly right."""
    place = [str(part) for part in draw.choice(list(places(base)))]
    for _ in range(draw.choice((0, 0, 0, 1, 2))):
        at = draw.randrange(len(place))
        place[at] = draw.choice((
            misspelt(place[at], draw), "", "0", "-1", "99", "9" * 5000, "٣", "²", "__class__", "prompts", "sub",
        ))  # fmt: skip
    if draw.random() < 0.1:
        place.append(draw.choice(("0", "sub", "")))
    value = draw.choice(FRAGMENTS) if draw.random() < 0.5 else str(draw.choice(JUNK))
    text = f"{'.'.join(place)}={value}"
    return draw.choice((text, text, text, text, text.replace("=", "", 1), f"={text}", text.replace(".", "..")))


# --- rows -------------------------------------------------------------------------------------------------------------

MESSAGES = (
    [{"role": "user", "content": "say a:"}], [{"role": "system", "content": "s"}, {"role": "user", "content": "b:"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
    [{"role": "assistant", "content": "b"}], [{"role": "user"}], [{"content": "x"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": [{"type": "text", "text": "x"}]}], [{"role": "", "content": ""}], ["say a:"], [[]],
    {"role": "user", "content": "x"}, [{"role": "tool", "content": "x"}], [{"role": "user", "content": ""}],
)  # fmt: skip
BROKEN = (
    "{", "}", "[]", "1", "null", '"text"', "NaN", '{"prompt": NaN}', '{"prompt": "a"} {"prompt": "b"}',
    "{'prompt': 'a'}",
    '{"prompt": "a",}', '{"prompt": "\\ud800"}', '{"prompt": "\\u0000"}', '{"prompt": "a", "prompt": "b"}', "   ",
    '{"prompt": "say a:", "answer": ' + "9" * 5000 + "}", '{"prompt": "a", "answer": 1e999}', "{}", '{"": ""}',
    '{"prompt": ' + "[" * 100_000, '{"prompt": "a", "x": ' + '{"a":' * 1500 + "1" + "}" * 1501, "prompt,answer", "\t",
    '{"prompt": "\\udc80 a", "answer": "\\ud800"}', '{"prompt": "a", "answer": "' + "9" * 100_000 + '"}', "// a note",
)  # fmt: skip


def good_row(draw: random.Random, number: int) -> dict[str, Any]:
    return {"prompt": f"say {'abcdefgh'[number % 8]}{number}:", "answer": draw.choice(("7", 7, "0.5")),
            "verifier": draw.choice(("default", "other")), "note": draw.choice((None, "n", 3, {"k": [1]}))}  # fmt: skip


def rows_bytes(draw: random.Random) -> bytes:
    """A JSONL file of a few rows with one to three mistakes."""
    rows: list[Any] = [good_row(draw, number) for number in range(draw.choice((1, 2, 5)))]
    lines: dict[int, str] = {}
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
        at = draw.randrange(len(rows))
        kind = draw.choice(("tree", "tree", "tree", "prompt", "messages", "line"))
        if kind == "tree":
            change_tree(rows[at], draw)
        elif kind == "prompt":
            rows[at]["prompt"] = copy.deepcopy(draw.choice(JUNK))
        elif kind == "messages":
            rows[at]["prompt"] = copy.deepcopy(draw.choice(MESSAGES))
        else:
            lines[at] = draw.choice(BROKEN)
    texts = [lines.get(at) or json.dumps(plain(row), ensure_ascii=draw.random() < 0.5) for at, row in enumerate(rows)]
    text = "\n".join(texts) + "\n"
    if draw.random() < 0.15:
        text = change_text(text, draw)
    data = text.encode("utf-8", "surrogatepass")
    return change_bytes(data, draw) if draw.random() < 0.15 else data


def plain(value: Any) -> Any:
    """What JSON can hold of it."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


SOURCE_CHANGES: tuple[dict[str, Any], ...] = (
    {}, {}, {}, {"template": "Say {answer}: {prompt}"}, {"template": "{note}"}, {"template": "{absent} x"},
    {"template": "\\frac{1}{2} {prompt}"}, {"template": "{{}} {prompt} {"}, {"template": "{}"}, {"prompt": "answer"},
    {"prompt": "absent"}, {"prompt": "note"}, {"columns": {"gold": "answer"}}, {"columns": {"gold": "absent"}},
    {"columns": {"prompt": "answer"}}, {"columns": {"answer": "note"}}, {"verifier_column": "verifier"},
    {"verifier_column": "answer"}, {"verifier_column": "note"}, {"verifier_column": "absent"}, {"verifier": "other"},
    {"offset": 1}, {"offset": 100}, {"limit": 1}, {"prefill": "<think>\n"}, {"prefill": "x" * 200}, {"chat": True},
    {"chat": False}, {"chat": False, "system": "s"}, {"system": "s"}, {"name": "ünïcödé / name"}, {"options": {"a": 1}},
)  # fmt: skip
