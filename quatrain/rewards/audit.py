"""Attacking a verifier: what it pays for and should not, with the smallest completion that shows it."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from quatrain.errors import QuatrainError, SettingError
from quatrain.rewards.attacks import FORMS, Attack, Case, code_cases, correctness_attacks, format_attacks
from quatrain.rewards.calling import Signature, to_end
from quatrain.rewards.rubric import Verifiers
from quatrain.rewards.verifier import Example, Kind, Verifier, text_rollout
from quatrain.types import Prompt, Rollout, Score

PAID = 0.5  # an attack counts as paid from this share of the way from a refusal's pay to a right answer's
SHRINK_CALLS = 300  # completions scored to find the smallest one
REFUSAL = "I do not know."
QUICK_S = 0.9  # for the part that runs before a training
QUICK_CHARACTERS = 2000
GOLD_COLUMNS = ("answer", "gold", "solution", "target", "ground_truth", "label", "expected", "reference")
ROWS = (
    Example(prompt="What is six times twelve?", completion="72", columns={"answer": "72"}, value=1.0),
    Example(prompt="How many days has May?", completion="31", columns={"answer": "31"}, value=1.0),
    Example(prompt="What is the capital of France?", completion="Paris", columns={"answer": "Paris"}, value=1.0),
    Example(prompt="What is the capital of Italy?", completion="Rome", columns={"answer": "Rome"}, value=1.0),
)


@dataclass(frozen=True)
class Finding:
    """An attack that was paid: the smallest completion, its pay, and what a right answer and a refusal get."""

    attack: str
    why: str
    completion: str
    value: float
    right: float
    refusal: float
    prompt: str
    gold: str


@dataclass
class Report:
    """The outcome of an audit; `paid` holds one finding per kind of attack."""

    paid: list[Finding] = field(default_factory=list)
    attacks: int = 0
    rows: int = 0
    unjudged: int = 0  # attacks that ended in an error score (left out of a group, not paid)
    notes: list[str] = field(default_factory=list)


async def audit(
    verifier: Verifier,
    rows: Sequence[Example] = (),
    measures: Kind | None = None,
    programs: Path | None = None,
    quick: bool = False,
) -> Report:
    """Attack a verifier on `rows` (their `completion` is right where it is not blank), or on rows of its own.

    `measures` says what it pays for, when not what its kind says. `programs` is a folder of hostile programs for
    verifiers that run code. `quick` takes one row, short texts, and no search for the smallest. Raises
    SettingError when no row earns more with a right answer than with a refusal.
    """
    report = Report()
    purpose = measures or purpose_of(verifier)
    if (purpose == "shaping" or verifier.scope == "group") and quick:
        return report
    if purpose == "shaping" or verifier.scope == "group":
        report.notes.append("it pays for neither right answers nor form; only whether it can judge was looked at")
        await _look_at(verifier, rows, report)
        return report
    if programs is not None:
        await _attack_with_programs(verifier, programs, report)
    given = list(rows) or [one for one in verifier.examples if one.value > 0] or list(ROWS)
    cases: list[tuple[Case, float, float]] = []
    async for found in _payable(verifier, given, purpose):
        cases.append(found)
        if quick:
            break
    if not cases and (constant := await _constant(verifier, given[0])):
        report.paid.append(constant)
        return report
    if not cases:
        raise SettingError("audit", f"{len(given)} rows on which nothing earns more than a refusal",
                           "rows with a right completion", "give --data with the columns prompt, completion and the "
                           "verifier's own")  # fmt: skip
    report.rows = len(cases)
    for case, right, refusal in cases:
        case = replace(case, forms=case.forms[:1]) if quick else case
        attacks = list(correctness_attacks(case) if purpose == "correctness" else format_attacks(case))
        if quick:
            attacks = [replace(attack, still=_never) for attack in attacks if len(attack.text) <= QUICK_CHARACTERS]
        await _attack(verifier, case, attacks, (right, refusal), report)
    return report


def _never(_: str) -> bool:
    """No smaller text shows the fault."""
    return False


def purpose_of(verifier: Verifier) -> Kind:
    """A verifier's kind; of a user's function, correctness when it takes a gold column and form when it does not."""
    signature: Signature | None = getattr(getattr(verifier, "inner", verifier), "signature", None)
    if signature is None:
        return verifier.kind
    takes_gold = signature.accepts is None or set(signature.accepts) & set(GOLD_COLUMNS)
    return "correctness" if takes_gold else "format"


async def _payable(
    verifier: Verifier, rows: Sequence[Example], purpose: Kind
) -> AsyncIterator[tuple[Case, float, float]]:
    """Cases in which a right completion earns more than a refusal, with both pays."""
    for number, row in enumerate(rows):
        gold = _gold(row) if purpose == "correctness" else ""
        other = _other_gold(rows, number, gold)
        texts = [row.completion] if row.completion.strip() else []
        forms = _forms(row.completion, gold)
        texts += [form.format(gold or "4") for form in forms]
        scores = await _score(verifier, row, [REFUSAL, *texts])
        refusal = scores[0].value if scores[0].usable else 0.0
        pays = [score.value if score.usable else -math.inf for score in scores[1:]]
        best = max(pays, default=-math.inf)
        if not best > refusal:
            continue
        paid = [text for text, pay in zip(texts, pays, strict=True) if pay == best]
        if purpose == "format" and paid[0] != row.completion:  # the plainest of the forms that are paid
            paid.sort(key=lambda text: (text.count("<"), len(text)))
        used = tuple(form for form in forms if form.format(gold or "4") in paid)[:3] or ("{}",)
        yield Case(row.prompt, row.columns, gold, other, used, paid[0]), best, refusal


async def _constant(verifier: Verifier, row: Example) -> Finding | None:
    """A refusal that is paid where nothing earns more."""
    [score] = await _score(verifier, row, [REFUSAL])
    if not (score.usable and score.value > 0):
        return None
    return Finding("refusal", "nothing that was tried earns more", REFUSAL, score.value, score.value, score.value,
                   row.prompt, _gold(row))  # fmt: skip


def _forms(right: str, gold: str) -> list[str]:
    """The right completion's own form first, where the gold stands in it, then the usual ones."""
    if not gold or gold not in right:
        return list(FORMS)
    before, _, after = right.rpartition(gold)
    own = "{}".join(part.replace("{", "{{").replace("}", "}}") for part in (before, after))
    return list(dict.fromkeys([own, *FORMS]))


