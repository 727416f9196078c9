"""What must start fast starts without torch."""

import subprocess
import sys
import textwrap
import time

import pytest

BLOCK_TORCH = """
    import sys
    class Block:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ("torch", "transformers", "peft"):
                raise ImportError(f"{name} is blocked")
    sys.meta_path.insert(0, Block())
"""


def run_without_torch(code: str) -> subprocess.CompletedProcess[str]:
    """`code` in a fresh interpreter in which torch, transformers and peft cannot be imported."""
    script = textwrap.dedent(BLOCK_TORCH) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "module",
    [
        "quatrain",
        "quatrain.types",
        "quatrain.errors",
        "quatrain.config",
        "quatrain.registry",
        "quatrain.data",
        "quatrain.rewards",
        "quatrain.rollout",
        "quatrain.telemetry.console",
        "quatrain.telemetry.run_log",
        "quatrain.telemetry.catalogue",
    ],
)
def test_imports_without_torch(module: str) -> None:
    result = run_without_torch(f"import {module}")
    assert result.returncode == 0, result.stderr


def test_the_block_works() -> None:
    assert "torch is blocked" in run_without_torch("import torch").stderr


def test_the_recipe_is_read_within_a_second_or_so() -> None:
    fastest = 60.0
    for _ in range(3):
        start = time.perf_counter()
        result = run_without_torch("import quatrain, quatrain.config")
        fastest = min(fastest, time.perf_counter() - start)
        assert result.returncode == 0, result.stderr
    assert fastest < 1.5
