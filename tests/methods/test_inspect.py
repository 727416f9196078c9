"""`quatrain eval` on a tiny run: greedy and sampled, two policies, files of results, sets by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from quatrain.errors import SettingError
from quatrain.methods import inspect
from quatrain.methods.inspect import Output, eval_modes, evaluate_target
from quatrain.methods.subject import Asking, chosen_step, settle, with_model_of
from tests.cli.test_mistakes import quatrain
from tests.runs import recipe_file, rows

READER = '''
from quatrain.config import Section
from quatrain.types import Score

class FirstLetter:
    """Right when the first letter is in the first half of the alphabet; cannot judge a digit."""
    class Settings(Section): pass
    scope, kind, examples = "completion", "correctness", ()

    def __init__(self, settings, limits): pass

    async def score(self, rollouts):
        return [self.judge(one.text.strip()[:1].lower()) for one in rollouts]

    def judge(self, letter):
        if letter.isdigit():
            return Score(status="error", error="a digit")
        return Score(value=float(letter.isalpha() and letter < "n"), answer=letter or None)

    def close(self): pass
'''


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quatrain.methods.evaluate.RESAMPLES", 200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe with two held-out sources, and its run with checkpoints at 2 and 4 steps."""
    found = tmp_path_factory.mktemp("eval")
    (found / "reader.py").write_text(READER)
    rows(found / "other.jsonl", [f"give {a}:" for a in "abcd"])
    path = recipe_file(
        found, train={"steps": 4, "learning_rate": 3e-2}, checkpoint={"every": 2}, evaluation={"every": 2},
        held_out=[{"source": str(found / f"{name}.jsonl"), "name": name} for name in ("test", "other")],
        verifiers={"default": {"first": {"kind": f"{found / 'reader.py'}:FirstLetter"}}},
    )  # fmt: skip
    assert quatrain("train", path) == 0
    return found


def found_by(capfd: pytest.CaptureFixture[str], target: Path | str, *asking: str, **options: Any) -> dict[str, Any]:
    """The JSON on standard output, which must hold nothing else."""
    capfd.readouterr()
    evaluate_target(str(target), Asking(changes=asking), output=Output(as_json=True), **options)
    return json.loads(capfd.readouterr().out)


SAMPLED = ("evaluation.samples=4",)


def test_sampled_and_greedy_in_one_command(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = found_by(capfd, folder / "run", *SAMPLED, greedy=True)
    assert list(found) == ["target", "prompts", "held_out", "verifiers", "seed", "sampled", "greedy"]
    assert found["prompts"] == 10 and found["sampled"]["samples"] == 4 and found["greedy"]["samples"] == 1
    assert found["sampled"]["sampling"]["temperature"] == 1.0 and found["greedy"]["sampling"]["temperature"] == 0.0
    assert {"pass@4", "mean@4", "majority@4", "truncated", "verifier_errors"} <= set(found["sampled"]["measures"])
    assert list(found["sampled"]["sources"]) == ["test", "other"]
    assert found["sampled"]["sources"]["other"].keys() == found["sampled"]["measures"].keys()
    alone = found_by(capfd, folder / "run")
    assert alone["greedy"] == found["greedy"] and alone["sampled"] is None
    assert found_by(capfd, folder / "run", *SAMPLED, greedy=True) == found, "the same again"


def test_tables(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    evaluate_target(str(folder / "run"), Asking(changes=SAMPLED), greedy=True)
    text = capfd.readouterr().out
    assert "sampled: 4 completions a prompt at temperature 1, at most 6 tokens; greedy: 1 completion" in text
    assert (
        "10 prompts, 95 % bootstrap intervals" in text and "source other" in text and "scored: default: first " in text
    )
    line = next(line for line in text.splitlines() if line.startswith("majority@4"))
    assert line.count("[") == 1 and line.rstrip().endswith("-"), "no majority of one greedy answer"


def test_evaluation_leaves_the_run_alone(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in (folder / "run").rglob("*") if path.is_file()}
    found_by(capfd, folder / "run", *SAMPLED, against_step="0")
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "run").rglob("*") if path.is_file()}


