"""Functions of a session as files: what they mean stays, whatever cannot be kept is one line."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quatrain.config import VerifierConfig
from quatrain.errors import SettingError
from quatrain.registry import load_attribute
from quatrain.rewards import build_verifier, text_rollout
from quatrain.rewards.rubric import Part, Rubric, Verifiers
from quatrain.rewards.session import fingerprint, function_file
from quatrain.types import Score

SESSION = """
import asyncio, functools, re
LIMIT = 5
WORDS = {"a", "b", "c", "d"}
NUMBER = re.compile(r"[0-9]+")
class Judge:
    def __init__(self, limit): self.limit = limit
    def __call__(self, completion): return len(completion) < self.limit + LIMIT
    def method(self, completion): return self(completion)
class Written(Judge):
    def __repr__(self): return "Written"
    def __call__(self, completion): return super().__call__(completion)
def numbers(text): return len(NUMBER.findall(text))
def plain(prompt, completion, **columns): return numbers(completion) + (completion in WORDS)
def fold(n): return 1 if n < 2 else n * fold(n - 1)
def recursive(completion): return fold(len(completion))
def made(limit):
    def inner(completion): return len(completion) < limit
    return inner
closure = made(4)
small = lambda completion: completion in {"x", "y", "12 34"}
judge = Judge(2)
written = Written(2)
method = judge.method
partial = functools.partial(numbers)
cached = functools.lru_cache(lambda completion: numbers(completion))
async def waits(completion):
    await asyncio.sleep(0)
    return LIMIT
def hangs(completion):
    while True: pass
"""
# name: what "12 34" earns
EARNS = {
    "plain": 2,
    "recursive": 120,
    "closure": 0,
    "small": 1,
    "judge": 1,
    "written": 1,
    "method": 1,
    "cached": 2,
    "waits": 5,
}


def session(text: str = SESSION, filename: str = "<stdin>") -> dict[str, Any]:
    """What a session holds that has run `text`."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, filename, "exec"), names)
    return names


def kept(function: Callable[..., Any], folder: Path) -> str:
    """The function's reference, its file written."""
    name, text = function_file(function, "verifiers.default.mine")
    (folder / name).write_text(text)
    return f"{folder / name}:{name.rpartition('-')[0]}"


def score(reference: str, text: str, **settings: Any) -> Score:
    verifier = build_verifier(VerifierConfig.model_validate({"kind": reference, **settings}))
    with Verifiers({"default": Rubric({"mine": Part(verifier)})}) as verifiers:
        return verifiers.score([text_rollout(text)])[0]


@pytest.mark.parametrize("name", EARNS)
def test_what_a_session_defines_is_loaded_elsewhere(name: str, tmp_path: Path) -> None:
    function = load_attribute(kept(session()[name], tmp_path), "kind")
    result = function(prompt="", completion="12 34") if name == "plain" else function(completion="12 34")
    if name == "waits":
        with pytest.raises(StopIteration) as stopped:
            [result.send(None) for _ in range(3)]
        result = stopped.value.value
    assert result == EARNS[name]


def test_it_runs_in_a_worker_that_is_killed_at_its_deadline(tmp_path: Path) -> None:
    names = session()
    assert score(kept(names["plain"], tmp_path), "a 1").value == 1
    hung = score(kept(names["hangs"], tmp_path), "x", timeout_s=0.3)
    assert hung.status == "error" and "timeout after 0.3 s" in hung.error


def test_equal_functions_are_equal_in_any_process_and_cell(tmp_path: Path) -> None:
    """Hash seeds change the order of sets, another cell the line and the file name; neither changes the meaning."""
    code = SESSION + "\nfrom quatrain.rewards.session import fingerprint\n"
    code += f"print([fingerprint(eval(name)) for name in {list(EARNS)!r}])"
    found = []
    for seed in ("1", "2"):
        result = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, check=True,
                                cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed,
                                                   "PYTHONPATH": str(Path(__file__).parents[2])})  # fmt: skip
        found.append(result.stdout.strip())
    names = session("\n\n# another cell\n" + SESSION, "<cell 7>")
    assert found == [str([fingerprint(names[name]) for name in EARNS])] * 2


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("plain", '"c", "d"}', '"c", "e"}'),  # a global
        ("plain", "[0-9]+", "[0-8]+"),  # a global of a helper
        ("plain", "len(NUMBER", "1 + len(NUMBER"),  # the helper's code
        ("plain", "prompt, completion, **columns", "prompt, completion, *columns"),
        ("closure", "made(4)", "made(5)"),
        ("small", '"x", "y"', '"x", "z"'),
        ("judge", "Judge(2)", "Judge(3)"),  # an object's state
        ("judge", "self.limit + LIMIT", "self.limit - LIMIT"),  # its class
        ("written", "self.limit + LIMIT", "self.limit - LIMIT"),
        ("method", "LIMIT = 5", "LIMIT = 6"),
        ("cached", "[0-9]+", "[0-8]+"),
        ("partial", "[0-9]+", "[0-8]+"),
        ("recursive", "n * fold", "2 * n * fold"),
    ],
)
def test_another_function_is_another(name: str, old: str, new: str) -> None:
    assert SESSION.count(old) == 1
    assert fingerprint(session()[name]) != fingerprint(session(SESSION.replace(old, new))[name])
    assert fingerprint(session()[name]) == fingerprint(session(SESSION.replace("def hangs", "def other"))[name])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("rows = (i for i in ())\ndef mine(completion): return next(rows)", "generator.*; make such objects inside"),
        ("def mine(completion, /): return 1", "the function mine, need arguments that can be passed by name"),
        ("class mine: pass", "the class mine, need a function"),
        ("mine = 3", "need a function"),
    ],
)
def test_what_cannot_be_kept_is_one_line(text: str, line: str) -> None:
    with pytest.raises(SettingError, match=f"(?s)^verifiers.default.mine: got .*{line}") as caught:
        function_file(session(text)["mine"], "verifiers.default.mine")
    assert "\n" not in str(caught.value)


def test_another_python_says_so(tmp_path: Path) -> None:
    reference = kept(session()["plain"], tmp_path)
    path = Path(reference.rpartition(":")[0])
    path.write_text(path.read_text().replace(f"python='{sys.version_info[0]}.", "python='2."))
    with pytest.raises(SettingError, match=r"kept by Python 2\.\d+ and this is 3\.\d+; use that one"):
        load_attribute(reference, "kind")


def test_the_source_is_there_to_read(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def mine(completion):\n    return 1.0  # always\n")
    _, text = function_file(session(script.read_text(), str(script))["mine"], "v")
    assert "#     def mine(completion):\n#         return 1.0  # always\n" in text
    assert "source is not known" in function_file(session()["plain"], "v")[1]
