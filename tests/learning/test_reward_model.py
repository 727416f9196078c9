"""A reward model on preferences with a known answer: it reaches the best that the noise in them allows."""

import json
import math
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from quatrain.config import ModelConfig, VerifierConfig
from quatrain.methods.offline import train
from quatrain.methods.reward_report import Report
from quatrain.models.scalar import attribute_scores, load_scalar_model, reward_info
from quatrain.rewards import build_verifiers, text_rollout
from quatrain.telemetry.console import Console
from quatrain.train.checkpoint import checkpoint_path, checkpoints
from tests.runs import offline_recipe
from tests.tiny import save_tiny

GOOD = {"nice": ("ab", "xy"), "calm": ("mn", "rs")}  # per attribute: letters that help, letters that harm
STRENGTH = 1.0  # P(first is better) = sigmoid(STRENGTH (q_1 - q_2)), q = helping less harming letters


def quality(answer: str, name: str = "nice") -> int:
    helps, harms = GOOD[name]
    return sum((letter in helps) - (letter in harms) for letter in answer)


def compared(count: int, seed: int, *, name: str | None = None, ties: bool = False, **columns: Any) -> list[Any]:
    """Rows of two random answers of 3 to 7 letters, of which the noisy judge prefers one."""
    draw = np.random.default_rng(seed)
    rows = []
    while len(rows) < count:
        first, second = ("".join(draw.choice(list("abxymnrs"), draw.integers(3, 8))) for _ in range(2))
        gap = quality(first, name or "nice") - quality(second, name or "nice")
        if first == second or (ties and gap in (-1, 1)):
            continue
        wins = draw.random() < 1 / (1 + math.exp(-STRENGTH * gap))
        chosen, rejected = (first, second) if wins else (second, first)
        row = {"prompt": f"say {seed}{len(rows)}:", "chosen": chosen, "rejected": rejected, **columns}
        rows.append({**row, **({"attribute": name} if name else {}), **({"tie": True} if ties and not gap else {})})
    return rows


def best_accuracy(rows: list[Any], name: str = "nice") -> float:
    """What knowing q gives on average over the judge's noise."""
    gaps = [abs(quality(row["chosen"], name) - quality(row["rejected"], name)) for row in rows if "tie" not in row]
    return float(np.mean([1 / (1 + math.exp(-STRENGTH * gap)) for gap in gaps]))


def fitted(folder: Path, rows: list[Any], held_out: list[Any], steps: int = 60, **algorithm: Any) -> Report:
    """Train on `rows` and return the report on `held_out` (on `rows`, where that is empty)."""
    folder.mkdir(exist_ok=True)
    for name, own in (("train", rows), ("test", held_out)):
        (folder / f"reward_model-{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    wanted = offline_recipe(
        folder, "reward_model", algorithm=algorithm, **({} if held_out else {"held_out": []}),
        train={"steps": steps, "examples_per_step": 32, "learning_rate": 4e-3, "schedule": "linear",
               "tokens_per_micro_batch": 2048, "builder": "padded"},
    )  # fmt: skip
    train(wanted, Console(StringIO(), terminal=False))
    found: Report = json.loads((folder / "run" / "reward_report.json").read_text())
    return found


