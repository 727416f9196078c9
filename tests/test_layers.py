"""The rooms of the package import downwards only; proved from the source, imports inside functions included."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "quatrain"

# Top to bottom. Rooms of one row do not import each other, except in the last row.
ROWS = [
    ["__main__"],
    ["cli"],
    ["insight"],
    ["methods"],
    ["train"],
    ["algorithms"],
    ["rewards", "rollout", "data"],
    ["sandbox", "models", "parallel", "planner"],
    ["batch", "telemetry"],
    ["ops"],
    ["types", "errors", "config", "folders", "recipe_file", "registry"],
]
ROW_OF = {room: index for index, row in enumerate(ROWS) for room in row}
BOTTOM = len(ROWS) - 1


def imports(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything of this package that `source` imports; `from a import b` gives `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "quatrain")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                base = ".".join([*parts[: len(parts) - node.level + is_package], *([base] if base else [])])
            if base.split(".")[0] == "quatrain":
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports in `source` that the rows forbid, as readable lines."""
    room = module.split(".")[1] if "." in module else ""
    found = []
    for line, name in imports(source, module, is_package):
        other = name.split(".")[1] if "." in name else ""
        if other not in ROW_OF or other == room or not room:
            continue
        below = ROW_OF[other] > ROW_OF[room] or ROW_OF[other] == ROW_OF[room] == BOTTOM
        if not below:
            found.append(f"{module}:{line}: {room} imports {other}, which is not below it")
        elif other == "parallel" and room != "train":
            found.append(f"{module}:{line}: only train imports parallel")
    return found


def sources() -> list[tuple[Path, str, bool]]:
    """Every file of the package with its module name, and whether it is a package's __init__."""
    result = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ["quatrain", *path.relative_to(PACKAGE).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        result.append((path, ".".join(parts[:-1] if is_package else parts), is_package))
    return result


def test_every_room_has_a_row() -> None:
    rooms = {module.split(".")[1] for _, module, _ in sources() if "." in module}
    assert rooms - set(ROW_OF) == set(), "give the new room a row"


def test_imports_point_down() -> None:
    found = [
        line
        for path, module, is_package in sources()
        for line in violations(path.read_text(encoding="utf-8"), module, is_package)
    ]
    assert found == []


def test_the_package_itself_imports_only_the_bottom_row() -> None:
    source = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    for line, name in imports(source, "quatrain", True):
        assert ROW_OF.get(name.split(".")[1], BOTTOM) == BOTTOM, f"quatrain/__init__.py:{line}: {name}"


@pytest.mark.parametrize(
    ("module", "source", "allowed"),
    [
        ("quatrain.methods.online", "from quatrain.train.learner import Learner", True),
        ("quatrain.algorithms.grpo", "from quatrain.batch import TrainBatch", True),
        ("quatrain.config", "from quatrain.errors import SettingError", True),
        ("quatrain.rewards.math", "from . import exact", True),
        ("quatrain.train.learner", "import quatrain.parallel.fsdp", True),
        ("quatrain.ops.kl", "from quatrain.batch import TrainBatch", False),
        ("quatrain.rewards.math", "from quatrain.rollout import Request", False),
        ("quatrain.rewards.math", "from ..data import prompts", False),
        ("quatrain.batch", "from quatrain.telemetry.metrics import Mean", False),
        ("quatrain.errors", "def f():\n    from quatrain import ops", False),
        ("quatrain.methods.online", "from quatrain.parallel import fsdp", False),
        ("quatrain.train.learner", "import quatrain.methods", False),
    ],
)
def test_the_proof_can_fail(module: str, source: str, allowed: bool) -> None:
    assert (violations(source, module) == []) is allowed


def test_relative_imports_of_a_package_count() -> None:
    assert violations("from ..rollout import Request", "quatrain.rewards", is_package=True)
    assert not violations("from .exact import Exact", "quatrain.rewards", is_package=True)
