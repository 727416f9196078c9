"""What a finished run shows: accuracy before and after, some completions, and where to go from here."""

from typing import Any

from quatrain.methods.evaluate import Evaluation
from quatrain.methods.online import Result
from quatrain.telemetry.console import Console

LABELS = {
    "correct": "right answer",
    "in_form": "right answer in the asked form",
    "reward": "mean reward",
}


def summarise(result: Result, console: Console) -> None:
    """Print it."""
    if result.before and result.after:
        parts = [name for name in result.after.parts() if _tells_more(name, result.before, result.after)]
        names = ["correct"] + (["in_form"] if _has_form(result.before, result.after) else [])
        names += parts or ["reward"]
        rows: list[tuple[object, ...]] = [("held-out", "before", "after", "difference (95 % interval, paired)")]
        for name in names:
            found = result.gain(name)
            assert found is not None
            label = LABELS.get(name, name.removeprefix("part ").replace("_", " "))
            rows.append((label, *_cells(found, percent=name in ("correct", "in_form"))))
        console.say("")
        console.table(f"{len(result.after.per_prompt('correct'))} held-out prompts, 95 % bootstrap intervals", rows)
        _completions(result.before, result.after, console)
    console.say(f"\nrun folder: {result.folder}")
    console.say(
        f"next: quatrain sample {result.folder}  |  quatrain eval {result.folder} --samples 4 --temperature 1.0  |  "
        f"quatrain export {result.folder} --to exported"
    )


def _tells_more(part: str, *evaluations: Evaluation) -> bool:
    """False for a part that repeats the accuracy."""
    return any((each.per_prompt(part) != each.per_prompt("correct")).any() for each in evaluations)


def _has_form(*evaluations: Evaluation) -> bool:
    return any(answer.correct > answer.in_form for evaluation in evaluations for answer in evaluation.answers)


def _cells(found: dict[str, Any], percent: bool) -> tuple[str, str, str]:
    scale, digits = (100, 1) if percent else (1, 3)

    def span(bounds: tuple[float, float], sign: str = "") -> str:
        return f"[{bounds[0] * scale:{sign}.{digits}f}, {bounds[1] * scale:{sign}.{digits}f}]"

    unit = " %" if percent else ""
    return (
        f"{found['before'] * scale:.{digits}f}{unit} {span(found['before_interval'])}",
        f"{found['after'] * scale:.{digits}f}{unit} {span(found['after_interval'])}",
        f"{found['difference'] * scale:+.{digits}f} {span(found['difference_interval'], '+')}",
    )


def _completions(before: Evaluation, after: Evaluation, console: Console, count: int = 4) -> None:
    """The first held-out prompts, with what the model said before and says now."""
    rows: list[tuple[object, ...]] = [("question", "before", "after")]
    pairs = list(zip(before.answers[:: before.samples], after.answers[:: after.samples], strict=True))
    for old, new in pairs[:count]:
        rows.append((_shown(old.question), _marked(old.completion, old.correct), _marked(new.completion, new.correct)))
    console.say("")
    console.table("the first held-out prompts (+ right, - wrong)", rows)


def _marked(text: str, correct: float) -> str:
    sign = {1.0: "+", 0.0: "-"}.get(correct, "?")  # not judged
    return f"{sign} {_shown(text)}"


def _shown(text: str, limit: int = 160) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."
