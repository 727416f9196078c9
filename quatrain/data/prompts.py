"""Prompts in the order of training: rendered when taken, and left out when too long or passed over."""

import hashlib
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from quatrain.config import SourceConfig
from quatrain.data.chat import Tokenizer, as_messages, render
from quatrain.data.history import PromptHistory
from quatrain.data.mixture import SOURCE_STRIDE, Mixture
from quatrain.data.overlap import normalise
from quatrain.data.sources import Row, check_verifiers, load_rows, source_names
from quatrain.errors import DataError, SettingError
from quatrain.types import Prompt

LongPrompts = Literal["skip", "error"]
_LOG = logging.getLogger("quatrain")


class PromptStream:
    """Endless prompts: source by weight, and within a source every row once per epoch in a seeded order.

    The order is that of `Mixture`: a function of the seed and of how many prompts were taken. Prompts are rendered when
    taken; with `long_prompts="error"` all of them at the start, so that the error comes before the first step.

    Prompts that `history` passes over are left out, the others keep their order, and none comes twice in a step. A
    source with fewer prompts left than the step takes fills its share with the others, in their order.
    """

    def __init__(
        self,
        sources: Sequence[SourceConfig],
        tokenizer: Tokenizer,
        seed: int,
        max_prompt_tokens: int,
        long_prompts: LongPrompts = "skip",
        *,
        verifiers: Collection[str] | None = None,
        exclude: Collection[str] = (),
        history: PromptHistory | None = None,
        section: str = "prompts",
    ) -> None:
        if max_prompt_tokens < 1:
            raise _no_room(f"{max_prompt_tokens} tokens left for a prompt")
        self.sources, self.tokenizer, self.seed = tuple(sources), tokenizer, seed
        self.max_prompt_tokens, self.section = max_prompt_tokens, section
        self.history = PromptHistory() if history is None else history
        self.names = source_names(sources)
        self._rows = load_sources(sources, section, verifiers, exclude)
        self._mixture = Mixture([source.weight for source in sources], [len(rows) for rows in self._rows], seed)
        self.skipped_long = 0  # distinct prompts left out because they were too long
        self._digest = ""
        self._used_up: set[int] = set()  # sources that were warned of
        if long_prompts == "error":
            self._check_lengths()

    def take(self, count: int) -> list[Prompt]:
        """The next `count` prompts. Raises DataError when no prompt of a source is short enough."""
        return [self._next(self._mixture.due()) for _ in range(count)]

    @property
    def taken(self) -> dict[str, int]:
        """Prompts handed out so far, by source."""
        return dict(zip(self.names, self._mixture.taken, strict=True))

    def rows(self) -> Iterator[Row]:
        """Every row of every source, in file order (for the overlap check)."""
        for rows in self._rows:
            yield from rows

    def __len__(self) -> int:
        """Rows of all sources together."""
        return sum(map(len, self._rows))

    def state_dict(self) -> dict[str, Any]:
        """All there is to continue from, as plain JSON."""
        return {**self._mixture.state_dict(self._identity()), "skipped_long": self.skipped_long}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. Raises ResumeError when seed, weights or rows are not the same."""
        self._mixture.load_state_dict(state, self._identity(), self.section, "prompts")
        self.skipped_long = state["skipped_long"]

    def _identity(self) -> dict[str, Any]:
        """What the order depends on besides how many were taken."""
        if not self._digest:
            digest = hashlib.blake2b(digest_size=16)
            for row in self.rows():
                digest.update(repr(row.prompt).encode("utf-8", "surrogatepass"))
            self._digest = digest.hexdigest()
        return self._mixture.identity("prompts", self._digest)

    def _next(self, source: int) -> Prompt:
        """The next prompt of a source that is short enough and may be taken; the next short one where none may."""
        rows = self._rows[source]
        spare: tuple[Prompt, int, int] | None = None  # the first that is short enough, though it may not be taken
        shortest, too_long = math.inf, 0
        for position in self._mixture.ahead(source):
            row = rows[self._mixture.row(source, position)]
            free = self.history.may_take(row_index(source, row))
            if spare and not free:
                continue
            prompt = self._prompt(source, row)
            if len(prompt.token_ids) > self.max_prompt_tokens:
                shortest = min(shortest, len(prompt.token_ids))
                too_long += position < len(rows)  # each is counted in the first epoch
            elif free:
                return self._hand_out(source, prompt, position, too_long)
            else:
                spare = prompt, position, too_long
        if spare:
            self._warn_used_up(source, spare[0])
            return self._hand_out(source, *spare)
        raise DataError(
            f"{self.section}[{source}]: all {len(rows)} prompts of {self.names[source]} are too long: the shortest has "
            f"{shortest} tokens and rollout.max_context - rollout.max_tokens leaves {self.max_prompt_tokens}; "
            "raise rollout.max_context or lower rollout.max_tokens"
        )

    def _hand_out(self, source: int, prompt: Prompt, position: int, too_long: int) -> Prompt:
        """Count the prompt found at `position`, and the too long ones before it."""
        self._mixture.hand_out(source, position)
        self.skipped_long += too_long
        self.history.hand_out(prompt.index)
        return prompt

    def _warn_used_up(self, source: int, prompt: Prompt) -> None:
        if source not in self._used_up and self.history.passed_over(prompt.index):
            self._used_up.add(source)
            _LOG.warning("%s[%d]: %s has fewer prompts left than a step takes; passed-over ones fill its share "
                         "(curriculum.skip_right, skip_wrong)", self.section, source, self.names[source])  # fmt: skip

    def _prompt(self, source: int, row: Row) -> Prompt:
        return make_prompt(row, source, self.sources[source], self.names[source], self.tokenizer, self.section)

    def _check_lengths(self) -> None:
        for source, rows in enumerate(self._rows):
            for row in rows:
                _check_length(self._prompt(source, row), row, f"{self.section}[{source}]", self.max_prompt_tokens)


def row_index(number: int, row: Row) -> int:
    """`Prompt.index` of a row; `number` is its source's position in the recipe."""
    return number * SOURCE_STRIDE + row.number


