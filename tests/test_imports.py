"""What must start fast starts without torch."""

import resource
import subprocess
import sys
import textwrap

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
        "quatrain.recipe_file",
        "quatrain.registry",
        "quatrain.data",
        "quatrain.rewards",
        "quatrain.rollout",
        "quatrain.telemetry.console",
        "quatrain.telemetry.run_log",
        "quatrain.telemetry.catalogue",
        "quatrain.methods.api",
        "quatrain.methods.session",
        "quatrain.methods.result",
        "quatrain.rewards.session",
    ],
)
def test_imports_without_torch(module: str) -> None:
    result = run_without_torch(f"import {module}")
    assert result.returncode == 0, result.stderr


def test_the_package_itself_loads_nothing() -> None:
    heavy = "numpy", "pydantic", "yaml", "dill", "matplotlib", "typer", "quatrain.methods"
    result = run_without_torch(f"import quatrain, sys; print([name for name in {heavy} if name in sys.modules])")
    assert result.stdout.strip() == "[]", result.stderr


def test_every_public_name_is_there_without_torch() -> None:
    code = "import quatrain; print(len([getattr(quatrain, name) for name in quatrain.__all__]), dir(quatrain))"
    result = run_without_torch(code)
    assert "load_run" in result.stdout and "train" in result.stdout, result.stderr
    missing = run_without_torch("import quatrain; quatrain.trian")
    assert "has no attribute 'trian'; it has " in missing.stderr


def test_train_is_a_call_and_a_package_in_any_order() -> None:
    """`quatrain.train(...)` trains, also when the package of that name has been imported."""
    code = """
        import inspect, quatrain
        from quatrain import train
        import quatrain.train as package
        assert train is package is quatrain.train and package.__path__
        assert list(inspect.signature(quatrain.train).parameters) == ["recipe", "overrides", "quiet", "settings"]
        try:
            quatrain.train(3)
        except quatrain.SettingError as error:
            print(error)
    """
    result = run_without_torch(code)
    assert result.stdout.startswith("recipe: got 3, need a YAML file"), result.stderr


def test_the_block_works() -> None:
    assert "torch is blocked" in run_without_torch("import torch").stderr


def user_seconds(code: str) -> tuple[float, str]:
    """User CPU seconds of the best of three runs (they do not depend on what else the machine does), and its output."""
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        result = run_without_torch(code)
        spent.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
        assert result.returncode == 0, result.stderr
    return min(spent), result.stdout


def test_a_recipe_is_read_in_little_time() -> None:
    assert user_seconds("import quatrain.recipe_file")[0] < 1.5


def test_help_needs_no_torch_and_little_time() -> None:
    spent, output = user_seconds("import sys; sys.argv = ['quatrain', '--help']; from quatrain.cli import main; main()")
    assert spent < 1.5 and "train" in output


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "quatrain", "score", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "Example: quatrain score" in result.stdout
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in result.stderr.splitlines()}
    assert "typer" in imported and not imported & {"torch", "transformers", "peft", "pyarrow", "sympy"}