def _gold(row: Example) -> str:
    """The row's gold as text; empty when it has none that is text or a number."""
    for column in GOLD_COLUMNS:
        gold = row.columns.get(column)
        if isinstance(gold, (str, int, float)) and not isinstance(gold, bool):
            return str(gold).rpartition("####")[2].strip()
    return ""


def _other_gold(rows: Sequence[Example], number: int, gold: str) -> str:
    """The next row's gold that is another one."""
    for step in range(1, len(rows)):
        other = _gold(rows[(number + step) % len(rows)])
        if other and other.casefold() != gold.casefold() and other not in gold and gold not in other:
            return other
    return ""


async def _score(verifier: Verifier, row: Example, texts: Sequence[str]) -> list[Score]:
    rollouts = [
        text_rollout(
            text, row.columns, prompt=row.prompt, tokens=row.tokens or range(min(len(text), 4096)), index=index
        )
        for index, text in enumerate(texts)
    ]
    return list(await verifier.score(rollouts))


async def _attack(
    verifier: Verifier, case: Case, attacks: Sequence[Attack], pays: tuple[float, float], report: Report
) -> None:
    """Score every attack; keep, per kind, the one with the smallest completion."""
    right, refusal = pays
    line = refusal + PAID * (right - refusal)
    row = Example(prompt=case.prompt, columns=case.columns, completion="", value=0.0)
    scores = await _score(verifier, row, [attack.text for attack in attacks])
    report.attacks += len(attacks)
    report.unjudged += sum(score.status == "error" for score in scores)
    for attack, score in zip(attacks, scores, strict=True):
        if not (score.usable and score.value >= line):
            continue
        text = await _smallest(verifier, row, attack, line)
        [final] = await _score(verifier, row, [text])
        found = Finding(attack.name, attack.why, text, final.value, right, refusal, case.prompt, case.gold)
        known = next((index for index, one in enumerate(report.paid) if one.attack == attack.name), None)
        if known is None:
            report.paid.append(found)
        elif len(found.completion) < len(report.paid[known].completion):
            report.paid[known] = found


