"""Offline methods where the right answer is known, and how near each comes to it."""

import json
import math
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quatrain.config import ModelConfig
from quatrain.methods.offline import train
from quatrain.methods.run_folder import load_measures
from quatrain.models.load import load_language_model
from quatrain.models.scalar import load_scalar_model, score_ids
from quatrain.telemetry.console import Console
from quatrain.telemetry.run_log import read_metrics
from tests.runs import offline_recipe

pytestmark = pytest.mark.full
QUALITY = {letter: place / 4 for place, letter in enumerate("abcdefgh")}  # of an answer that is one letter


def write(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [{"source": str(path)}]


def compared(count: int, seed: int, prefix: str) -> list[dict[str, Any]]:
    """Pairs of letters, labelled by P(first wins) = sigmoid of the difference in quality."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        first, second = rng.choice(list(QUALITY), 2, replace=False)
        wins = rng.random() < 1 / (1 + math.exp(QUALITY[second] - QUALITY[first]))
        chosen, rejected = (first, second) if wins else (second, first)
        rows.append({"prompt": f"{prefix}{number % 3}:", "chosen": str(chosen), "rejected": str(rejected)})
    return rows


def test_a_reward_model_finds_the_qualities_that_made_the_labels(tmp_path: Path) -> None:
    """Bradley-Terry is identifiable: score differences are those of the qualities, up to sampling noise."""
    wanted = offline_recipe(
        tmp_path, "reward_model", data=write(tmp_path / "data.jsonl", compared(3000, 0, "p")),
        held_out=write(tmp_path / "held.jsonl", compared(500, 1, "q")), algorithm={"normalise": "none"},
        train={"steps": 100, "examples_per_step": 64, "learning_rate": 3e-3, "tokens_per_micro_batch": 4096,
               "schedule": "linear"},
    )  # fmt: skip
    train(wanted, Console(StringIO(), terminal=False))
    lm = load_scalar_model(ModelConfig(path=str(tmp_path / "run"), device="cpu"), fresh_head=False)
    ids = [[*lm.tokenizer.encode(f"p1:{letter}"), 1] for letter in QUALITY]
    scores = score_ids(lm, ids)
    quality = torch.tensor(list(QUALITY.values()), dtype=torch.float64)
    gaps = (scores - scores.mean()) - (quality - quality.mean())
    assert gaps.abs().max() < 0.35, gaps
    measured = load_measures(tmp_path / "run", 100)
    assert measured is not None
    best = np.mean([max(p, 1 - p) for a in QUALITY.values() for b in QUALITY.values() if a != b
                    for p in [1 / (1 + math.exp(a - b))]])  # fmt: skip
    assert measured.values["eval/accuracy"] > best - 0.06  # of a judge who knows the qualities


def letter_probability(folder: Path, letter: str, prompts: list[str]) -> float:
    lm = load_language_model(ModelConfig(path=str(folder), device="cpu"))
    found = []
    for prompt in prompts:
        with torch.no_grad():
            logits = lm.module(input_ids=torch.tensor([lm.tokenizer.encode(prompt)])).logits[0, -1]
        found.append(float(logits.softmax(-1)[lm.tokenizer.convert_tokens_to_ids(letter)]))
    return float(np.mean(found))


def test_sft_learns_the_frequencies_of_the_answers(tmp_path: Path) -> None:
    """Three answers in four are `a`, one is `b`, whatever the prompt: the loss comes near their entropy."""
    rows = [{"prompt": f"{n % 3}?", "completion": "b" if n % 4 == 0 else "a"} for n in range(400)]
    steps = 80
    wanted = offline_recipe(
        tmp_path, "sft", data=write(tmp_path / "data.jsonl", rows), held_out=[],
        train={"steps": steps, "examples_per_step": 100, "learning_rate": 1e-2, "tokens_per_micro_batch": 4096,
               "schedule": "linear"},
    )  # fmt: skip
    train(wanted, Console(StringIO(), terminal=False))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / 2  # per token: the end token is certain
    assert np.mean([row.metrics["train/loss"] for row in read_metrics(tmp_path / "run")][-4:]) < entropy + 0.06
    assert letter_probability(tmp_path / "run", "a", ["0?", "1?", "2?"]) == pytest.approx(0.75, abs=0.2)


@pytest.mark.parametrize("smoothing", [{}, {"label_smoothing": 0.2}, {"label_smoothing": 0.2, "robust": True}], ids=str)
def test_dpo_reaches_the_log_odds_that_its_labels_have(tmp_path: Path, smoothing: dict[str, Any]) -> None:
    """With `a` preferred to `b` in 80 % of the rows, beta Delta = ln 4 is the optimum; conservative DPO with e = .2
    aims at ln(.68 / .32), and the robust form, which takes the 20 % for noise, pushes on without bound."""
    rows = [{"prompt": f"{n % 3}?", "chosen": "ab"[n % 5 == 0], "rejected": "ba"[n % 5 == 0]} for n in range(300)]
    wanted = offline_recipe(
        tmp_path, "dpo", data=write(tmp_path / "data.jsonl", rows), held_out=[],
        algorithm={"beta": 0.5, **smoothing},
        train={"steps": 60, "examples_per_step": 100, "learning_rate": 3e-3, "tokens_per_micro_batch": 4096,
               "schedule": "linear"},
    )  # fmt: skip
    train(wanted, Console(StringIO(), terminal=False))
    margins = [row.metrics["preference/margin"] for row in read_metrics(tmp_path / "run")][-6:]
    signed = float(np.mean(margins)) / 0.6  # .8 of the pairs have + beta Delta, .2 have - beta Delta
    if smoothing.get("robust"):
        assert signed > 3
    else:
        q = 0.8 if not smoothing else 0.8 * 0.8 + 0.2 * 0.2
        assert signed == pytest.approx(math.log(q / (1 - q)), abs=0.25)


@pytest.mark.parametrize("name", ["dpo", "ipo", "kto", "orpo", "simpo"])
def test_every_method_moves_probability_to_what_is_preferred(tmp_path: Path, name: str) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"{n}?", "chosen": "a", "rejected": "b"} for n in range(200)]
    wanted = offline_recipe(tmp_path, name, data=write(tmp_path / "data.jsonl", rows), held_out=[],
                            train={"steps": 30, "examples_per_step": 40, "learning_rate": 3e-3,
                                   "tokens_per_micro_batch": 4096})  # fmt: skip
    train(wanted, Console(StringIO(), terminal=False))
    prompts = ["701?", "822?"]
    start = letter_probability(tmp_path / "model", "a", prompts) / letter_probability(tmp_path / "model", "b", prompts)
    end = letter_probability(tmp_path / "run", "a", prompts) / letter_probability(tmp_path / "run", "b", prompts)
    assert end > 5 * start
