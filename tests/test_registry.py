"""A piece is found by its name, by a file reference or by an entry point; mistakes name the nearest."""

import importlib.metadata
from pathlib import Path

import pytest

from quatrain.errors import SettingError
from quatrain.registry import Registry, is_file_reference


@pytest.fixture
def shapes() -> Registry[object]:
    """A registry with two built-in pieces."""
    registry: Registry[object] = Registry("shape")
    registry.register("circle")("a circle")
    registry.register("square")("a square")
    return registry


def test_a_built_in_is_found_by_name(shapes: Registry[object]) -> None:
    assert shapes.names() == ["circle", "square"]
    assert shapes.get("circle") == "a circle"


def test_the_decorator_returns_the_piece_unchanged(shapes: Registry[object]) -> None:
    @shapes.register("triangle")
    def triangle() -> int:
        return 3

    assert triangle() == 3
    assert shapes.get("triangle") is triangle


def test_a_name_is_given_once(shapes: Registry[object]) -> None:
    with pytest.raises(ValueError, match="shape 'circle' is registered twice"):
        shapes.register("circle")("another")


def test_an_unknown_name_gets_the_nearest_one(shapes: Registry[object]) -> None:
    with pytest.raises(SettingError, match=r"^drawing\.shape: got circel, need a known shape; did you mean 'circle'"):
        shapes.get("circel", "drawing.shape")


def test_a_file_reference_runs_the_file_once(shapes: Registry[object], tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("counter = []\ncounter.append(1)\n")
    first, second = shapes.get(f"{path}:counter"), shapes.get(f"{path}:counter")
    assert first is second
    assert first == [1]


@pytest.mark.parametrize(
    ("content", "attribute", "message"),
    [
        (None, "x", "an existing Python file"),
        ("reward = 1", "rewrd", "did you mean 'reward'"),
        ("1 / 0", "x", "ZeroDivisionError: division by zero"),
        ("def broken(:", "x", "SyntaxError"),
        ("import absent_module", "x", "ModuleNotFoundError"),
    ],
)
def test_a_bad_file_reference_is_one_line(
    shapes: Registry[object], tmp_path: Path, content: str | None, attribute: str, message: str
) -> None:
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    for _ in range(2):  # a file that failed is not remembered as loaded
        with pytest.raises(SettingError) as caught:
            shapes.get(f"{path}:{attribute}", "kind")
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_installed_entry_point_is_found(shapes: Registry[object], monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint(name="star", value="math:pi", group="quatrain.shape")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] if group == entry.group else [])
    assert shapes.get("star") == pytest.approx(3.14159265)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a/b.py:f", True), ("b.py:Class", True), ("b.py", False), ("b.py:", False), ("b.py:1", False), ("hf:x", False)],
)
def test_what_counts_as_a_file_reference(name: str, expected: bool) -> None:
    assert is_file_reference(name) is expected