TEST = compared(300, 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("reward")
    return folder, fitted(folder, compared(1600, 1), TEST, centering=0.01)


def test_it_reaches_the_best_accuracy_and_says_so(run: tuple[Path, Report]) -> None:
    _, report = run
    best, got = best_accuracy(TEST), report["accuracy"]
    assert 0.75 < best < 0.9 and got["low"] < best < got["high"] and got["value"] > best - 0.04, (best, got)
    baseline = report["length_baseline"]  # lengths say nothing here
    assert abs(baseline["accuracy"]["value"] - 0.5) < 0.1 and baseline["p"] < 1e-6
    assert baseline["verdict"].startswith("The model is better than the length baseline")
    assert report["calibration"]["error"] < 0.1 and all(one["value"] > 0.65 for one in report["by_length_difference"])


def test_normalised_scores_survive_other_readers(run: tuple[Path, Report]) -> None:
    """transformers reads the folder, its constants make mean 0 and deviation 1; the verifier says the same."""
    folder, _ = run
    path = checkpoint_path(folder / "run", checkpoints(folder / "run")[-1]) / "reward"
    module = AutoModelForSequenceClassification.from_pretrained(path).eval()
    lm = load_scalar_model(ModelConfig(path=str(folder / "run"), device="cpu"), fresh_head=False)
    asked = [(row["prompt"], row[side]) for row in TEST for side in ("chosen", "rejected")]
    raw = []
    with torch.no_grad():
        for prompt, answer in asked:
            ids = [*lm.tokenizer.encode(prompt), *lm.tokenizer.encode(answer), 1]
            raw.append(module(input_ids=torch.tensor([ids])).logits[0, 0].item())
    stored = module.config.quatrain_reward
    scores = (np.array(raw) - stored["mean"][0]) / stored["std"][0]
    assert scores.mean() == pytest.approx(0, abs=1e-4) and scores.std() == pytest.approx(1, abs=1e-4)
    part = VerifierConfig.model_validate({"kind": "reward_model", "path": str(folder / "run"), "device": "cpu"})
    with build_verifiers({"default": {"liked": part}}) as verifiers:
        told = verifiers.score([text_rollout(answer, prompt=prompt) for prompt, answer in asked[:40]])
    np.testing.assert_allclose([score.value for score in told], scores[:40], rtol=1e-4, atol=1e-4)


def test_centering_holds_the_mean_at_zero(tmp_path: Path) -> None:
    """The pairs leave a constant open: scores that begin far from 0 stay there without the term."""
    means = {c: _raw_mean(tmp_path / str(c), c) for c in (0.0, 0.3)}
    assert abs(means[0.3]) < 0.3 < 1 < abs(means[0.0]), means


def _raw_mean(folder: Path, centering: float) -> float:
    """Of a model whose last norm makes the first scores large."""
    base = AutoModelForCausalLM.from_pretrained(save_tiny(folder / "model"))
    base.model.norm.weight.data *= 20
    base.save_pretrained(folder / "model")
    fitted(folder, compared(64, 1), [], steps=25, centering=centering)
    lm = load_scalar_model(ModelConfig(path=str(folder / "run"), device="cpu"), fresh_head=False)
    return reward_info(lm).mean[0]


def test_every_head_learns_its_own_attribute(tmp_path: Path) -> None:
    rows = [row for pair in zip(compared(1000, 3, name="nice"), compared(1000, 4, name="calm"), strict=True)
            for row in pair]  # fmt: skip
    test = compared(150, 5, name="nice") + compared(150, 6, name="calm")
    report = fitted(tmp_path, rows, test, steps=110, attributes={"nice": 1.0, "calm": 0.5})
    for name in GOOD:
        best = best_accuracy([row for row in test if row["attribute"] == name], name)
        got = report["heads"]["accuracy"][name]
        assert got["pairs"] == 150 and got["low"] < best < got["high"], (name, best, got)
    assert abs(report["heads"]["correlation"][0][1]) < 0.4  # the qualities have nothing in common
    front = np.array([one["scores"] for one in report["heads"]["front"]])
    assert len(front) > 1 and (np.diff(front[:, 0]) <= 0).all() and (np.diff(front[:, 1]) >= 0).all()  # rounded


def test_ties_are_put_close(tmp_path: Path) -> None:
    rows, test = compared(600, 7, ties=True), compared(200, 8, ties=True)
    report = fitted(tmp_path / "ties", rows, test, steps=40, ties="half")
    tied = report["ties"]
    assert report["pairs"] + tied["pairs"] == 200 and tied["pairs"] > 20
    assert tied["mean_distance"] < 0.4 * tied["mean_distance_of_others"], tied


def test_margins_put_answers_further_apart(tmp_path: Path) -> None:
    """Three of four judges prefer aaa to xxx, and mmm to rrr by a margin of 2; both gaps are where the loss is least.

    d = ln 3 without a margin; with it 0.75 sigmoid(2 - d) = 0.25 sigmoid(2 + d), d = 2.71.
    """
    rows = []
    for number in range(32):
        for best, worst, margin in (("a", "x", 0.0), ("m", "r", 2.0)):
            sides = (3 * best, 3 * worst) if number % 4 else (3 * worst, 3 * best)
            rows.append({"prompt": "say 7:", "chosen": sides[0], "rejected": sides[1], "margin": margin})
    fitted(tmp_path, rows, [], steps=30)
    lm = load_scalar_model(ModelConfig(path=str(tmp_path / "run"), device="cpu"), fresh_head=False)
    ids = [[*lm.tokenizer.encode(f"say 7:{3 * letter}"), 1] for letter in "axmr"]
    a, x, m, r = attribute_scores(lm, ids)[:, 0].tolist()
    assert (a - x, m - r) == (pytest.approx(math.log(3), abs=0.3), pytest.approx(2.71, abs=0.5))
