"""What a finished run prints."""

import io
from pathlib import Path

from quatrain.methods.evaluate import Answer, Evaluation
from quatrain.methods.online import Result
from quatrain.methods.summary import summarise
from quatrain.telemetry.console import Console


def evaluation(step: int, *rows: tuple[float, float, float]) -> Evaluation:
    """Rows of (correct, in form, part `tone`)."""
    answers = [
        Answer(
            prompt_index=index, source="s", prompt="p", question=f"question {index}", completion=f"text {step}",
            tokens=3, stop_reason="eos", reward=correct + tone, correct=correct, in_form=form,
            parts={"right": correct, "polite_tone": tone},
        )
        for index, (correct, form, tone) in enumerate(rows)
    ]  # fmt: skip
    return Evaluation(step, 1, tuple(answers), "key")


def printed(before: Evaluation | None, after: Evaluation | None) -> str:
    stream = io.StringIO()
    summarise(Result(Path("runs/x"), 2, before, after), Console(stream, terminal=False))
    return stream.getvalue()


def test_accuracy_with_and_without_form_and_the_parts_that_tell_more() -> None:
    before = evaluation(0, (0, 0, 0.5), (1, 0, 0.5), (0, 0, 0.5), (0, 0, 0.5))
    text = printed(before, evaluation(2, (1, 1, 1.0), (1, 0, 0.5), (1, 1, 0.5), (0, 0, 0.5)))
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    assert "25.0 %" in lines["right answer"] and "75.0 %" in lines["right answer"] and "+50.0" in lines["right answer"]
    assert "0.0 %" in lines["right answer in the asked form"] and "+50.0" in lines["right answer in the asked form"]
    assert "0.500" in lines["polite tone"] and "0.625" in lines["polite tone"] and "+0.125" in lines["polite tone"]
    assert "right" not in lines, "a part that repeats the accuracy"
    assert "- text 0" in lines["question 0"] and "+ text 2" in lines["question 0"]
    assert "runs/x" in text and "quatrain sample runs/x" in text


def test_without_held_out_prompts_there_is_still_the_folder() -> None:
    text = printed(None, None)
    assert "run folder: runs/x" in text and "%" not in text


def test_answers_that_nobody_judged_have_no_marks() -> None:
    nan = float("nan")
    text = printed(evaluation(0, (nan, nan, 0.5)), evaluation(2, (nan, nan, 1.0)))
    assert "+ right" not in text and "? text" not in text and "text 0" in text and "text 2" in text
    mixed = printed(evaluation(0, (nan, nan, 0.5)), evaluation(2, (1, 1, 1.0)))
    assert "? text 0" in mixed and "+ text 2" in mixed and "(+ right, - wrong)" in mixed
