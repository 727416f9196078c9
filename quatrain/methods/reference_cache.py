"""Reference log-probabilities of an offline run: computed once, kept in RUN/reference.npz, read by every step.

They are computed in the order and in the batches in which the run takes its examples, so that a run that was killed,
or is given more steps later, has the same bits as one that was not.
"""

import hashlib
import logging
import os
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quatrain.data.examples import Example
from quatrain.telemetry.files import disk_errors
from quatrain.types import Sample

STREAM = "reference_logprobs"
WRITE_EVERY_S = 60.0
_DIGEST = 16  # bytes

Annotate = Callable[[Sequence[Sample]], list[Sample]]
_LOG = logging.getLogger("quatrain")


class ReferenceCache:
    """Per trained token of every sample; a sample is known by its token ids and by which of them are trained."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values: dict[bytes, NDArray[np.float64]] = {}
        self._written = 0
        if path.is_file():
            self._read()

    def missing(self, batches: Iterable[Sequence[Example]]) -> list[list[Example]]:
        """The batches without the examples that are known, or stand in an earlier batch; none of them is empty."""
        seen, found = set(self._values), []
        for batch in batches:
            wanted = []
            for example in batch:
                keys = {key(sample) for sample in example.samples}
                if not keys <= seen:
                    wanted.append(example)
                seen |= keys
            if wanted:
                found.append(wanted)
        return found

    def fill(
        self, batches: Sequence[Sequence[Example]], annotate: Annotate, progress: Callable[[int, int], None]
    ) -> None:
        """Compute every batch with `annotate`, which adds the stream to samples, and write the file.

        It is written now and then, and when `annotate` raises, so that what is done is not done again.
        """
        done, total, last = 0, sum(map(len, batches)), time.monotonic()
        try:
            for batch in batches:
                for sample in annotate([sample for example in batch for sample in example.samples]):
                    self._values[key(sample)] = sample.streams[STREAM]
                done += len(batch)
                progress(done, total)
                if time.monotonic() - last > WRITE_EVERY_S:
                    self._write()
                    last = time.monotonic()
        finally:
            self._write()

    def of(self, example: Example) -> list[NDArray[np.float64]]:
        """The stream of each of its samples."""
        return [self._values[key(sample)] for sample in example.samples]

    def _read(self) -> None:
        """A file that cannot be read counts as none: what it held is computed anew."""
        try:
            with np.load(self.path) as stored:
                keys, counts, values = stored["keys"], stored["counts"], stored["values"]
            if keys.shape != (len(counts), _DIGEST) or counts.sum() != len(values):
                raise ValueError("its parts do not fit together")
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            _LOG.warning("%s cannot be read (%s): the reference is computed anew", self.path, error)
            return
        pieces = np.split(values, np.cumsum(counts)[:-1])
        self._values = {row.tobytes(): piece for row, piece in zip(keys, pieces, strict=True)}
        self._written = len(self._values)

    def _write(self) -> None:
        if len(self._values) == self._written:
            return
        keys = np.frombuffer(b"".join(self._values), dtype=np.uint8).reshape(-1, _DIGEST)
        counts = np.array([len(values) for values in self._values.values()], dtype=np.int64)
        temporary = self.path.with_name(f".{self.path.name}.writing")
        with disk_errors(self.path):
            try:
                with temporary.open("wb") as file:
                    np.savez(file, keys=keys, counts=counts, values=np.concatenate(list(self._values.values())))
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(self.path)
            finally:
                temporary.unlink(missing_ok=True)
        self._written = len(self._values)


def key(sample: Sample) -> bytes:
    """Equal for samples of the same tokens of which the same are trained."""
    digest = hashlib.blake2b(sample.token_ids.tobytes(), digest_size=_DIGEST)
    digest.update(sample.trained.tobytes())
    return digest.digest()
