"""What a finished run shows: accuracy before and after, some completions, and where to go from here."""

from quatrain.methods.evaluate import Evaluation
from quatrain.methods.result import Result
from quatrain.telemetry.console import Console

SIGNS = {1.0: "+", 0.0: "-"}  # of right and wrong answers; ? for those that were not judged


def summarise(result: Result, console: Console) -> None:
    """Print it."""
    if result.before and result.after:
        rows: list[tuple[object, ...]] = [("held-out", "before", "after", "difference (95 % interval, paired)")]
        console.say("")
        console.table(f"{len(result.after.per_prompt('correct'))} held-out prompts, 95 % bootstrap intervals",
                      rows + list(result.gains()))  # fmt: skip
        _completions(result.before, result.after, console)
    console.say(f"\nrun folder: {result.folder}")
    console.say(
        f"next: quatrain sample {result.folder}  |  quatrain eval {result.folder} --samples 8 --greedy  |  "
        f"quatrain export {result.folder} --to exported"
    )


def _completions(before: Evaluation, after: Evaluation, console: Console, count: int = 4) -> None:
    """The first held-out prompts, with what the model said before and says now."""
    rows: list[tuple[object, ...]] = [("question", "before", "after")]
    pairs = list(zip(before.answers[:: before.samples], after.answers[:: after.samples], strict=True))[:count]
    judged = any(answer.correct in SIGNS for pair in pairs for answer in pair)
    for old, new in pairs:
        rows.append((_shown(old.question), *(_marked(one.completion, one.correct, judged) for one in (old, new))))
    console.say("")
    console.table("the first held-out prompts" + (" (+ right, - wrong)" if judged else ""), rows)


def _marked(text: str, correct: float, judged: bool) -> str:
    return f"{SIGNS.get(correct, '?')} {_shown(text)}" if judged else _shown(text)


def _shown(text: str, limit: int = 160) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."
