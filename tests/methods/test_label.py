"""AI feedback: pairs, ties, principles and revisions, from an address and from a model here; resumed after a kill."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quatrain.config import LabelRecipe, OfflineRecipe
from quatrain.errors import QuatrainError, SettingError
from quatrain.methods import label as label_module
from quatrain.methods import offline
from quatrain.methods.label import label
from quatrain.recipe_file import load_label_recipe, validated
from quatrain.rewards.build import judge_of
from quatrain.rewards.judge_prompts import shorten
from quatrain.rewards.verifier import text_rollout
from quatrain.telemetry.console import Console
from tests.rewards.judge_server import StandIn, part, stand_in, verdict
from tests.runs import offline_recipe, quiet, rows
from tests.tiny import save_tiny


def recipe(folder: Path, address: str = "", **changes: Any) -> LabelRecipe:
    if not (folder / "model").exists():
        save_tiny(folder / "model", max_position_embeddings=512)
        rows(folder / "prompts.jsonl", [f"say {a}:" for a in "abcdef"])
    judge: dict[str, Any] = {"kind": "judge", "address": address} if address else {
        "kind": "local_judge", "path": str(folder / "model"), "device": "cpu"}  # fmt: skip
    data: dict[str, Any] = {
        "method": "label",
        "model": {"path": str(folder / "model"), "device": "cpu"},
        "prompts": [{"source": str(folder / "prompts.jsonl")}],
        "rollout": {"group_size": 3, "max_tokens": 5},
        "judge": judge,
        "prompts_per_step": 2,
        "output": str(folder / "labels"),
        "threads": 1,
    }
    for name, value in changes.items():
        data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    return validated(data, LabelRecipe)


def made(folder: Path, name: str = "pairs") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "labels" / f"{name}.jsonl").read_text().splitlines()]


def longest(question: str) -> str:
    """The judge prefers the longer answer, whatever its place."""
    first, second = len(part(question, "FIRST ANSWER")), len(part(question, "SECOND ANSWER"))
    return verdict(question, "tie" if first == second else "first" if first > second else "second")


def test_every_pair_is_asked_in_both_orders_and_the_better_answer_is_chosen(tmp_path: Path) -> None:
    with stand_in(longest) as server:
        label(recipe(tmp_path, server.address), quiet())
    pairs = made(tmp_path)
    assert len(pairs) == 6 * 3
    for row in pairs:
        assert row["tie"] == (row["confidence"] == 0.5) and row["prompt"].startswith("say ")
        assert row["tie"] or len(row["chosen"].strip()) >= len(row["rejected"].strip())
    assert any(not row["tie"] for row in pairs)
    asked = [(part(q, "TASK"), part(q, "FIRST ANSWER"), part(q, "SECOND ANSWER")) for q in server.questions]
    assert {(task, b, a) for task, a, b in asked} == set(asked)


def test_a_judge_that_goes_by_position_labels_ties(tmp_path: Path) -> None:
    with stand_in(lambda question: verdict(question, "first")) as server:
        label(recipe(tmp_path, server.address), quiet())
    assert all(row["tie"] for row in made(tmp_path) if row["chosen"].strip() and row["rejected"].strip())


def test_pairs_without_a_verdict_are_left_out_and_counted(tmp_path: Path) -> None:
    text = io.StringIO()
    with stand_in(lambda question: longest(question) if "say a:" in part(question, "TASK") else "who knows") as server:
        wanted = recipe(tmp_path, server.address, judge={"tries": 1}, prompts_per_step=6)
        label(wanted, Console(text, terminal=False))
    found = made(tmp_path)
    others = [row for row in found if row["prompt"] != "say a:"]
    assert len(found) - len(others) == 3 and all(row["tie"] or not row["rejected"].strip() for row in others)
    assert f"{18 - len(found)} no verdict" in text.getvalue() and len(made(tmp_path, "done")) == 6


def test_a_judge_that_is_away_stops_the_run_which_then_goes_on(tmp_path: Path) -> None:
    away = [True]
    with stand_in(lambda question: (503, "away") if away[0] else longest(question)) as server:
        wanted = recipe(tmp_path, server.address, judge={"tries": 1}, rollout={"max_tokens": 12})
        with pytest.raises(QuatrainError, match=r"^judge: got no verdict on any pair of 2 prompts"):
            label(wanted, quiet())
        assert not (tmp_path / "labels" / "done.jsonl").exists()
        away[0] = False
        label(wanted, quiet())
    assert len(made(tmp_path, "done")) == 6 and len(made(tmp_path)) == 18


def test_each_pair_is_judged_by_one_principle_of_the_constitution(tmp_path: Path) -> None:
    with stand_in(longest) as server:
        label(recipe(tmp_path, server.address, constitution=["Be kind.", "Be brief."]), quiet())
    rules = {row["principle"] for row in made(tmp_path)}
    assert rules == {"Be kind.", "Be brief."}
    assert all(("Be kind." in question) != ("Be brief." in question) for question in server.questions)


def test_revisions_are_rows_for_sft(tmp_path: Path) -> None:
    with stand_in(longest) as server:
        wanted = recipe(tmp_path, server.address, constitution=["be kind"], revise=True)
        label(wanted, quiet())
    revised = made(tmp_path, "revisions")
    assert revised and all(row["completion"].strip() and row["principle"] == "be kind" for row in revised)
    trained = offline_recipe(tmp_path, "sft", data=[{"source": str(tmp_path / "labels/revisions.jsonl")}],
                             held_out=[], train={"steps": 1, "examples_per_step": 2})  # fmt: skip
    assert offline.train(trained, quiet()).steps == 1


def test_the_pairs_train_a_reward_model_and_dpo(tmp_path: Path) -> None:
    label(recipe(tmp_path), quiet())
    for algorithm in ("reward_model", "dpo"):
        data = [{"source": str(tmp_path / "labels/pairs.jsonl")}]
        wanted = offline_recipe(tmp_path, algorithm, data=data, held_out=[], output=str(tmp_path / algorithm),
                                train={"steps": 2})  # fmt: skip
        assert isinstance(wanted, OfflineRecipe) and offline.train(wanted, quiet()).steps == 2


def test_a_higher_limit_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    label(recipe(tmp_path, limit=2), quiet())
    assert len(made(tmp_path, "done")) == 2
    label(recipe(tmp_path), quiet())
    assert len(made(tmp_path, "done")) == 6 and len(made(tmp_path)) == 18


@torch.no_grad()
def test_the_local_judge_reads_probabilities_in_both_orders(tmp_path: Path) -> None:
    """p = mean over the orders of e^a / (e^a + e^b), from the model's own logits."""
    save_tiny(tmp_path / "model", max_position_embeddings=2048)
    judge = judge_of("local_judge", {"path": str(tmp_path / "model"), "device": "cpu"}, 60.0)
    one, other = (text_rollout(text, prompt="what?") for text in ("good", "bad 12"))
    found = judge.preferences([(one, other), (other, one), (one, one), (one, text_rollout(" "))])
    lm, said = judge.lm, []
    for first, second in (("good", "bad 12"), ("bad 12", "good")):
        question = judge._pair(judge._settings.rubric, one, first, second)
        sums = []
        for word in (" A", " B"):
            head, tail = lm.tokenizer.encode(question), lm.tokenizer.encode(word, add_special_tokens=False)
            logits = lm.module(torch.tensor([head + tail])).logits[0].log_softmax(-1)
            sums.append(float(sum(logits[len(head) - 1 + n, token] for n, token in enumerate(tail))))
        said.append(float(np.exp(sums[0]) / (np.exp(sums[0]) + np.exp(sums[1]))))
    assert found[0] == pytest.approx((said[0] + 1 - said[1]) / 2, abs=1e-6)
    assert found[1] == pytest.approx(1 - found[0]) and found[2:] == [0.5, 1.0]
    assert shorten("x" * 10, 10) == "x" * 10
    judge.close()