def test_two_steps_of_a_run_and_a_model(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The model is the start of the run; against itself nothing differs."""
    found = found_by(capfd, folder / "run", *SAMPLED, step="2", against_step="0", greedy=True)
    assert found["target"].endswith("at step 2") and found["against"].endswith("at step 0") and found["notes"] == []
    same = found_by(capfd, folder / "run", *SAMPLED, step="2", against=str(folder / "model"), greedy=True)
    assert same["sampled"] == found["sampled"] and same["greedy"] == found["greedy"]
    assert set(found["sampled"]["sources"]) == {"test", "other"}
    one = found_by(capfd, folder / "run", step="0", against=str(folder / "model"))["greedy"]["measures"]["pass@1"]
    assert one["equal"] == one["target"]["prompts"] > 0 == one["higher"] == one["lower"] and one["p"] == 1.0


def test_files_of_results(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for step in ("0", "4"):
        evaluate_target(str(folder / "run"), Asking(), step=step, output=Output(True, tmp_path / f"{step}.json"))
    direct = found_by(capfd, folder / "run", step="4", against_step="0")
    assert found_by(capfd, tmp_path / "4.json", against=str(tmp_path / "0.json")) == direct
    assert found_by(capfd, folder / "run", step="4", against=str(tmp_path / "0.json")) == direct
    of_run = [folder / "run" / "evaluations" / f"step-00000{step}.json" for step in (4, 0)]
    assert found_by(capfd, of_run[0], against=str(of_run[1]))["greedy"] == direct["greedy"]
    assert found_by(capfd, tmp_path / "4.json") == found_by(capfd, folder / "run")
    kept = json.loads((tmp_path / "4.json").read_text())
    assert len(kept["greedy"]["answers"]) == 10 and kept["greedy"]["answers"][0]["completion"]


def test_files_that_cannot_be_compared(folder: Path, tmp_path: Path) -> None:
    for name, limit, changes in (("all", None, ()), ("some", 4, ()), ("sampled", None, SAMPLED)):
        output = Output(True, tmp_path / f"{name}.json")
        evaluate_target(str(folder / "run"), Asking(changes=changes), limit=limit, output=output)
    with pytest.raises(SettingError, match=r"^--against: got 10 and 4 prompts, need the same prompts"):
        evaluate_target(str(tmp_path / "all.json"), Asking(), against=str(tmp_path / "some.json"))
    with pytest.raises(SettingError, match=r"^--against: got sampled answers, where the target has greedy"):
        evaluate_target(str(tmp_path / "all.json"), Asking(), against=str(tmp_path / "sampled.json"))
    with pytest.raises(SettingError, match=r"^--against: got .*run, need a file of results too"):
        evaluate_target(str(tmp_path / "all.json"), Asking(), against=str(folder / "run"))


def test_a_comparison_is_shown_and_kept(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    evaluate_target(str(folder / "run"), Asking(), against_step="0", output=Output(False, tmp_path / "both.json"))
    text = capfd.readouterr().out
    assert "greedy, 10 prompts, paired 95 % bootstrap intervals" in text and "higher/lower/equal" in text
    assert "greedy, source test" in text and "exact sign test" in text and "scored: default: first " in text
    kept = json.loads((tmp_path / "both.json").read_text())
    assert len(kept["against"]["greedy"]["answers"]) == 10 and kept["comparison"]["greedy"]["measures"]
    with pytest.raises(SettingError, match="need results with their answers"):
        evaluate_target(str(tmp_path / "both.json"), Asking())


def test_only_one_model_is_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the second one is loaded, the first is gone."""
    import gc
    import weakref

    alive: list[Any] = []
    load = inspect.load_subject

    def loading(*arguments: Any) -> Any:
        gc.collect()
        assert not [one for one in alive if one() is not None]
        subject = load(*arguments)
        alive.append(weakref.ref(subject.lm.module))
        return subject

    monkeypatch.setattr(inspect, "load_subject", loading)
    evaluate_target(str(folder / "run"), Asking(), against=str(folder / "model"), output=Output(True))
    assert len(alive) == 2


def test_best_is_the_step_with_the_best_evaluation(folder: Path) -> None:
    run = folder / "run"
    values = {step: json.loads((run / "evaluations" / f"step-00000{step}.json").read_text()) for step in (2, 4)}
    right = {step: sum(one["correct"] or 0 for one in data["answers"]) for step, data in values.items()}
    assert chosen_step(run, "best") == max(right, key=lambda step: (right[step], -step))
    assert [chosen_step(run, step) for step in (None, "2", 4, "0")] == [4, 2, 4, 0]


def test_when_answers_are_sampled(folder: Path) -> None:
    def modes(*changes: str, greedy: bool = False) -> dict[str, tuple[int, float]]:
        asking = Asking(changes=changes)
        made = eval_modes(settle(str(folder / "run"), asking), asking, greedy)
        return {mode: (samples, sampling.temperature) for mode, (samples, sampling) in made.items()}

    assert modes() == modes(greedy=True) == {"greedy": (1, 0.0)}
    assert modes("evaluation.samples=4") == {"sampled": (4, 1.0)}
    assert modes("evaluation.temperature=0.6") == {"sampled": (1, 0.6)}
    both = {"sampled": (4, 0.6), "greedy": (1, 0.0)}
    assert modes("evaluation.samples=4", "evaluation.temperature=0.6", greedy=True) == both
    with pytest.raises(SettingError, match=r"evaluation\.samples: got 4, need 1 with temperature 0"):
        modes("evaluation.samples=4", "evaluation.temperature=0.0")


def test_the_other_model_is_asked_the_same(folder: Path) -> None:
    changes = ("model.dtype=float64", "rollout.max_tokens=3")
    first = settle(str(folder / "run"), Asking(changes=changes))
    for target in (folder / "model", folder / "run"):
        other = with_model_of(first, str(target), changes)
        assert other.model.dtype == "float64" and other.rollout.max_tokens == 3
        assert other.held_out == first.held_out and other.verifiers == first.verifiers


def test_a_set_by_name(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str],
                       monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    (tmp_path / "mawps").mkdir()
    (tmp_path / "mawps" / "test.jsonl").write_text('{"question": "1 + 1 = ?", "answer": 2.0, "source": "x"}\n' * 3)
    monkeypatch.setenv("QUATRAIN_DATA", str(tmp_path))
    found = {}
    for target in ("model", "run"):
        capfd.readouterr()
        assert quatrain("eval", folder / target, "--task", "mawps", "--json", "--set", "evaluation.max_tokens=4") == 0
        found[target] = json.loads(capfd.readouterr().out)
        assert found[target]["prompts"] == 3 and "numeric" in str(found[target]["verifiers"])
        assert found[target]["held_out"][0]["prefill"] == "The answer is"
        assert found[target]["greedy"]["sampling"]["max_tokens"] == 4, "settings win over the set"
    assert found["model"]["held_out"] == found["run"]["held_out"]


def test_an_answer_that_could_not_be_judged_is_counted(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = found_by(capfd, folder / "run", "evaluation.samples=32", step="0", limit=4)["sampled"]["measures"]
    assert 0 < found["verifier_errors"]["value"] < 1, "some answers begin with a digit"
    assert found["mean@32"]["value"] > 0


@pytest.mark.parametrize(
    ("asking", "options", "named"),
    [
        (Asking(), {"step": 2}, "--step: got 2"),
        (Asking(), {"limit": 1}, "--limit: got 1"),
        (Asking(changes=["evaluation.samples=2"]), {}, "--set: got"),
        (Asking(task="gsm8k"), {}, "--task: got gsm8k"),
        (Asking(), {"greedy": True}, "--greedy: got True"),
    ],
)
def test_a_file_of_results_is_not_asked_anew(
    tmp_path: Path, asking: Asking, options: dict[str, Any], named: str
) -> None:
    (tmp_path / "saved.json").write_text("{}")
    with pytest.raises(SettingError) as caught:
        evaluate_target(str(tmp_path / "saved.json"), asking, **options)
    assert str(caught.value).startswith(named) and "not a file of results" in str(caught.value)
