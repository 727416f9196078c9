"""PPO-ptx: a language-modelling term on other text, which touches nothing else of an update."""

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch

from quatrain.algorithms.pretraining import is_pretraining, with_pretraining
from quatrain.config import ModelConfig
from quatrain.methods.online import train
from quatrain.models.load import load_language_model
from quatrain.telemetry.console import Console
from quatrain.telemetry.run_log import read_metrics
from quatrain.types import Sample
from tests.algorithms.synthetic import (
    algorithm,
    direct_forward,
    key,
    leaves,
    make_sample,
    ppo,
    random_groups,
    total_loss,
    with_values,
)
from tests.runs import recipe

DATA = {"data": [{"source": "text.jsonl"}], "coefficient": 2.0}
TEXTS = ["zebra 99:", "yonder 88:", "xylem 77:"]


def texts() -> list[Sample]:
    """Two pieces of other text, of 3 and of 2 trained tokens."""
    return [make_sample([1], tokens, number) for number, tokens in enumerate(([11, 12, 13], [14, 15]))]


def leaves_with_text(samples: list[Sample]) -> dict[int, torch.Tensor]:
    """Those of `leaves` for completions, and -0.5, -1, ... for the tokens of a text."""
    own = [sample for sample in samples if not is_pretraining(sample)]
    rows = leaves(own)
    for sample in samples:
        if is_pretraining(sample):
            values = -0.5 * torch.arange(1, sample.num_tokens + 1, dtype=torch.float64)
            rows[key(sample)] = values.requires_grad_()
    return rows


@pytest.mark.parametrize("critic", ["none", "separate", "shared"])
def test_the_term_by_hand_and_nothing_else_changes(critic: str) -> None:
    """Mean of -logp over the 5 tokens of text: (.5 + 1 + 1.5 + .5 + 1) / 5 = .9, times gamma 2."""
    own = {"entropy_coefficient": 0.02, "kl": {"placement": "loss", "estimator": "k3", "coefficient": 0.1}}
    build = algorithm if critic == "none" else lambda **rest: ppo(critic={"model": critic}, **rest)
    with_text, without = build(pretraining=DATA, **own), build(**own)
    samples, _ = with_text.credit(with_values(random_groups()))
    mixed = with_text.prepare(with_pretraining(samples, texts()))
    rows = leaves_with_text(mixed)
    alone, statistics = total_loss(without, without.prepare(samples), direct_forward(rows))
    together, found = total_loss(with_text, mixed, direct_forward(rows))
    assert together.item() - alone.item() == pytest.approx(2 * 0.9, abs=1e-12)
    assert found == statistics  # of the completions alone
    before, after = without.denominators(samples), with_text.denominators(mixed)
    assert after == {**before, "pretraining": 5.0}
    together.backward()
    for sample in mixed:
        if is_pretraining(sample):
            torch.testing.assert_close(rows[key(sample)].grad, torch.full((sample.num_tokens,), -0.4).double())
    assert [with_text.contributes(sample) for sample in mixed[-2:]] == [True, True]
    assert len({s.completion for s in mixed}) == len({s.completion for s in samples}) + 2
    parts = [[sample] for sample in mixed]  # the text in micro-batches of its own
    split, merged = total_loss(with_text, mixed, direct_forward(rows), "packed", parts)
    assert split.item() == pytest.approx(together.item(), abs=1e-12)
    assert {k: m.value for k, m in merged.items()} == pytest.approx({k: m.value for k, m in statistics.items()})


def test_advantages_are_whitened_without_the_text() -> None:
    method = ppo(pretraining=DATA)
    samples, _ = method.credit(with_values(random_groups()))
    plain = ppo().prepare(samples)
    mixed = method.prepare(with_pretraining(samples, texts()))
    for one, other in zip(plain, mixed, strict=False):
        np.testing.assert_array_equal(one.streams["advantages"], other.streams["advantages"])
    assert not mixed[-1].streams["advantages"].any() and not mixed[-1].streams["valued"].any()


def nll(folder: Path | str) -> float:
    """Mean negative log-probability of the texts' characters."""
    lm = load_language_model(ModelConfig(path=str(folder), device="cpu"), trainable=False)
    total, count = 0.0, 0
    for text in TEXTS:
        ids = torch.tensor([lm.tokenizer.encode(text)])
        with torch.no_grad():
            logprobs = lm.module(ids).logits[0, :-1].log_softmax(-1)
        total -= logprobs.gather(1, ids[0, 1:, None]).sum().item()
        count += ids.shape[1] - 1
    return total / count


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_a_run_keeps_its_language(tmp_path: Path, critic: str) -> None:
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    settings = {
        "rollout": {"group_size": 2, "max_tokens": 3}, "train": {"steps": 8, "prompts_per_step": 2},
        "algorithm": {"preset": "ppo", "kl": {"target": None}, "critic": {"model": critic}},
    }  # fmt: skip
    text = {"data": [{"source": str(tmp_path / "text.jsonl")}], "coefficient": 1.0, "examples_per_update": 3}
    kept = {**settings, "algorithm": {**settings["algorithm"], "pretraining": text}}
    for name, own in (("kept", kept), ("plain", settings)):
        train(recipe(tmp_path, **own, output=str(tmp_path / name)), Console(StringIO(), terminal=False))
    before = nll(tmp_path / "model")
    after, plain = (nll(tmp_path / name / "checkpoints/step-000008/policy") for name in ("kept", "plain"))
    assert after < before - 0.5 and after < plain - 0.5, (before, after, plain)
    first, other = (read_metrics(tmp_path / name)[0].metrics for name in ("kept", "plain"))
    same = ("advantage/mean", "advantage/std", "kl/reference_k1", "policy/entropy", "critic/return_mean")
    assert {name: first[name] for name in same} == pytest.approx({name: other[name] for name in same}, rel=1e-6)
    assert first["train/tokens"] > other["train/tokens"] and first["train/loss"] > other["train/loss"] + 1
