"""The walk through RLHF: the gold score by hand, the judge, the rows of HH-RLHF, the chain, the published page."""

import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from quatrain.methods.inspect import Output, evaluate_target
from quatrain.methods.subject import Asking
from quatrain.recipe_file import load_recipe
from quatrain.telemetry.console import Console
from quatrain.telemetry.run_log import read_metrics
from tests.recipes.beside import modules_of
from tests.runs import train

ROOT = Path(__file__).parent.parent.parent
RECIPES = ROOT / "recipes" / "rlhf"


@pytest.fixture(scope="module")
def walk() -> Iterator[SimpleNamespace]:
    with modules_of("rlhf", "shop", "hh", "results") as found:
        yield found


# --- the shop ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("Dear Ruth, We are sorry. We will send a new one. Thank you for writing.", 4.5),
        ("Dear Anna, We are sorry.", 0.5),  # somebody else is greeted
        ("We are sorry. We are very sorry.", 1.0),  # paid once
        ("We will send a new one.", 2.0),
        ("We will pay you back. You can return it.", -1.0),
        ("It is not our fault. Please read the manual.", -2.0),
        ("Have you seen our new lamps?", 0.0),
        ("We are sorry. We are sorry.", 0.5),
        ("We are sorry. Kettle kettle.", 0.5),  # not a sentence of the shop
        ("We are sorry", -0.5),  # not to its end
        ("", 0.0),
        ("Dear Ruth, " + "Have you seen our new lamps? " * 4, 1.0 - 1.5 - 0.05 * 6),  # 26 words
    ],
)
def test_the_gold_score_by_hand(walk: SimpleNamespace, answer: str, worth: float) -> None:
    assert walk.shop.gold(answer, "Ruth", "is broken") == pytest.approx(worth, abs=1e-12)


def test_letters_and_answers(walk: SimpleNamespace) -> None:
    shop = walk.shop
    train_rows, held_out = ({row["prompt"] for row in shop.prompts(split)} for split in ("train", "held_out"))
    assert not train_rows & held_out and len(train_rows | held_out) == 16 * 16 * 4 and len(held_out) > 100
    rows = shop.examples(400, seed=3)
    assert rows == shop.examples(400, seed=3) and {row["prompt"] for row in rows} <= train_rows
    by_prompt = {row["prompt"]: row for row in shop.prompts()}
    columns = [[by_prompt[row["prompt"]][name] for name in ("name", "problem")] for row in rows]
    worth = [shop.gold(row["completion"], *own) for row, own in zip(rows, columns, strict=True)]
    assert min(worth) < -2 and max(worth) > 3, "answers of every quality"


def test_the_judge_errs_as_the_noise_says(walk: SimpleNamespace, tmp_path: Path) -> None:
    answers = [{"prompt": "p", "completion": name, "reward": worth} for name, worth in (("good", 0.5), ("bad", 0.0))]
    path = tmp_path / "answers.json"
    path.write_text(json.dumps({"sampled": {"answers": answers * 4000}}))
    rows = list(walk.shop.preferences(str(path), noise=0.5))
    right, expected = np.mean([row["chosen"] == "good" for row in rows]), 1 / (1 + math.exp(-1))
    assert len(rows) == 4000 and abs(right - expected) < 4 * math.sqrt(expected * (1 - expected) / 4000)
    assert rows == list(walk.shop.preferences(str(path), noise=0.5)) != list(walk.shop.preferences(str(path), seed=1))


# --- HH-RLHF ----------------------------------------------------------------------------------------------------------


def test_short_dialogues_of_one_question(walk: SimpleNamespace, tmp_path: Path) -> None:
    def row(asked: str, chosen: str, rejected: str) -> str:
        both = {side: f"\n\nHuman: {asked}\n\nAssistant: {answer}" for side, answer in
                (("chosen", chosen), ("rejected", rejected))}  # fmt: skip
        return json.dumps(both) + "\n"

    path = tmp_path / "pairs.jsonl"
    path.write_text(row("How?", "So.", "No.") + row("How?", "Thus.", "x" * 601) + row("y" * 601, "a", "b")
                    + row("Two?", "a\n\nHuman: More?\n\nAssistant: b", "c") + row("Empty?", "", "b"))  # fmt: skip
    assert list(walk.hh.pairs(str(path))) == [{"prompt": "How?", "chosen": "So.", "rejected": "No."}]
    assert list(walk.hh.prompts(str(path))) == [{"prompt": "How?"}]


