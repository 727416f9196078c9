"""From samples to what the model reads: three layouts of one meaning, and flat vectors over trained tokens.

Suffixes: B rows, T positions, N trained tokens. A loss sees only N-vectors, so it cannot tell whether the batch was
padded, packed, or shares one forward of the prompt among its completions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from quatrain.types import Sample

Builder = Literal["padded", "packed", "shared"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainBatch:
    """One micro-batch. Position i may attend to j <= i when both are of one segment, or j is in i's prefix segment.

    `segment_BT` numbers the segments of a row from 1 (0 is padding), `prefix_BT` names the segment that a
    position sees besides its own (its own number when there is none). `logit_index_N` is the flat position
    (row * T + column) whose logits predict `target_N`; with a shared prompt several trained tokens may have the same.
    `sample_N` is the position of the token's sample in `samples`.
    """

    input_ids: Tensor
    position_ids: Tensor
    segment_BT: Tensor
    prefix_BT: Tensor
    logit_index_N: Tensor
    target_N: Tensor
    sample_N: Tensor
    num_samples: int
    streams: Mapping[str, Tensor] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()

    @property
    def plain(self) -> bool:
        """True when every row holds one right-padded sequence, so that plain causal attention is right."""
        return bool((self.segment_BT <= 1).all())

    def attention_mask(self) -> Tensor:
        """allowed_B1TT, True where position i (row) may look at position j (column); padding looks at itself."""
        segment, prefix = self.segment_BT, self.prefix_BT
        same = segment[:, :, None] == segment[:, None, :]
        inherited = prefix[:, :, None] == segment[:, None, :]
        length = segment.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=segment.device).tril()
        real = (segment > 0)[:, :, None]
        allowed = causal & real & (same | inherited)
        return (allowed | torch.eye(length, dtype=torch.bool, device=segment.device))[:, None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """What a model says about the N trained tokens of a batch (nats, at the sampling temperature).

    Of a policy `entropy_N` is always there (without gradient unless needed), `full_kl_N` and the value head's
    `values_NK` only when needed. A model with scalar heads gives `values_NK` alone, and the others are empty.
    """

    logprobs_N: Tensor
    entropy_N: Tensor
    full_kl_N: Tensor | None = None
    values_NK: Tensor | None = None


@dataclass(slots=True)
class _Row:
    """A row under construction: positions filled so far, segment by segment."""

    token_ids: list[np.ndarray] = field(default_factory=list)
    position_ids: list[np.ndarray] = field(default_factory=list)
    segment: list[np.ndarray] = field(default_factory=list)
    prefix: list[np.ndarray] = field(default_factory=list)
    trained: list[tuple[int, np.ndarray, np.ndarray]] = field(default_factory=list)  # sample, logit column, target
    length: int = 0
    segments: int = 0

    def add(self, token_ids: np.ndarray, first_position: int, prefix: int | None = None) -> int:
        """Append a segment and return its number."""
        self.segments += 1
        count = len(token_ids)
        self.token_ids.append(token_ids)
        self.position_ids.append(np.arange(first_position, first_position + count))
        self.segment.append(np.full(count, self.segments))
        self.prefix.append(np.full(count, self.segments if prefix is None else prefix))
        self.length += count
        return self.segments

    def add_sample(self, index: int, sample: Sample) -> None:
        """A whole sample as one segment."""
        start = self.length
        self.add(sample.token_ids, 0)
        columns = np.flatnonzero(sample.trained)
        self.trained.append((index, start + columns - 1, sample.token_ids[columns]))

    def add_group(self, members: Sequence[tuple[int, Sample]]) -> None:
        """Samples with one common prompt: the prompt once, then each continuation as a segment that sees it."""
        cut = members[0][1].prompt_length
        start = self.length
        prompt_segment = self.add(members[0][1].token_ids[:cut], 0)
        for index, sample in members:
            own = self.length
            columns = np.flatnonzero(sample.trained)
            # the token after the prompt is predicted by the prompt's last position, all others by their predecessor
            logits = np.where(columns == cut, start + cut - 1, own + columns - cut - 1)
            self.trained.append((index, logits, sample.token_ids[columns]))
            # the last token of a sample predicts nothing, so it need not be read
            self.add(sample.token_ids[cut:-1], cut, prompt_segment)


def build(samples: Sequence[Sample], builder: Builder = "padded", row_tokens: int | None = None) -> TrainBatch:
    """Lay `samples` out. `packed` and `shared` fill rows up to `row_tokens` positions (default: the longest unit).

    Streams are concatenated in the order of `samples`, trained tokens in order, whatever the layout.
    """
    if not samples:
        raise ValueError("samples: got none, need at least one")
    shared_streams = set(samples[0].streams).intersection(*(set(sample.streams) for sample in samples))
    rows = _pack(_units(samples, builder), builder, row_tokens)
    length = max(row.length for row in rows)
    grids = {
        name: np.zeros((len(rows), length), dtype=np.int64) for name in ("tokens", "positions", "segment", "prefix")
    }
    logit_index: dict[int, np.ndarray] = {}
    targets: dict[int, np.ndarray] = {}
    for number, row in enumerate(rows):
        parts = (row.token_ids, row.position_ids, row.segment, row.prefix)
        for name, pieces in zip(grids, parts, strict=True):
            grids[name][number, : row.length] = np.concatenate(pieces)
        for index, columns, target in row.trained:
            logit_index[index] = number * length + columns
            targets[index] = target
    order = range(len(samples))

    def flat(pieces: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(pieces))

    return TrainBatch(
        input_ids=torch.from_numpy(grids["tokens"]),
        position_ids=torch.from_numpy(grids["positions"]),
        segment_BT=torch.from_numpy(grids["segment"]),
        prefix_BT=torch.from_numpy(grids["prefix"]),
        logit_index_N=flat([logit_index[index] for index in order]),
        target_N=flat([targets[index] for index in order]),
        sample_N=flat([np.full(sample.num_tokens, index) for index, sample in enumerate(samples)]),
        num_samples=len(samples),
        streams={name: flat([sample.streams[name] for sample in samples]) for name in sorted(shared_streams)},
        samples=tuple(samples),
    )


Unit = list[tuple[int, Sample]]


def _units(samples: Sequence[Sample], builder: Builder) -> list[Unit]:
    """What is laid out together: a sample, or for `shared` the samples of a group that have one prompt."""
    if builder != "shared":
        return [[(index, sample)] for index, sample in enumerate(samples)]
    units: dict[tuple[int, bytes], Unit] = {}
    for index, sample in enumerate(samples):
        key = (sample.group, sample.token_ids[: sample.prompt_length].tobytes())
        units.setdefault(key, []).append((index, sample))
    return list(units.values())


def unit_tokens(unit: Unit) -> int:
    """Positions that a unit takes in a row."""
    if len(unit) == 1:
        return len(unit[0][1].token_ids)
    cut = unit[0][1].prompt_length
    return cut + sum(max(0, len(sample.token_ids) - cut - 1) for _, sample in unit)


def _pack(units: Sequence[Unit], builder: Builder, row_tokens: int | None) -> list[_Row]:
    """First fit, in order; `padded` gives every sample a row of its own."""
    limit = max(max(map(unit_tokens, units)), row_tokens or 0)
    rows: list[_Row] = []
    for unit in units:
        row = None
        if builder != "padded":
            row = next((row for row in rows if row.length + unit_tokens(unit) <= limit), None)
        if row is None:
            row = _Row()
            rows.append(row)
        if len(unit) == 1:
            row.add_sample(*unit[0])
        else:
            row.add_group(unit)
    return rows


def split_by_tokens(
    samples: Sequence[Sample], budget: int, builder: Builder, whole_groups: bool = False
) -> list[list[Sample]]:
    """Micro-batches of at most `budget` positions (padding counted); a larger block gets a micro-batch of its own.

    A block is a unit of the layout, or with `whole_groups` all units of a group (a pair is never split). Blocks are
    sorted by length, so that padded rows waste little; the result does not depend on arrival order.
    """
    blocks: dict[int, list[Unit]] = {}
    for number, unit in enumerate(_units(samples, builder)):
        blocks.setdefault(unit[0][1].group if whole_groups else number, []).append(unit)
    ordered = sorted(blocks.values(), key=lambda block: (max(map(unit_tokens, block)), block[0][0][0]))
    batches: list[list[Unit]] = []
    longest, width = 0, 0
    for block in ordered:
        longest = max(longest, *map(unit_tokens, block))
        width += len(block)
        if not batches or longest * width > budget:
            batches.append([])
            longest, width = max(map(unit_tokens, block)), len(block)
        batches[-1] += block
    return [[sample for unit in batch for _, sample in unit] for batch in batches]
