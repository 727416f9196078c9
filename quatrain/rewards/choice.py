"""`choice`: the completion commits to one option of a multiple-choice question, and to the right one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from quatrain.errors import VerifierError
from quatrain.rewards.extract import AnswerSettings, extract_answer, gold_answer
from quatrain.rewards.math_text import last_answer, marked_answers
from quatrain.rewards.verifier import VERIFIERS, Example, Kind, Limits, Scope, each, label, scored_text
from quatrain.types import Rollout, Score


class ChoiceSettings(AnswerSettings):
    """Settings of `choice`."""

    extract: Literal["auto", "whole", "last_line", "boxed", "hashes", "tag"] = "auto"  # type: ignore[assignment]
    options: str = Field("ABCD", pattern=r"^[A-Z]{2,26}$", description="the letters there are")


# a letter in brackets, bold or with a stop behind it opens an option; what follows may be the option's text
_OPENS = re.compile(r"[\s(\[{*_$\"']*(?:\\(?:text|textbf|mathrm|mathbf)\{ ?\(?)?([A-Z])(?=[\s)\]}*_$\"'.:,;/&|!]|$)")
_NEXT = re.compile(
    r"(?:\b(?:or|and|maybe|perhaps|possibly|else|either)\b|[/,;&|(\[])[\s(\[{*]*([A-Z])(?![A-Za-z'])|"
    r"(?<![A-Za-z])([A-Z])[).:](?=\s|$)|"
    r"^[\s)\]}*.:,;]*([A-Z])(?=[\s)\]}*.:,;]*(?:[A-Z]?$|[A-Z][\s)\]}.,;]))"
)


def chosen(text: str, options: str) -> str | None:
    """The letter that an answer opens with, or None when it opens with none or names another option beside it."""
    first = _OPENS.match(text)
    if first is None or first[1] not in options:
        return None
    others = {letter for match in _NEXT.finditer(text[first.end() :]) for letter in match.groups() if letter}
    return None if others & (set(options) - {first[1]}) else first[1]


def committed(text: str, options: str) -> str | None:
    """The last marked answer (box, '####', "answer is"); without one, a text that is the option and nothing before.

    Option lines in a row ("A) ... B) ...") are a list of the options, not an answer.
    """
    if marked := marked_answers(text):
        answer = last_answer(text, marked)
        return None if answer is None else chosen(answer, options)
    lines = [line for line in text.strip().splitlines() if line.strip()]
    if not lines or any(chosen(line, options) for line in lines[:-1]):
        return None
    named = r"\W*[A-Z]\W*" if len(lines) > 1 else r"\W*[A-Z](?:[).:*\]\s].*)?"
    plain = re.fullmatch(r"\W*[A-Z] +\w.*", lines[-1])  # "A dog is ..." opens with a word
    return chosen(lines[-1], options) if re.fullmatch(named, lines[-1]) and not plain else None


@VERIFIERS.register("choice")
@dataclass(frozen=True)
class Choice:
    """1 when the one letter that the completion commits to is the gold's, else 0; several letters are no answer."""

    settings: ChoiceSettings
    limits: Limits
    Settings: ClassVar = ChoiceSettings
    scope: ClassVar[Scope] = "completion"
    kind: ClassVar[Kind] = "correctness"
    examples: ClassVar = (
        Example(prompt="Capital of France? A) Rome B) Paris", completion="It is \\boxed{B}.", columns={"answer": "B"},
                value=1.0),
        Example(prompt="Capital of Italy? A) Rome B) Paris", completion="The answer is (A) Rome.",
                columns={"answer": "A"}, value=1.0),
        Example(completion="The answer is A or B.", columns={"answer": "B"}, value=0.0),
        Example(completion="A B C D", columns={"answer": "A"}, value=0.0),
        Example(completion="A dog is not a capital.", columns={"answer": "A"}, value=0.0),
    )  # fmt: skip

    async def score(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        """One score per rollout; VerifierError for a gold that is no option."""
        return each(rollouts, self._judge)

    def _judge(self, rollout: Rollout) -> Score:
        gold = self._gold(rollout)
        letter = self._letter(scored_text(rollout)) if rollout.text.strip() else None
        return Score(value=float(letter == gold), answer=letter)

    def _letter(self, text: str) -> str | None:
        options = self.settings.options
        if self.settings.extract == "auto":
            return committed(text, options)
        answer = extract_answer(text, self.settings)
        return None if answer is None else chosen(answer, options)

    def _gold(self, rollout: Rollout) -> str:
        text = gold_answer(rollout, self.settings.answer_column, self.limits.name)
        letter = re.fullmatch(r"\(?([A-Z])\)?[.:]?", text)
        if letter is None or letter[1] not in self.settings.options:
            need = f"one of the letters {self.settings.options}; set options"
            raise VerifierError(f"{self.limits.name}: {label(rollout)}: column {self.settings.answer_column!r} is "
                                f"{text[:60]!r}, need {need}")  # fmt: skip
        return letter[1]

    def close(self) -> None:
        """Nothing to end."""