def test_longer_conversations_share_no_dialogue_with_them(walk: SimpleNamespace, tmp_path: Path) -> None:
    asked = "\n\nHuman: How?\n\nAssistant: So."
    more = {side: f"{asked}\n\nHuman: Why?\n\nAssistant: {side}" for side in walk.hh.SIDES}
    long = {side: text + "x" * 1000 for side, text in more.items()}
    rows = [dict.fromkeys(walk.hh.SIDES, asked), more, long, {**more, "rejected": asked}]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(walk.hh.conversations(str(path))) == [more] and more not in walk.hh.pairs(str(path))


def test_words_of_refusal(walk: SimpleNamespace) -> None:
    says = {"I\u2019m sorry, no.": 1, "I don't know that.": 1, "I'm not sure": 1, "Take the notable one.": 0, "": 0}
    assert {text: walk.hh.declines(text) for text in says} == says


def test_the_recipes_of_real_data_are_whole() -> None:
    rewards = load_recipe(RECIPES / "hh-ppo.yaml").model_dump()["verifiers"]["default"]
    assert rewards["preference"]["path"] == load_recipe(RECIPES / "hh-reward.yaml").output
    assert rewards["gold"]["path"] == load_recipe(RECIPES / "hh-gold.yaml").output
    assert {name for name, part in rewards.items() if part["weight"]} == {"preference"}
    assert load_recipe(RECIPES / "hh-ppo.yaml").model.path == load_recipe(RECIPES / "hh-sft.yaml").output


# --- the chain --------------------------------------------------------------------------------------------------------

SHORT = {
    "sft": ["data.0.options.count=64", "train.steps=3", "train.epochs=1"],
    "reward": ["train.steps=2"],
    "ppo": [
        "train.steps=2",
        "train.prompts_per_step=4",
        "algorithm.critic.warmup_steps=0",
        "held_out.0.limit=6",
        "rollout.max_tokens=8",
    ],
}


def test_the_stages_follow_each_other(
    walk: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    walk.shop.save_model(tmp_path / "base")
    stage(tmp_path, "sft", f"model.path={tmp_path}/base")
    asking = Asking("recipes/rlhf/shop.py:prompts", "recipes/rlhf/shop.py:gold", None,
                    ["evaluation.samples=4", "rollout.max_tokens=8", "threads=1"])  # fmt: skip
    evaluate_target(f"{tmp_path}/sft", asking, limit=16, output=Output(out=tmp_path / "answers.json"))
    reads = [f"model.path={tmp_path}/sft", f"data.0.options.answers={tmp_path}/answers.json"]
    stage(tmp_path, "reward", *reads)
    stage(tmp_path, "ppo", reads[0], f"verifiers.default.preference.path={tmp_path}/reward")
    compared = Output(out=tmp_path / "compared.json")
    evaluate_target(f"{tmp_path}/ppo", Asking(), against=f"{tmp_path}/sft", output=compared)
    assert "win rate" in capsys.readouterr().out
    walk.results.main(tmp_path)
    found = json.loads((tmp_path / "results.json").read_text())
    assert set(found["measures"]) == set(found["curves"]) - {"kl"} == {"preference", "gold"}
    gold = found["measures"]["gold"]
    assert gold["higher"] + gold["lower"] + gold["equal"] == gold["target"]["prompts"] == 6
    assert [len(curve) for curve in found["curves"].values()] == [2, 2, 2] and found["kl"]["steps"] == 2
    assert found["curves"]["kl"][0] == 0, "the first completions are the fine-tuned model's own"
    assert found["curves"]["kl"][1] != 0
    assert {"critic/explained_variance", "reward/gold"} <= set(read_metrics(tmp_path / "ppo")[-1].metrics)
    shown = capsys.readouterr().out
    assert "| the gold score |" in shown and (tmp_path / "results.svg").is_file()


def stage(folder: Path, name: str, *overrides: str) -> None:
    """A recipe of the walk with few steps."""
    recipe = load_recipe(RECIPES / f"{name}.yaml", [*overrides, f"output={folder}/{name}", *SHORT[name]])
    train(recipe, Console(io.StringIO(), terminal=False))


def test_the_published_page_has_the_tables_of_its_data(walk: SimpleNamespace) -> None:
    folder = ROOT / "docs" / "results"
    page = (folder / "rlhf.md").read_text(encoding="utf-8")
    for name in ("rlhf.json", "rlhf-hh.json"):
        found = json.loads((folder / name).read_text(encoding="utf-8"))
        assert walk.results.win_rates(found) in page and walk.results.side_by_side(found) in page