def make_prompt(row: Row, number: int, source: SourceConfig, name: str, tokenizer: Tokenizer, section: str) -> Prompt:
    """A rendered row; `number` is its source's position under `section`."""
    rendered = render(row, source, tokenizer, f"{section}[{number}]")
    return Prompt(
        index=row_index(number, row),
        token_ids=rendered.token_ids,
        text=rendered.text,
        question=row.question,
        columns=row.columns,
        source=name,
        verifier=row.verifier,
        prefill=rendered.prefill,
        messages=as_messages(row.prompt, source.system),
    )


def load_sources(
    sources: Sequence[SourceConfig],
    section: str,
    verifiers: Collection[str] | None = None,
    exclude: Collection[str] = (),
) -> list[list[Row]]:
    """The rows of each source; with `verifiers`, every row's verifier must be one of them.

    Rows whose normalised question is in `exclude` are left out.
    """
    loaded = []
    for number, source in enumerate(sources):
        rows = load_rows(source, f"{section}[{number}]")
        if verifiers is not None and source.verifier_column is not None:
            check_verifiers(rows, verifiers, f"{section}[{number}]")
        if exclude:
            rows = [row for row in rows if normalise(row.question) not in exclude]
            if not rows:
                raise DataError(f"{section}[{number}]: every prompt is held out too; nothing is left to train on")
        loaded.append(rows)
    return loaded


def held_out_prompts(
    sources: Sequence[SourceConfig],
    tokenizer: Tokenizer,
    max_prompt_tokens: int,
    long_prompts: LongPrompts = "skip",
    *,
    verifiers: Collection[str] | None = None,
    section: str = "held_out",
) -> list[Prompt]:
    """Every prompt of the sources, in file order; those that are too long are left out and counted in a warning.

    Raises SettingError for a too long prompt with `long_prompts="error"`, DataError when none is left.
    """
    prompts, skipped = [], 0
    names = source_names(sources)
    for number, rows in enumerate(load_sources(sources, section, verifiers)):
        for row in rows:
            prompt = make_prompt(row, number, sources[number], names[number], tokenizer, section)
            if len(prompt.token_ids) <= max_prompt_tokens:
                prompts.append(prompt)
                continue
            if long_prompts == "error":
                _check_length(prompt, row, f"{section}[{number}]", max_prompt_tokens)
            skipped += 1
    left = f"longer than the {max_prompt_tokens} tokens that rollout.max_context - rollout.max_tokens leaves"
    if sources and not prompts:
        raise DataError(f"{section}: all {skipped} prompts are {left}; raise max_context or lower max_tokens")
    if skipped:
        _LOG.warning("%s: %d of %d prompts are left out: %s", section, skipped, skipped + len(prompts), left)
    return prompts


def _check_length(prompt: Prompt, row: Row, setting: str, max_prompt_tokens: int) -> None:
    length = len(prompt.token_ids)
    if length > max_prompt_tokens:
        raise SettingError(
            setting,
            f"a prompt of {length} tokens (row {row.number + 1} of {prompt.source})",
            f"at most {max_prompt_tokens} (rollout.max_context - rollout.max_tokens)",
            "raise rollout.max_context, lower rollout.max_tokens, or set rollout.long_prompts=skip",
        )


def _no_room(got: str) -> SettingError:
    return SettingError("rollout.max_tokens", got, "fewer than rollout.max_context", "lower it or raise max_context")
