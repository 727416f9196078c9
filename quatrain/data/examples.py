"""Examples of the offline methods (and of language modelling beside PPO), rendered when taken, cut or left out."""

import hashlib
import logging
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quatrain.config import DataConfig, LengthConfig
from quatrain.data.answers import Answer, Writer, Written
from quatrain.data.chat import Tokenizer
from quatrain.data.conversation import ExampleRow, assistant_turns
from quatrain.data.formats import Kind, load_examples
from quatrain.data.mixture import SOURCE_STRIDE, Mixture
from quatrain.data.overlap import normalise
from quatrain.data.sources import source_names
from quatrain.errors import DataError, SettingError
from quatrain.telemetry.metrics import Last, Metric
from quatrain.types import Sample

NEUTRAL = {"margin": 0.0, "confidence": 1.0, "head": 0.0}  # streams of rows that say nothing about them
KEPT = ("cut", "ties", "empty")  # what is counted of examples that are trained on
LEFT_OUT = ("no_room", "too_long", "identical", "blank")  # and why others are not
_LOG = logging.getLogger("quatrain")
_WARNED = {
    "identical": "two answers are the same tokens (after any cut); they teach nothing and are left out",
    "empty": "an answer is empty; it stands as an end token alone",
    "blank": "no answer has text; such rows are left out",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One row ready to train on: a sample per answer, all of which begin with the same prompt tokens.

    Streams of the samples: pairs and rankings `rank` (0 best, equal numbers are ties); labelled rows `desirable` (1 or
    0); and where any row has them `margin`, `confidence` (probability that the first answer is the better one) and
    `head` (which attribute was judged). With kind "scores" the only trained token of a sample is one that stands behind
    its last real token, so that what is read is the model's output at the last real one.
    """

    index: int  # source number * SOURCE_STRIDE + number in the source, as Prompt.index
    source: str
    question: str  # what is asked, as for prompts
    samples: tuple[Sample, ...]
    prompt: str  # rendered text
    answers: tuple[str, ...]  # rendered text, not cut


class ExampleMaker:
    """From rows to examples, for one tokenizer and one set of limits.

    Raises SettingError for rows that cannot be read and for a limit beyond the model's positions.
    """

    def __init__(
        self,
        sources: Sequence[DataConfig],
        tokenizer: Tokenizer,
        kind: Kind,
        length: LengthConfig,
        max_positions: int,
        section: str,
        attributes: Sequence[str] = (),
    ) -> None:
        if length.max_tokens and length.max_tokens > max_positions:
            raise SettingError("length.max_tokens", length.max_tokens, f"at most the model's {max_positions} positions",
                               "lower it")  # fmt: skip
        self.sources, self.kind, self.length, self.section = tuple(sources), kind, length, section
        # the token behind a scored answer takes a position too
        self.limit = min(length.max_tokens or max_positions, max_positions - (kind == "scores"))
        self.names = source_names(sources)
        self._writer = Writer(tokenizer, self.limit)
        if self._writer.eos_id is None and kind != "scores":
            _LOG.warning("the tokenizer has no end token: outside a chat template answers are trained without one")
        per_turn = kind == "sft" and not self._writer.grows()
        self.rows = [load_examples(source, kind, f"{section}[{s}]", per_turn) for s, source in enumerate(sources)]
        self.attributes = tuple(attributes) or self._found_attributes()
        if attributes:
            self._keep_attributes()
        self._optional = [name for name in ("margin", "confidence") if any(name in row.streams for row in self._all())]
        self._warned: set[tuple[int, str]] = set()

    def keep(self, wanted: Container[str], inside: bool) -> None:
        """Keep the rows whose normalised question is in `wanted` (or with `inside` False, is not)."""
        self.rows = [[row for row in rows if (normalise(row.question) in wanted) == inside] for rows in self.rows]

    def make(self, source: int, row: ExampleRow) -> tuple[Example | None, tuple[str, ...]]:
        """The example of a row, or None, and what is counted of it (names of KEPT or LEFT_OUT)."""
        blank = [not any(text.strip() for text in assistant_turns(answer)) for answer in row.answers]
        if all(blank) and self.kind != "labelled":
            return None, self._warn(source, row, "blank")
        written = self._writer.write(row, self.sources[source], f"{self.section}[{source}]")
        room = self.limit - len(written.prompt_ids)
        allowed = max(min(room, self.length.max_completion_tokens or room), 0)
        long = any(len(answer.token_ids) > allowed for answer in written.answers)
        if long and self.length.too_long == "skip":
            return None, ("too_long",)
        answers = [_cut(answer, allowed) for answer in written.answers]
        if not all(answer.token_ids if self.kind == "scores" else any(answer.trained) for answer in answers):
            return None, ("no_room",)
        kept = _distinct(answers)
        notes = self._warn(source, row, "identical") if len(kept) < len(answers) else ()
        if notes and len(kept) < 2:
            return None, notes
        notes += self._warn(source, row, "empty") if any(blank) else ()
        notes += (("cut",) if long else ()) + (("ties",) if _ties(row, kept) else ())
        return self._example(source, row, written, answers, kept), notes

    def shortest_prompt(self, source: int) -> int:
        """Tokens of the shortest prompt of a source."""
        setting = f"{self.section}[{source}]"
        written = (self._writer.write(row, self.sources[source], setting) for row in self.rows[source])
        return min(len(each.prompt_ids) for each in written)

    def _example(
        self, source: int, row: ExampleRow, written: Written, answers: Sequence[Answer], kept: Sequence[int]
    ) -> Example:
        streams = {**{name: (NEUTRAL[name],) * len(answers) for name in self._optional}, **row.streams}
        if self.attributes:
            streams["head"] = (float(self._head(source, row)),) * len(answers)
        samples: list[Sample] = []
        for place in kept:
            token_ids, marks = answers[place].token_ids, answers[place].trained
            if self.kind == "scores":
                token_ids, marks = [*token_ids, token_ids[-1]], [False] * len(token_ids) + [True]
            samples.append(
                Sample(
                    token_ids=np.array([*written.prompt_ids, *token_ids], dtype=np.int64),
                    trained=np.array([False] * len(written.prompt_ids) + marks),
                    group=0,
                    completion=len(samples),
                    prompt_length=len(written.prompt_ids),
                    label=f"row {row.row + 1} of {self.names[source]}, answer {place + 1}",
                    streams={name: np.full(sum(marks), values[place]) for name, values in streams.items()},
                )
            )
        return Example(
            index=source * SOURCE_STRIDE + row.number,
            source=self.names[source],
            question=row.question,
            samples=tuple(samples),
            prompt=written.prompt,
            answers=tuple(answers[place].text for place in kept),
        )

    def _all(self) -> Iterator[ExampleRow]:
        for rows in self.rows:
            yield from rows

    def _found_attributes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.attribute for row in self._all() if row.attribute is not None))

    def _keep_attributes(self) -> None:
        """Leave out the comparisons of attributes that have no head."""
        found = self._found_attributes()
        missing = [name for name in self.attributes if name not in found]
        if missing and (found or len(self.attributes) > 1):
            raise SettingError("algorithm.attributes", ", ".join(missing), "attributes that the data name: "
                               + (", ".join(found) or "none"), "rename or remove them")  # fmt: skip
        self.rows = [[row for row in rows if row.attribute in (None, *self.attributes)] for rows in self.rows]
        for source, rows in enumerate(self.rows):
            if not rows:
                raise SettingError(f"{self.section}[{source}].source", f"{self.names[source]} without comparisons of "
                                   + ", ".join(self.attributes), "at least one", "remove it")  # fmt: skip

    def _head(self, source: int, row: ExampleRow) -> int:
        if row.attribute is not None:
            return self.attributes.index(row.attribute)
        if len(self.attributes) == 1:
            return 0
        raise SettingError(f"{self.section}[{source}].attribute", f"none in row {row.row + 1}",
                           f"one of {', '.join(self.attributes)} in every row", "fill it in")  # fmt: skip

    def _warn(self, source: int, row: ExampleRow, what: str) -> tuple[str, ...]:
        if (source, what) not in self._warned:
            self._warned.add((source, what))
            _LOG.warning("%s[%d] row %d of %s: %s (said once, counted as %s/%s)", self.section, source, row.row + 1,
                         self.names[source], _WARNED[what], self.section, what)  # fmt: skip
        return (what,)


def _cut(answer: Answer, allowed: int) -> Answer:
    return Answer(answer.text, answer.token_ids[:allowed], answer.trained[:allowed])


def _longest(example: Example) -> int:
    return max(len(sample.token_ids) for sample in example.samples)


def _distinct(answers: Sequence[Answer]) -> list[int]:
    """The first of every set of equal answers."""
    first: dict[tuple[int, ...], int] = {}
    for place, answer in enumerate(answers):
        first.setdefault(tuple(answer.token_ids), place)
    return list(first.values())


def _ties(row: ExampleRow, kept: Sequence[int]) -> bool:
    ranks = [row.streams["rank"][place] for place in kept] if "rank" in row.streams else []
    return len(set(ranks)) < len(ranks)


class ExampleStream:
    """Endless examples in the order of `Mixture`: source by weight, every row of a source once per epoch.

    Rows whose normalised question is in `exclude` are left out. All rows are read and checked at the start; an example
    is rendered when it is taken, and rows that cannot be trained on (too long, no room for an answer, nothing to
    compare) are then passed over and counted. `len` is the number of usable examples, for which it renders all of them
    once. `attributes` are the heads in their order; by default those that the data name.
    """

    def __init__(
        self,
        sources: Sequence[DataConfig],
        tokenizer: Tokenizer,
        seed: int,
        kind: Kind,
        length: LengthConfig,
        max_positions: int,
        *,
        exclude: Container[str] = (),
        section: str = "data",
        attributes: Sequence[str] = (),
    ) -> None:
        self.section = section
        self._maker = ExampleMaker(sources, tokenizer, kind, length, max_positions, section, attributes)
        self.names, self.attributes = self._maker.names, self._maker.attributes
        if exclude:
            self._maker.keep(exclude, inside=False)
        for source, rows in enumerate(self._maker.rows):
            if not rows:
                raise DataError(f"{section}[{source}]: every prompt is held out too; nothing is left to train on")
        sizes = [len(rows) for rows in self._maker.rows]
        self._mixture = Mixture([source.weight for source in sources], sizes, seed)
        self._unusable: dict[tuple[int, int], tuple[str, ...]] = {}  # (source, place): why
        self.counts: Counter[str] = Counter()  # distinct examples met so far
        self._usable, self._longest = -1, 0
        self._digest = ""

    def take(self, count: int) -> list[Example]:
        """The next `count` examples. Raises DataError when none of a source can be trained on."""
        return [self._next(self._mixture.due()) for _ in range(count)]

    @property
    def taken(self) -> dict[str, int]:
        """Examples handed out so far, by source."""
        return dict(zip(self.names, self._mixture.taken, strict=True))

    def rows(self) -> Iterator[ExampleRow]:
        """Every row of every source, in file order (for the overlap check)."""
        for rows in self._maker.rows:
            yield from rows

    def __len__(self) -> int:
        """Usable examples of all sources together; the first call renders every one."""
        if self._usable < 0:
            places = ((source, place) for source, rows in enumerate(self._maker.rows) for place in range(len(rows)))
            sizes = [_longest(one) for one, _ in (self._make(source, place) for source, place in places) if one]
            self._usable, self._longest = len(sizes), max(sizes, default=0)
        return self._usable

    @property
    def longest(self) -> int:
        """Tokens of the longest sample among the usable examples; renders every one, like `len`."""
        len(self)
        return self._longest

    def metrics(self) -> dict[str, Metric]:
        """How many distinct examples so far were cut, tied, ... or left out, and why."""
        return {f"{self.section}/{name}": Last(self.counts[name]) for name in (*KEPT, *LEFT_OUT)}

    def state_dict(self) -> dict[str, Any]:
        """All there is to continue from, as plain JSON."""
        return {**self._mixture.state_dict(self._identity()), "counts": dict(self.counts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. Raises ResumeError when seed, weights or rows are not the same."""
        self._mixture.load_state_dict(state, self._identity(), self.section, "examples")
        self.counts = Counter(state["counts"])

    def _identity(self) -> dict[str, Any]:
        if not self._digest:
            digest = hashlib.blake2b(digest_size=16)
            for row in self.rows():
                told = (row.prompt, row.answers, sorted(row.streams.items()), row.attribute)
                digest.update(repr(told).encode("utf-8", "surrogatepass"))
            self._digest = digest.hexdigest()
        return self._mixture.identity("examples", self._digest)

    def _make(self, source: int, place: int) -> tuple[Example | None, tuple[str, ...]]:
        if (source, place) in self._unusable:
            return None, self._unusable[source, place]
        example, notes = self._maker.make(source, self._maker.rows[source][place])
        if example is None:
            self._unusable[source, place] = notes
        return example, notes

    def _next(self, source: int) -> Example:
        """The next usable example of a source."""
        met: Counter[str] = Counter()
        for position in self._mixture.ahead(source):
            example, notes = self._make(source, self._mixture.row(source, position))
            if position < self._mixture.sizes[source]:  # each is counted in the first epoch
                met.update(notes)
            if example is not None:
                self._mixture.hand_out(source, position)
                self.counts.update(met)
                return example
        raise _nothing_left(self._maker, source)


def held_out_examples(
    sources: Sequence[DataConfig],
    tokenizer: Tokenizer,
    kind: Kind,
    length: LengthConfig,
    max_positions: int,
    *,
    only: Container[str] | None = None,
    section: str = "held_out",
    attributes: Sequence[str] = (),
) -> list[Example]:
    """Every example of the sources, in file order; those that cannot be used are left out and counted in a warning.

    With `only`, those whose normalised question is in it. Raises DataError when none is left.
    """
    maker = ExampleMaker(sources, tokenizer, kind, length, max_positions, section, attributes)
    if only is not None:
        maker.keep(only, inside=True)
    examples: list[Example] = []
    left_out: Counter[str] = Counter()
    for source, rows in enumerate(maker.rows):
        for row in rows:
            example, notes = maker.make(source, row)
            if example is None:
                left_out.update(notes)
            else:
                examples.append(example)
    why = ", ".join(f"{count} {name}" for name, count in sorted(left_out.items()))
    if sources and not examples:
        raise DataError(f"{section}: no example is left" + (f" ({why}); raise length.max_tokens" if why else "; "
                        "hold out a larger share, or give more data"))  # fmt: skip
    if left_out:
        _LOG.warning("%s: %d of %d examples are left out: %s", section, left_out.total(),
                     left_out.total() + len(examples), why)  # fmt: skip
    return examples


@dataclass(frozen=True, slots=True)
class QuestionShare:
    """The normalised questions whose hash falls into the first `share` of all: the same ones in every run and data set.

    Example: `"what is 3 + 2" in QuestionShare(0.1)`
    """

    share: float

    def __contains__(self, question: object) -> bool:
        number = int.from_bytes(hashlib.blake2b(str(question).encode("utf-8", "surrogatepass"), digest_size=8).digest())
        return number < self.share * 2**64


def split_share(share: float) -> QuestionShare:
    """The questions that `held_out_share` holds out: `exclude` of the training stream, `only` of the held-out examples.

    A question decides by itself, so none is ever on both sides, however often and in whatever source it stands.
    """
    return QuestionShare(share)


def _nothing_left(maker: ExampleMaker, source: int) -> DataError:
    """Why no example of a source can be trained on."""
    why = Counter(note for row in maker.rows[source] for note in maker.make(source, row)[1])
    told = ", ".join(f"{count} {_TOLD[name]}" for name, count in sorted(why.items()))
    limit = f"length.max_tokens={maker.limit}"
    return DataError(
        f"{maker.section}[{source}]: none of the {len(maker.rows[source])} examples of {maker.names[source]} can be "
        f"trained on: {told} ({limit}, the shortest prompt has {maker.shortest_prompt(source)} tokens); "
        "raise length.max_tokens, or give other data"
    )


_TOLD = {
    "no_room": "leave no room for an answer",
    "too_long": "are too long",
    "identical": "have identical answers",
    "blank": "have no answer",
}