def test_a_killed_run_goes_on_and_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    label(recipe(whole, constitution=["be kind"], revise=True), quiet())
    wanted = recipe(broken, constitution=["be kind"], revise=True)
    original, left = label_module.append_line, [17]

    def killed(path: Path, line: str) -> None:
        left[0] -= 1
        if not left[0]:
            path.open("a").write(line[: len(line) // 2])
            raise KeyboardInterrupt
        original(path, line)

    with monkeypatch.context() as patched:
        patched.setattr(label_module, "append_line", killed)
        with pytest.raises(KeyboardInterrupt):
            label(wanted, quiet())
    label(wanted, quiet())
    for name in ("pairs", "revisions", "done"):
        assert made(broken, name) == made(whole, name) and made(whole, name)
    before = (whole / "labels/pairs.jsonl").read_bytes()
    label(recipe(whole, constitution=["be kind"], revise=True), quiet())
    assert (whole / "labels/pairs.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout": {"group_size": 1}}, "rollout.group_size: got 1"),
        ({"rollout": {"temperature": 0}}, "rollout.temperature: got 0"),
        ({"revise": True}, "revise: got True, need a constitution"),
        ({"constitution": ["x"], "judge": {"rubric": "y"}}, "judge.rubric: got"),
        ({"judge": {"kind": "oracle"}}, "judge.kind: got oracle"),
        ({"judge": {"rubrik": "y"}}, "judge.rubrik: got an unknown key"),
        ({"verifiers": {}}, "verifiers: got an unknown key"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        label(recipe(tmp_path, **changes), quiet())
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_a_changed_recipe_is_refused_and_a_refusing_address_stops(tmp_path: Path) -> None:
    with stand_in(lambda _: (401, "no key")) as server, pytest.raises(QuatrainError, match="refuses"):
        label(recipe(tmp_path, server.address), quiet())
    label(recipe(tmp_path, output=str(tmp_path / "other")), quiet())
    with pytest.raises(QuatrainError, match="another recipe"):
        label(recipe(tmp_path, output=str(tmp_path / "other"), seed=1), quiet())
    assert isinstance(StandIn(), StandIn)


def test_somebody_elses_pairs_are_not_touched(tmp_path: Path) -> None:
    wanted = recipe(tmp_path)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "pairs.jsonl").write_text('{"chosen": "a", "rejected": "b"}\n')
    with pytest.raises(SettingError, match=r"this one has pairs\.jsonl and no"):
        label(wanted, quiet())
    assert made(tmp_path) == [{"chosen": "a", "rejected": "b"}]


def test_the_recipe_that_is_shipped_is_valid() -> None:
    shipped = load_label_recipe(Path(__file__).parents[2] / "recipes" / "label.yaml", ["limit=2"])
    assert shipped.limit == 2 and shipped.revise and len(shipped.constitution) == 3
