"""The result object: read from a hand-made run, whole or under way, with and without held-out prompts."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from quatrain.errors import SettingError
from quatrain.methods.evaluate import Answer, Evaluation
from quatrain.methods.plot import trailing_mean
from quatrain.methods.result import Result, points, read_result
from quatrain.methods.run_folder import write_parquet
from quatrain.telemetry.metrics import Last, Mean, Metric
from quatrain.telemetry.run_log import RunLog

REWARDS = [0.0, 0.25, 0.5, 0.25, 1.0, 0.75]


def evaluation(step: int, *rights: float, asked: str = "key", tone: float = 0.0) -> Evaluation:
    answers = [
        Answer(
            prompt_index=index, source="s", prompt="p", question=f"question {index}", completion=f"text {step}",
            tokens=3, stop_reason="eos", reward=right + tone, correct=right, in_form=right,
            parts={"right": right, "tone": tone},
        )
        for index, right in enumerate(rights)
    ]  # fmt: skip
    return Evaluation(step, 1, tuple(answers), asked)


def step_metrics(step: int) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {
        "reward/mean": Mean(4 * REWARDS[step - 1], 4), "rollout/length": Last(10.0 + step),
        "groups/zero_variance": Last(0.0), "kl/old_k3": Last(0.0), "time/step_s": Last(2.0),
    }  # fmt: skip
    return metrics if step == 3 else {**metrics, "policy/entropy": Last(1.0 / step)}  # no update in step 3


def a_run(folder: Path, steps: int, *evaluations: Evaluation) -> Path:
    """A run folder after `steps`."""
    log = RunLog(folder)
    for step in range(1, steps + 1):
        log.metrics(step, step_metrics(step))
        rows = [{"step": step, "prompt": f"p{step}", "completion": f"c{i}", "score": 0.5, "parts": '{"right": 0.5}'}
                for i in range(2)]  # fmt: skip
        write_parquet(folder / "rollouts" / f"step-{step:06d}.parquet", rows)
    for one in evaluations:
        one.save(folder)
    (folder / "recipe.yaml").write_text("method: online\n")
    return folder


@pytest.fixture
def whole(tmp_path: Path) -> Result:
    first, middle, last = evaluation(0, 0, 1, 0, 0), evaluation(3, 0, 1, 1, 0, tone=0.5), evaluation(6, 1, 1, 1, 0)
    return read_result(a_run(tmp_path / "run", 6, first, middle, last))


def panels(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left").partition(" (")[0] for axes in figure.axes]


def test_metrics_are_columns_over_steps(whole: Result) -> None:
    metrics = whole.metrics
    assert metrics.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert metrics["reward/mean"].tolist() == REWARDS and metrics["time/step_s"][0] == 2.0
    assert np.isnan(metrics["policy/entropy"]).tolist() == [False, False, True, False, False, False]
    with pytest.raises(SettingError, match=r"metrics: got reward/maen, .* did you mean 'reward/mean'"):
        metrics["reward/maen"]
    frame = metrics.to_pandas()
    assert frame.loc[4, "policy/entropy"] == 0.25 and frame.index.name == "step" and len(frame.columns) == len(metrics)


def test_without_pandas_there_is_one_line(whole: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SettingError, match="pip install pandas"):
        whole.metrics.to_pandas()


def test_gain_by_hand(whole: Result) -> None:
    found = whole.gain()
    assert found is not None
    assert (found["before"], found["after"], found["difference"]) == (0.25, 0.75, 0.5)
    assert whole.steps == 6 and list(whole.evaluations) == [0, 3, 6]
    with pytest.raises(SettingError, match="did you mean 'correct'"):
        whole.gain("corect")
    steps, means, bounds = points(whole.evaluations, "correct")
    assert steps == [0, 3, 6] and means.tolist() == [0.25, 0.5, 0.75]
    assert (bounds[0] <= means).all() and (means <= bounds[1]).all() and bounds.shape == (2, 3)


def test_completions_of_a_step(whole: Result) -> None:
    rows = whole.completions(2)
    assert [(row["prompt"], row["completion"], row["parts"]) for row in rows] == [
        ("p2", "c0", {"right": 0.5}), ("p2", "c1", {"right": 0.5}),
    ]  # fmt: skip
    assert whole.completions() == whole.completions(6)
    with pytest.raises(SettingError, match=r"step: got 7, need a step with saved rollouts \(1, 2, 3, 4, 5, 6\)"):
        whole.completions(7)


def test_printed(whole: Result) -> None:
    lines = str(whole).splitlines()
    assert lines[0] == f"run {whole.folder}: 6 steps"
    assert lines[1] == "  training reward: 0.000 in the first step, 0.750 in the last step"
    assert lines[2].startswith("held-out (4 prompts)")
    assert lines[3].startswith("right answer") and "25.0 %" in lines[3] and "75.0 %" in lines[3] and "+50.0" in lines[3]
    assert lines[2].index("before") == lines[3].index("25.0 %") == lines[4].index("0.000 ["), "columns are aligned"


def test_a_page_of_its_own(whole: Result) -> None:
    page = whole._repr_html_()
    assert "<table" in page and "75.0 %" in page and "src='data:image/png;base64," in page
    assert not re.search(r"https?:|<script|<link|src='(?!data:)", page)


def test_the_picture(whole: Result, tmp_path: Path) -> None:
    figure = whole.plot(tmp_path / "new" / "curves.svg")
    assert panels(figure) == [
        "training reward", "held-out prompts, 95 % intervals", "entropy", "groups without variance",
        "length of a completion",
    ], "KL was 0 throughout"  # fmt: skip
    reward, held_out = figure.axes[:2]
    assert list(reward.lines[0].get_ydata()) == REWARDS
    labels = [text.get_text() for text in held_out.get_legend().get_texts()]
    assert labels == ["right answer", "tone"], "a part that repeats the accuracy is not drawn"
    assert list(held_out.containers[0].lines[0].get_ydata()) == [0.25, 0.5, 0.75]
    assert "<svg" in (tmp_path / "new" / "curves.svg").read_text()
    assert whole.plot(tmp_path / "curves.png") and (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert figure._repr_png_().startswith(b"\x89PNG"), "a notebook shows it"
    with pytest.raises(SettingError, match=r"path: got .*curves.bmp, need a name ending in .png, .svg, .pdf"):
        whole.plot(tmp_path / "curves.bmp")


def test_trailing_mean_by_hand() -> None:
    nan = float("nan")
    assert trailing_mean(np.array([1.0, 3.0, nan, 5.0]), 2).tolist() == [1.0, 2.0, 3.0, 5.0]
    assert np.isnan(trailing_mean(np.array([nan, nan, 2.0]), 2)).tolist() == [True, True, False]


def test_without_matplotlib_there_is_one_line(whole: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SettingError, match=r"plot: got no matplotlib, .* pip install 'quatrain\[plot\]'"):
        whole.plot()
    assert "<table" in (page := whole._repr_html_()) and "<img" not in page and "quatrain[plot]" in page


def test_a_run_under_way(tmp_path: Path) -> None:
    """One step, a line that is being written, no last evaluation yet."""
    folder = a_run(tmp_path / "run", 1, evaluation(0, 0, 1))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "metr')
    result = read_result(folder)
    assert (result.steps, result.after, result.gain()) == (1, None, None)
    assert "1 step" in str(result) and "evaluated at the end" in str(result)
    assert panels(result.plot())[:2] == ["training reward", "held-out prompts, 95 % intervals"]
    assert "<img" in result._repr_html_()


def test_a_run_before_its_first_step_and_without_held_out_prompts(tmp_path: Path) -> None:
    result = read_result(a_run(tmp_path / "run", 0))
    assert result.steps == 0 and "held_out prompts" in str(result) and not result.metrics
    with pytest.raises(SettingError, match=r"plot: got .*, need a run with at least one step"):
        result.plot()
    with pytest.raises(SettingError, match=r"completions: got .*, need a run with saved rollouts"):
        result.completions()
    assert "at least one step" in result._repr_html_()
    with pytest.raises(SettingError, match=r"run: got .*, need a run folder"):
        read_result(tmp_path)


def test_other_held_out_prompts_are_not_compared(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 6, evaluation(0, 0, 1), evaluation(6, 1, 1, asked="other"))
    result = read_result(folder)
    assert result.before is None and result.after is not None and result.gain() is None
    assert points(result.evaluations, "correct")[0] == [6]


def test_where_nothing_measures_right_answers_the_parts_are_shown(tmp_path: Path) -> None:
    result = read_result(a_run(tmp_path / "run", 6, *(evaluation(step, 0, 0, tone=step / 10) for step in (0, 6))))
    assert [row[0] for row in result.gains()] == ["right answer", "tone"], "a part measures it: all wrong is said"
    for one in (0, 6):
        plain = evaluation(one, 0, 0, tone=one / 10)
        answers = tuple(replace(answer, parts={"tone": one / 10}) for answer in plain.answers)
        Evaluation(one, 1, answers, "key").save(result.folder)
    assert [row[0] for row in read_result(result.folder).gains()] == ["tone"]
