"""PPO killed at any moment ends bit for bit as if it had not been: critic, controllers, moments, text, early stop."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from quatrain.batch import build
from quatrain.config import ModelConfig, Recipe
from quatrain.methods.online import train
from quatrain.models.scalar import load_scalar_model, token_values
from quatrain.telemetry.run_log import read_metrics
from quatrain.train.checkpoint import checkpoint_path
from tests.algorithms.synthetic import make_sample
from tests.faults.killing import kill_and_resume
from tests.runs import assert_equal_weights, metrics_of, quiet, recipe, weights_of

STEPS = 4
STEERED = {"placement": "reward", "coefficient": 0.1, "target": 0.05, "horizon": 40, "spike": 0.2}
CASES: dict[str, dict[str, Any]] = {
    "separate critic, early stop": {
        "algorithm": {"early_stop_kl": 0.02, "critic": {"learning_rate": 3e-2, "warmup_steps": 1}},
        "train": {"updates_per_step": 2, "epochs": 2, "schedule": "cosine", "warmup_steps": 2},
    },
    "value head": {"algorithm": {"critic": {"model": "shared"}, "kl": {"refresh_every": 2, "target": None}}},
    "value head on adapters": {"model": {"lora": {"rank": 2}}, "algorithm": {"critic": {"model": "shared"}}},
    "adapters on 4 bits, steered and normalised": {
        "model": {"lora": {"rank": 2, "quantise": "nf4"}},
        "algorithm": {"kl": STEERED, "reward": {"normalise": "running", "clip": 2.0}, "truncated": "bootstrap"},
    },
    "steered and normalised": {"algorithm": {"kl": STEERED, "reward": {"normalise": "running"}}},
    "pre-training text": {"algorithm": {"pretraining": {"examples_per_update": 2, "coefficient": 0.5}}},
}


def case(name: str, folder: Path, output: str = "run") -> Recipe:
    own = CASES[name]
    algorithm = {"preset": "ppo", "kl": {"placement": "reward"}, **own["algorithm"]}
    if "pretraining" in algorithm:
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": f"zebra {n}:"}) + "\n" for n in range(5)))
        algorithm["pretraining"] = {**algorithm["pretraining"], "data": [{"source": str(folder / "text.jsonl")}]}
    return recipe(folder, **{**own, "algorithm": algorithm, "train": {"steps": STEPS, **own.get("train", {})}},
                  checkpoint={"every": 1}, rollout={"group_size": 2, "max_tokens": 4},
                  output=str(folder / output))  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def unbroken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The uninterrupted run of every case, in FOLDER/unbroken, which does what the case is there for."""
    folder = tmp_path_factory.mktemp("resume")
    train(case(request.param, folder, "unbroken"), quiet())
    rows = [row.metrics for row in read_metrics(folder / "unbroken")]
    if "early stop" in request.param:
        assert rows[0]["train/updates_skipped"] == 4 and rows[0]["critic/updates"] == 4
        stopped = [row.get("train/updates_early_stopped", 0) for row in rows[1:]]
        assert any(stopped) and [4 - n for n in stopped] == [row["train/updates"] for row in rows[1:]]
        assert all(row["critic/updates"] == 4 for row in rows)
    if "steered" in request.param:
        assert rows[-1]["kl/restarts"] > 0 and len({row["kl/coefficient"] for row in rows}) > 1
        assert len({row["reward/seen_std"] for row in rows}) == STEPS
    return request.param, folder


def parts(run: Path) -> list[str]:
    """Names of the folders with weights in the last checkpoint."""
    return sorted(path.name for path in checkpoint_path(run, STEPS).iterdir() if path.name != "state")


def trainer_state(run: Path) -> Any:
    return json.loads((checkpoint_path(run, STEPS) / "state" / "trainer.json").read_text())


def killed_and_resumed(name: str, folder: Path, flush: int) -> None:
    kill_and_resume(case(name, folder), flush, flush)
    run, whole = folder / "run", folder / "unbroken"
    assert [row.step for row in read_metrics(run)] == list(range(1, STEPS + 1))
    assert metrics_of(run) == metrics_of(whole)
    assert parts(run) == parts(whole)
    for part in parts(whole):
        assert_equal_weights(weights_of(run, STEPS, part), weights_of(whole, STEPS, part))
    assert trainer_state(run) == trainer_state(whole)


def test_killed_anywhere(unbroken: tuple[str, Path]) -> None:
    name, folder = unbroken
    killed_and_resumed(name, folder, random.Random(name).randrange(18, 45))


@pytest.mark.full
@pytest.mark.parametrize("flush", range(1, 45, 2))
def test_killed_at_many_flushes(unbroken: tuple[str, Path], flush: int) -> None:
    killed_and_resumed(*unbroken, flush)


def test_what_a_checkpoint_holds(unbroken: tuple[str, Path]) -> None:
    """A critic is a folder that transformers loads, with its scores; a value head is a file beside a plain policy."""
    name, folder = unbroken
    step = checkpoint_path(folder / "unbroken", STEPS)
    shared, lora = "value head" in name, "adapters" in name
    assert (step / "critic").exists() != shared
    assert (step / "policy" / "value_head.safetensors").exists() == shared
    state = trainer_state(folder / "unbroken")["algorithm"]
    assert bool(state["kl"]) == ("steered" in name or "refresh" not in str(CASES[name]))
    assert state["moments"]["count"] == (STEPS * 4 if "normalised" in name else 0)
    if lora:
        return
    AutoModelForCausalLM.from_pretrained(step / "policy")
    if shared:
        return
    theirs, loading = AutoModelForSequenceClassification.from_pretrained(step / "critic", output_loading_info=True)
    assert not loading["missing_keys"] and theirs.config.num_labels == 1
    ours = load_scalar_model(ModelConfig(path=str(step / "critic"), device="cpu"), fresh_head=False, trainable=False)
    ids = [5, 6, 7, 8, 9]
    with torch.no_grad():
        wanted = theirs.eval()(torch.tensor([ids])).logits[0, 0]
        found = token_values(ours, build([make_sample(ids, [0])]))[0, 0]
    assert found.item() == pytest.approx(wanted.item(), abs=1e-5) and wanted != 0
