"""`quatrain plan` from the command line: answers, keys, mistakes, and that torch is not imported."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quatrain.cli import app
from quatrain.errors import SettingError

KEYS = {"total_gb", "per_gpu_gb", "gpus_needed", "fits", "components", "phases", "advice"}
ROW = {
    "source": "pypi:fitcheck-llm", "model": "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "method": "lora-sft",
    "gpu": "Tesla T4", "num_gpus": 1, "dtype": "fp16", "quantization": "none", "optimizer": "adamw", "batch_size": 2,
    "seq_len": 512, "lora_rank": 32, "lora_targets": ["q_proj", "k_proj", "v_proj", "o_proj"], "grad_checkpoint": True,
    "attention": "sdpa", "sharding": "none", "measured_peak_gib": 2.692, "metric": "torch.cuda.max_memory_allocated",
    "setting_complete": True, "note": "",
}  # fmt: skip


def plan(*arguments: str) -> str:
    """What the command prints; a mistake is raised as in the command line's own handler."""
    result = CliRunner().invoke(app, ["plan", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def data(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan(*arguments, "--json"))
    return found


@pytest.mark.parametrize(
    ("parameters", "method", "total", "gpus"),
    [("7.24e9", "ppo", 260.64, 4), ("7.24e9", "grpo", 130.32, 2), ("67.1e9", "ppo", 2415.6, 31),
     ("671e9", "grpo", 12078.0, 151)],
)  # fmt: skip
def test_a_bare_parameter_count(parameters: str, method: str, total: float, gpus: int) -> None:
    found = data("--params", parameters, "--method", method, "--gpu", "h100-80g")
    assert found.keys() >= KEYS
    assert found["total_gb"] == pytest.approx(total) == pytest.approx(sum(found["components"].values()))
    assert found["gpus_needed"] == gpus and found["fits"] is False
    many = data("--params", parameters, "--method", method, "--gpu", f"h100-80gx{gpus}")
    assert many["fits"] is True and many["per_gpu_gb"] == pytest.approx(total / gpus)


def test_a_whole_plan_has_the_keys_that_tools_read_and_adds_up() -> None:
    found = data("--model", "Qwen/Qwen2.5-7B-Instruct", "--method", "ppo", "--gpu", "h100-80g x 8")
    assert found.keys() >= KEYS
    assert (
        found["total_gb"] == pytest.approx(8 * found["per_gpu_gb"]) == pytest.approx(sum(found["components"].values()))
    )
    for phase in found["phases"]:
        assert phase.keys() >= {"name", "per_gpu_gb", "components"}
        assert phase["per_gpu_gb"] == pytest.approx(sum(phase["components"].values()))
    assert found["per_gpu_gb"] == max(phase["per_gpu_gb"] for phase in found["phases"])
    assert all(advice.keys() >= {"change", "saves_gb", "cost"} for advice in found["advice"])
    assert found["model"]["parameters"] == 7_615_616_512 and found["device"]["count"] == 8
    time = found["time"]
    assert time["step_s"] == pytest.approx(sum(time["seconds"].values())) and time["cost"] is None
    priced = data("--model", "7B", "--gpu", "h100x8", "--steps", "10", "--price", "2")["time"]
    assert priced["cost"] == pytest.approx(2 * priced["device_hours"])
    assert priced["device_hours"] == pytest.approx(8 * 10 * priced["step_s"] / 3600)


def test_advice_makes_it_fit() -> None:
    found = data("--model", "Llama-3.1-8B", "--method", "ppo", "--gpu", "h100-80gx2")
    assert not found["fits"] and found["together"]
    assert found["together_gb"] <= found["device"]["usable_gb"]
    assert "To make it fit" in plan("--model", "Llama-3.1-8B", "--method", "ppo", "--gpu", "h100-80gx2")


@pytest.mark.parametrize(
    ("option", "less"),
    [
        (["--lora-rank", "8"], True),
        (["--qlora"], True),
        (["--checkpointing"], True),
        (["--offload", "optimizer"], True),
        (["--optimizer", "adamw-8bit"], True),
        (["--no-reference"], True),
        (["--precision", "bf16"], True),
        (["--tokens", "65536"], False),
        (["--full-logits", "--tokens", "32768"], False),
        (["--engine-share", "0.9"], False),
        (["--attention", "eager"], False),
    ],
)
def test_options_move_the_peak_the_right_way(option: list[str], less: bool) -> None:
    base = ["--model", "Llama-3.1-8B", "--gpu", "h100-80gx2", "--engine-share", "0.25"]
    before, after = data(*base)["per_gpu_gb"], data(*base, *option)["per_gpu_gb"]
    assert (after < before) is less


def test_a_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("model: smollm2-135m\nprompts: [{source: a.jsonl}]\nverifiers: {d: {c: {kind: numeric}}}\n")
    found = data(str(recipe), "--gpu", "cpu", "--prompt", "64")
    assert found["settings"]["method"] == "grpo" and found["settings"]["precision"] == "fp32"
    assert found["settings"]["prompt"] == 64 and found["settings"]["completion"] == 256
    weights = found["phases"][0]["components"]
    assert weights["weights"] == pytest.approx(4 * 134_515_008 / 1e9)
    without = data(str(recipe), "algorithm.kl.coefficient=0", "--gpu", "cpu", "--prompt", "64")
    assert found["per_gpu_gb"] - without["per_gpu_gb"] == pytest.approx(4 * 134_515_008 / 1e9)
    adapted = data(str(recipe), "model.lora.rank=8", "model.dtype=bfloat16", "--gpu", "cpu")
    assert adapted["settings"]["lora"] == {"rank": 8, "targets": "all-linear"} and not adapted["components"].get(
        "reference"
    )


def test_methods_side_by_side_with_the_published_tables() -> None:
    found = data("--model", "7B", "--gpu", "h100-80gx8", "--compare")
    names = [method["name"] for method in found["methods"]]
    assert names == ["four-model PPO", "shared-backbone PPO", "GRPO", "GRPO, beta 0", "GRPO, LoRA", "GRPO, QLoRA"]
    sizes = [method["per_gpu_gb"] for method in found["methods"]]
    assert sizes == sorted(sizes, reverse=True)
    text = plan("--params", "7.24e9", "--gpu", "h100-80g", "--compare")
    for figure in ("260.6 GB", "1,207.8 GB, 16 x", "24,156.0 GB, 302 x", "98 GB", "112 GB", "84 GB", "44 GB", "1.5x"):
        assert figure in text
    assert all(line["reason"] for key in ("model_states", "seven_billion", "other_figures") for line in found[key])


def test_rows_of_measurements(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [ROW, {**ROW, "setting_complete": False, "seq_len": None}, {**ROW, "method": "ia3-sft"}, {"note": "empty"}]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    lines = [json.loads(line) for line in plan("--rows", str(file), "--json").splitlines()]
    assert [line["row"] for line in lines] == [1, 2, 3, 4]
    assert abs(lines[0]["error"]) < 0.05 and lines[0]["metric"] == "allocated" and lines[0]["why"] is None
    assert [line["error"] for line in lines[1:]] == [None] * 3
    assert "seq_len" in lines[1]["why"] and "ia3" in lines[2]["why"] and lines[3]["why"]
    text = plan("--rows", str(file))
    assert "3 of 4 rows without a prediction" in text and "fitcheck" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "a RECIPE.yaml, --model or --params"),
        (["--model", "7B", "--gpu", "h1000"], "did you mean 'h100'|h100"),
        (["--model", "7B", "--gpu", "2xh100x3"], "NAMExCOUNT"),
        (["--model", "7B", "--method", "grop"], "did you mean 'grpo'"),
        (["--model", "7B", "--sharding", "zero4"], "zero3"),
        (["--model", "7B", "--precision", "fp16"], "mixed"),
        (["--model", "7B", "--offload", "everything"], "optimizer"),
        (["--model", "7B", "--gpu", "h100", "--expert-parallel", "2"], "divisor"),
        (["--model", "7B", "--lora-targets", "q_proj"], "--lora-rank"),
        (["--model", "7B", "--lora-rank", "8", "--lora-targets", "query"], "q_proj"),
        (["--model", "7B", "--engine-share", "1.5"], "at most 1"),
        (["--model", "7B", "--cache-bits", "5"], "8, 16 or 32"),
        (["--params", "7e9", "--lora-rank", "8"], "without --lora-rank"),
        (["--params", "0"], "at least 1 parameter"),
        (["--rows", "missing.jsonl"], "JSONL"),
        (["missing.yaml"], "existing YAML"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        plan(*arguments)


def test_rows_that_are_no_objects_name_their_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for bad in ("[1]", "{", '"x"'):
        file.write_text(json.dumps(ROW) + "\n" + bad + "\n", encoding="utf-8")
        with pytest.raises(SettingError, match=r"rows\.jsonl line 2"):
            plan("--rows", str(file))


def test_hardware_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "devices.json"
    file.write_text('{"mine-10g": {"memory_gb": 10, "usable_gib": 9, "tflops": 50, "bandwidth_gb_s": 500, '
                    '"link_gb_s": 16}}', encoding="utf-8")  # fmt: skip
    found = data("--model", "gpt2", "--gpu", "mine-10g", "--hardware", str(file))
    assert found["device"]["usable_gb"] == pytest.approx(9 * 2**30 / 1e9)
    file.write_text('{"mine": {"memory_gb": 10}}', encoding="utf-8")
    with pytest.raises(SettingError, match="--hardware"):
        plan("--model", "gpt2", "--gpu", "mine", "--hardware", str(file))


def test_the_page_is_self_contained(tmp_path: Path) -> None:
    file = tmp_path / "plan.html"
    plan("--model", "7B", "--gpu", "h100-80gx8", "--html", str(file))
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "<svg" in page and "policy update: loss" in page
    assert "http" not in page and "<script" not in page
    plan("--model", "7B", "--gpu", "h100-80gx8", "--compare", "--html", str(file))
    assert "four-model PPO" in file.read_text(encoding="utf-8")


def test_torch_is_not_imported() -> None:
    code = (
        "import sys\nfrom quatrain.cli import app\n"
        "try: app(['plan', '--model', '7B', '--gpu', 'h100-80gx8', '--json'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pandas'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
