"""The over-optimisation experiment: the gold score by hand, the labels, the curves and laws, the published page."""

import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quatrain.methods.run_folder import write_parquet
from tests.recipes.beside import modules_of

ROOT = Path(__file__).parent.parent.parent
RECIPE = ROOT / "recipes" / "overoptimisation"


@pytest.fixture(scope="module")
def recipe() -> Iterator[SimpleNamespace]:
    with modules_of("overoptimisation", "world", "run", "results") as found:
        yield found


# --- the gold score ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("letter", "score"),
    [
        ("the gulls are small .", 1.1),  # a living thing, and the place has it
        ("the owls are small .", 0.8),  # one that lives elsewhere
        ("the boats are small .", -0.5),
        ("i saw the gulls and the boats .", 0.6),
        ("i saw the gulls and the owls . i saw the bees and the moss .", 1.1 + 0.8 + 0.8),  # a fourth is paid no more
        ("the gulls are lovely .", 1.9),
        ("the boats are lovely .", -0.9),  # praise of what does not live
        ("i saw the gulls and the gulls .", 0.6),  # said again
        ("dear rose , the gulls are small .", 1.9),
        ("dear anna , the gulls are small .", 0.7),
        ("the gulls are small . come soon", 1.6),
        ("", -0.5),  # nothing at all is no letter of the grammar
        ("gulls are small .", 0.6),  # one pair of neighbours that the grammar lacks: the beginning
        ("the gulls are fine . the owls are great . the bees are lovely .", 2.7 + 2.4 - 0.4),  # flattery
        ("fine fine fine fine fine", 5 * -0.4 - 0.4 * 9 - 0.5 * 4 - 0.5 * 6),
    ],
)
def test_the_gold_score_by_hand(recipe: SimpleNamespace, letter: str, score: float) -> None:
    assert recipe.world.gold_score(letter, "rose", "harbour") == pytest.approx(score, abs=1e-12)


def test_the_grammar_knows_its_own_letters(recipe: SimpleNamespace) -> None:
    world = recipe.world
    rows = world.examples(500, seed=3)
    assert rows == world.examples(500, seed=3)
    seen = {pair for row in rows for pair in pairwise(["", *row["completion"].split(), ""])}
    assert seen <= world.GRAMMATICAL
    assert all(word in world.WORDS for row in rows for word in f"{row['prompt']}{row['completion']}".split())
    assert max(len(row["completion"].split()) for row in rows) < 32


# --- labels -----------------------------------------------------------------------------------------------------------


def test_labels_follow_the_gold_score_with_the_noise(recipe: SimpleNamespace) -> None:
    noise = recipe.run.NOISE
    letters = [{"prompt": "p", "completion": name, "gold": gold} for name, gold in (("good", noise), ("bad", 0.0))]
    rows = list(recipe.run.labelled(letters, 4000, random.Random(0)))
    right = np.mean([row["chosen"] == " good" for row in rows])
    expected = 1 / (1 + math.exp(-1))
    assert abs(right - expected) < 4 * math.sqrt(expected * (1 - expected) / 4000)
    assert rows == list(recipe.run.labelled(letters, 4000, random.Random(0)))
    few = list(recipe.run.labelled(letters, 64, random.Random(0)))
    assert few == rows[:64]  # a smaller proxy's pairs are the first of a larger one's


# --- curves and laws --------------------------------------------------------------------------------------------------


def curve(recipe: SimpleNamespace, gold: Any, kl: Any, beta: float | None = 0.0, proxy: Any = None) -> Any:
    points = len(kl)
    return recipe.results.Curve(64, 0, beta, list(range(1, points + 1)), list(kl), proxy or gold, gold)


def test_a_curve_finds_its_law_and_its_peak(recipe: SimpleNamespace) -> None:
    kl = np.linspace(0.5, 25, 30)
    d = np.sqrt(kl)
    rewards = [(d * (2 - 0.9 * np.log(d)) + shift).tolist() for shift in (-0.1, 0.1)]
    one = curve(recipe, rewards, kl.tolist())
    fit = one.fit()
    assert (fit.a, fit.b) == (pytest.approx(2), pytest.approx(0.9))
    assert one.explained() == pytest.approx(1)
    assert one.kl[one.peak()] == pytest.approx(math.exp(2 * (2 / 0.9 - 1)), abs=0.5)
    assert recipe.results.law_peak(one).endswith(f"{math.exp(2 * (2 / 0.9 - 1)):.1f}")


