"""What a run saw of each prompt: how often it was solved, and whether it is passed over for that."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from quatrain.config import CurriculumConfig
from quatrain.telemetry.metrics import Last, Mean, Metric


class Record(NamedTuple):
    """A prompt's groups so far. Only judged completions count; a group without one is not a group."""

    groups: int = 0
    judged: int = 0  # completions
    right: int = 0  # completions
    streak: int = 0  # groups in a row up to the last: n all right, -n all wrong, 0 when the last was neither
    last_step: int = 0

    @property
    def success(self) -> float:
        """Share of the judged completions that are right."""
        return self.right / self.judged


class PromptHistory:
    """Success statistics by `Prompt.index`, and the filters `curriculum.skip_right`, `skip_wrong`, `retry_after`.

    What is passed over in step t is a function of the groups recorded up to step t - 1.
    """

    def __init__(self, settings: CurriculumConfig | None = None) -> None:
        self.settings = settings or CurriculumConfig()
        self.records: dict[int, Record] = {}
        self.step = 0  # the last recorded one
        self._handed_out: set[int] = set()  # prompts taken for the step after it

    def record(self, step: int, index: int, right: Sequence[bool], informative: bool = False) -> None:
        """A group of prompt `index`: for every judged completion whether it was right.

        An informative group, whose completions differ in correctness, is never "all wrong": with partial credit it
        teaches something though none of it is right.
        """
        if step != self.step:
            self.step, self._handed_out = step, set()
        if not right:
            return
        old = self.records.get(index, Record())
        sign = 0 if informative or len(set(right)) > 1 else 1 if right[0] else -1
        streak = sign * (1 + (abs(old.streak) if old.streak * sign > 0 else 0))
        self.records[index] = Record(old.groups + 1, old.judged + len(right), old.right + sum(right), streak, step)

    def passed_over(self, index: int) -> Literal["right", "wrong"] | None:
        """Why the prompt is not taken for the step after the last recorded one; None when it may be."""
        record = self.records.get(index)
        if record is None:
            return None
        limit = self.settings.skip_right if record.streak > 0 else self.settings.skip_wrong
        wait = self.settings.retry_after
        if not limit or abs(record.streak) < limit or (wait and self.step + 1 - record.last_step >= wait):
            return None
        return "right" if record.streak > 0 else "wrong"

    def may_take(self, index: int) -> bool:
        """False for a prompt that is passed over and, with a filter on, for one that the step has already."""
        return not (self.filters and index in self._handed_out) and self.passed_over(index) is None

    def hand_out(self, index: int) -> None:
        """The prompt is taken for the step after the last recorded one."""
        self._handed_out.add(index)

    @property
    def filters(self) -> bool:
        """True when any prompt can be passed over."""
        return bool(self.settings.skip_right or self.settings.skip_wrong)

    def metrics(self) -> dict[str, Metric]:
        """curriculum/...; nothing when no filter is on."""
        if not self.filters:
            return {}
        reasons = [self.passed_over(index) for index in self.records]
        return {
            "curriculum/seen": Last(len(self.records)),
            "curriculum/passed_over_right": Last(reasons.count("right")),
            "curriculum/passed_over_wrong": Last(reasons.count("wrong")),
            "curriculum/success": Mean(sum(record.success for record in self.records.values()), len(self.records)),
        }

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain JSON: a text of numbers per column, about 30 bytes a prompt."""
        rows = [(index, *record) for index, record in self.records.items()]
        columns = zip(*rows, strict=True) if rows else [()] * (1 + len(Record._fields))
        texts = [" ".join(map(str, column)) for column in columns]
        return {"step": self.step, **dict(zip(("index", *Record._fields), texts, strict=True))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken; an empty one (of a run that kept none) begins anew."""
        columns = [map(int, state.get(name, "").split()) for name in ("index", *Record._fields)]
        self.records = {index: Record(*row) for index, *row in zip(*columns, strict=True)}
        self.step, self._handed_out = state.get("step", 0), set()