async def _smallest(verifier: Verifier, row: Example, attack: Attack, line: float) -> str:
    """Leave out pieces, halves first and single characters last, as long as the rest is paid and shows the fault."""
    text, spent = attack.text, 0
    size = len(text) // 2
    while size >= 1 and spent < SHRINK_CALLS:
        tries = [text[:start] + text[start + size :] for start in range(0, len(text), size)]
        tries = [one for one in dict.fromkeys(tries) if attack.still(one)][: SHRINK_CALLS - spent]
        spent += len(tries)
        scores = await _score(verifier, row, tries) if tries else []
        paid = [one for one, score in zip(tries, scores, strict=True) if score.usable and score.value >= line]
        if paid:
            text = paid[0]
            size = min(size, max(1, len(text) // 2))
        else:
            size //= 2
    return text


async def _attack_with_programs(verifier: Verifier, folder: Path, report: Report) -> None:
    columns, attacks = code_cases(folder)
    await _attack(verifier, Case("", columns), attacks, (1.0, 0.0), report)


async def _look_at(verifier: Verifier, rows: Sequence[Example], report: Report) -> None:
    """Whether it judges hostile texts at all: every score is finite or the verifier says why there is none."""
    row = next(iter([*rows, *verifier.examples, *ROWS]))
    texts = ["", " \n", REFUSAL, "x" * (1 << 20), "\ud800\x00\u202e", "<think><think></think>"]
    scores = await _score(verifier, Example(prompt=row.prompt, columns=row.columns, completion="", value=0.0), texts)
    report.rows, report.attacks = 1, len(texts)
    report.unjudged = sum(score.status == "error" for score in scores)


def quick_audit(verifiers: Verifiers, prompts: Sequence[Prompt] = ()) -> list[str]:
    """Warnings about the correctness and format parts of rubrics, within a second; nothing goes over a network.

    Attacks are made from the first of `prompts` that go to a rubric (two rows suffice). A part that cannot be attacked
    in that time, or without rows, is passed over. Example: `for line in quick_audit(verifiers, prompts): warn(line)`
    """
    return to_end(_quick(verifiers, prompts))


async def _quick(verifiers: Verifiers, prompts: Sequence[Prompt]) -> list[str]:
    found: list[str] = []

    async def one(name: str, verifier: Verifier, measures: Kind, rows: list[Example]) -> None:
        purpose = purpose_of(verifier) if measures == "shaping" else measures
        try:
            report = await audit(verifier, rows, purpose, quick=True)
        except QuatrainError:
            return
        for finding in report.paid[:1]:
            found.append(
                f"{name} pays {finding.value:g} for {shown(finding.completion)} ({finding.attack}; a right answer gets "
                f"{finding.right:g}); see `quatrain audit`"
            )

    tasks = [
        asyncio.ensure_future(one(f"verifiers.{rubric}.{part}", each.verifier, each.measures, rows))
        for rubric, parts in verifiers.rubrics.items()
        for rows in [_rows_of(rubric, prompts, len(verifiers.rubrics) == 1)]
        for part, each in parts.parts.items()
        if _quick_enough(each.verifier)
    ]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=QUICK_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return sorted(found)


def _quick_enough(verifier: Verifier) -> bool:
    """Neither a network nor a sandbox."""
    inner = getattr(verifier, "inner", verifier)
    return not getattr(inner, "uses_network", False) and not getattr(inner, "runs_code", False)


def _rows_of(rubric: str, prompts: Sequence[Prompt], only: bool) -> list[Example]:
    mine = [prompt for prompt in prompts if prompt.verifier == rubric or (only and not prompt.verifier)]
    return [Example(prompt=one.text, columns=one.columns, completion="", value=1.0) for one in mine[:2]]


def shown(text: str, limit: int = 60) -> str:
    """A completion in one line."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}... ({len(text)} characters)"


def rows_from(rollouts: Sequence[Rollout]) -> Iterator[Example]:
    """Rows of a file as examples; their completion is taken to be right."""
    for rollout in rollouts:
        yield Example(prompt=rollout.prompt.text, columns=rollout.prompt.columns, completion=rollout.text, value=1.0)