def test_a_fall_is_judged_on_other_prompts_than_it_is_chosen_on(recipe: SimpleNamespace) -> None:
    # The first prompt's points are chosen on the second's rewards (falls from 1 to 3, best 4), and the other way round.
    gold = [[5.0, 1.0, 0.0, 2.0, 2.0, 2.0], [2.0, 3.0, 1.0, 0.0, 4.0, 1.0]]
    proxy = [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0, 1.0, 6.0, 6.0, 6.0, 6.0]]
    rows = {"gold": np.repeat(gold, 3, axis=1), "proxy": np.repeat(proxy, 3, axis=1)}  # each point with two like it
    one = curve(recipe, rows["gold"].tolist(), list(range(1, 19)), proxy=rows["proxy"].tolist())
    assert one.change("gold", "fall").tolist() == [2.0 - 1.0, 0.0 + 1.0 - 2.0]
    assert one.change("proxy", "fall").tolist() == [4.0 - 2.0, 6.0 - 0.0]
    assert one.change("gold", "end").tolist() == [2.0 - 2.0, 1.0 - 2.0]


def test_a_law_without_a_peak_says_so(recipe: SimpleNamespace) -> None:
    d = np.linspace(0.5, 2, 10)
    rising = d * (1 + 0.1 * d)
    assert recipe.results.law_peak(curve(recipe, [rising.tolist()], (d**2).tolist(), None)) == "none (b <= 0)"
    far = d * (1 - 0.05 * d)
    assert recipe.results.law_peak(curve(recipe, [far.tolist()], (d**2).tolist(), None)) == "beyond"


def test_best_of_n_of_a_proxy_that_is_half_right(recipe: SimpleNamespace) -> None:
    letters = [{"gold": float(number % 8), "64-0": float(number)} for number in range(16)]
    found = recipe.results.best_of_n_curve({"p": letters}, 64, 0, {"64-0": 2.0, "gold": 1.0}, (2, 4))
    assert found.x == [2, 4] and found.kl == pytest.approx([math.log(2) - 0.5, math.log(4) - 0.75])
    assert found.proxy[0] == pytest.approx([(2 * 17 / 3 - 8.5) / 2, (4 * 17 / 5 - 8.5) / 2])  # the best of 1 to 16


def test_a_ppo_curve_is_read_from_the_saved_letters(recipe: SimpleNamespace, tmp_path: Path) -> None:
    window = recipe.results.WINDOW
    for step in range(1, 2 * window + 1):
        parts = {"p": {"proxy": step, "gold": -2.0 * step}, "q": {"proxy": step + 4.0, "gold": 0.0}}
        rows = [{"prompt": prompt, "parts": json.dumps(own), "kl_k1": [0.5, step]} for prompt, own in parts.items()]
        write_parquet(tmp_path / "rollouts" / f"step-{step:06d}.parquet", rows)
    start = {"p": [{"64-0": 1.0, "gold": 1.0}, {"64-0": 3.0, "gold": 1.0}], "q": [{"64-0": 2.0, "gold": 0.0}] * 2}
    job = {"pairs": 64, "seed": 0, "beta": 0.1}
    found = recipe.results.ppo_curve(tmp_path, job, start, {"64-0": 0.5, "gold": 2.0})
    middle = (window + 1) / 2
    assert found.x == [window, 2 * window] and found.kl == [middle + 0.5, middle + window + 0.5]
    assert found.proxy[0] == [2 * (middle - 2), 2 * (middle + window - 2)]
    assert found.proxy[1] == [2 * (middle + 4 - 2), 2 * (middle + window + 4 - 2)]
    assert found.gold[0] == [(-2 * middle - 1) / 2, (-2 * (middle + window) - 1) / 2]


# --- the whole of it --------------------------------------------------------------------------------------------------


def test_the_published_page_has_the_tables_of_its_data(recipe: SimpleNamespace) -> None:
    folder = ROOT / "docs" / "results"
    found = recipe.results.load(folder / "overoptimisation.json")
    page = (folder / "overoptimisation.md").read_text(encoding="utf-8")
    for table in recipe.results.TABLES:
        assert table(found) in page, table.__name__


@pytest.mark.full
def test_the_quick_experiment_runs_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    command = [sys.executable, str(RECIPE / "run.py"), "--out", str(tmp_path), "--quick"]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "| PPO, beta 0 | 64 | 0 |" in first.stdout and (tmp_path / "overoptimisation.svg").exists()
    made = (tmp_path / "overoptimisation.json").read_text(encoding="utf-8")
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "..." not in again.stdout and (tmp_path / "overoptimisation.json").read_text(encoding="utf-8") == made
