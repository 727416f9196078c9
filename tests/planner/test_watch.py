"""What a run says before it starts, and what it writes after its first step."""

import json
from pathlib import Path

import pytest

from quatrain.planner.from_recipe import job_from_recipe
from quatrain.planner.hardware import find_device
from quatrain.planner.memory import phases, resident
from quatrain.planner.watch import measured, predicted, save_plan
from quatrain.recipe_file import validate_recipe

RECIPE = {"model": "smollm2-135m", "prompts": [{"source": "a.jsonl"}],
          "verifiers": {"d": {"c": {"kind": "numeric"}}}}  # fmt: skip


def test_a_run_that_fits_says_nothing() -> None:
    forecast = predicted(validate_recipe({**RECIPE, "train": {"tokens_per_micro_batch": 256},
                                          "rollout": {"max_tokens": 8}}), prompt=8)  # fmt: skip
    assert forecast["line"] is None and forecast["fits"] and 1 < forecast["per_gpu_gb"] < 5


def test_a_run_that_will_not_fit_says_so_in_one_line_with_what_would_help() -> None:
    large = {**RECIPE, "model": {"path": "meta-llama/Llama-2-70b-hf", "device": "cpu"}}
    line = predicted(validate_recipe(large))["line"]
    assert line is not None and "\n" not in line
    assert "will probably not fit" in line and "this machine's memory has" in line


def test_the_longest_row_of_the_data_stands_in_for_a_limit_that_is_not_set() -> None:
    recipe = validate_recipe({"method": "offline", "model": "smollm2-135m", "data": [{"source": "a.jsonl"}],
                              "algorithm": "sft", "train": {"tokens_per_micro_batch": 256}})  # fmt: skip
    unknown, short = predicted(recipe), predicted(recipe, longest=100)
    assert unknown["per_gpu_gb"] > 2 * short["per_gpu_gb"] and "examples of 100 tokens" in short["notes"][-1]


def test_a_base_in_four_bits_takes_less() -> None:
    def load(device: str, **settings: object) -> dict[str, float]:
        model = {"path": "meta-llama/Llama-2-7b-hf", "lora": {"rank": 8, **settings}}
        job = job_from_recipe(validate_recipe({**RECIPE, "model": model}), find_device(device)).job
        return dict(phases(job)[0].components)

    # 6.48e9 weights of linear layers: 4 bytes of float32, or half a byte and a scale of 8.127 bits for every 64
    plain, packed = load("a100-80g")["weights"], load("a100-80g", quantise="nf4")["weights"]
    assert plain - packed == pytest.approx(6.476e9 * (4 - 0.5 - 8.127 / 512), rel=0.03)
    # a CPU holds the original weights while it packs them
    assert load("cpu", quantise="nf4")["weights before packing"] + packed == pytest.approx(plain)


def test_every_model_that_scores_is_counted() -> None:
    rewards = {"a": {"kind": "reward_model", "path": "a"}, "b": {"kind": "reward_model", "path": "a", "weight": 0},
               "c": {"kind": "local_judge"}}  # fmt: skip
    both = resident(job_from_recipe(validate_recipe({**RECIPE, "verifiers": {"d": rewards}})).job)[0]
    assert both["reward model"] == 2 * 4 * 134_515_008


def test_experts_are_not_packed() -> None:
    model = {"path": "mistralai/Mixtral-8x7B-v0.1", "lora": {"rank": 8, "quantise": "nf4", "targets": ["q_proj"]}}
    job = job_from_recipe(validate_recipe({**RECIPE, "model": model}), find_device("h200")).job
    assert 4 * 45.1e9 < resident(job)[0]["weights"] < 4 * 46.7e9


def test_a_model_without_a_config_at_hand_is_no_error() -> None:
    forecast = predicted(validate_recipe({**RECIPE, "model": "someone/unknown-model"}))
    assert forecast["line"] is None and forecast["per_gpu_gb"] is None and "someone/unknown-model" in forecast["why"]


def test_predicted_against_measured(tmp_path: Path) -> None:
    peaks = measured()
    assert peaks["rss_gb"] > 0.01
    path = save_plan(tmp_path, {"per_gpu_gb": 3.0, "line": None}, {"rss_gb": 2.0})
    data = json.loads(path.read_text(encoding="utf-8"))
    assert path.name == "plan.json" and data["error"] == {"rss_gb": pytest.approx(0.5)}
    path = save_plan(tmp_path, {"per_gpu_gb": 3.0, "allocated_gb": 2.0, "reserved_gb": 2.2, "line": None},
                     {"rss_gb": 9.0, "allocated_gb": 1.6, "reserved_gb": 2.0})  # fmt: skip
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["error"] == {"allocated_gb": pytest.approx(0.25), "reserved_gb": pytest.approx(0.1)}
    assert save_plan(tmp_path, {"per_gpu_gb": None, "line": None}, {"rss_gb": 2.0}).exists()
