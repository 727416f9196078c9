"""The order of training: a mixture of sources by share, each in a seeded order of its own, resumable at any point."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatrain.errors import ResumeError

ORDER_STREAM = 3  # second word of every seed of the rows' order: 0 is sampling, 1 evaluation, 2 mini-batches
SOURCE_STRIDE = 2**40  # index of a row over all sources = source number * SOURCE_STRIDE + row number


class Mixture:
    """Which source is due next, and which of its rows stands at a position of its endless order.

    The next source is the one furthest behind its share w_s * (taken + 1) - taken_s, so shares are exact at any length,
    not only on average. Epoch e of source s is a permutation that depends on (seed, s, e) alone. The order is therefore
    a function of the seed and of how many were taken.
    """

    def __init__(self, weights: Sequence[float], sizes: Sequence[int], seed: int) -> None:
        self.weights, self.sizes, self.seed = list(weights), list(sizes), seed
        self.taken = [0] * len(sizes)  # rows handed out
        self.position = [0] * len(sizes)  # rows visited: those handed out and those left out
        self._order: dict[int, tuple[int, NDArray[np.int64]]] = {}  # source: (epoch, permutation)

    def due(self) -> int:
        """The source furthest behind its share; the first one on a tie."""
        total = sum(self.taken) + 1
        weights = sum(self.weights)
        behind = [weight / weights * total - taken for weight, taken in zip(self.weights, self.taken, strict=True)]
        return behind.index(max(behind))

    def ahead(self, source: int) -> range:
        """Positions of the rest of an epoch and of a whole one after it: every row of the source."""
        start = self.position[source]
        return range(start, start + 2 * self.sizes[source])

    def row(self, source: int, position: int) -> int:
        """The row of the source that stands at `position` of its endless order."""
        epoch, place = divmod(position, self.sizes[source])
        if self._order.get(source, (-1,))[0] != epoch:
            self._order[source] = (epoch, permutation(self.sizes[source], (self.seed, ORDER_STREAM, source, epoch)))
        return int(self._order[source][1][place])

    def hand_out(self, source: int, position: int) -> None:
        """The row at `position` is taken, those before it were left out."""
        self.taken[source] += 1
        self.position[source] = position + 1

    def identity(self, what: str, digest: str) -> dict[str, Any]:
        """What the order depends on besides how many were taken; `digest` is of the rows, which are called `what`."""
        return {"seed": self.seed, "weights": self.weights, "rows": self.sizes, f"digest of the {what}": digest}

    def state_dict(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """All there is to continue from, as plain JSON."""
        return {"identity": identity, "taken": list(self.taken), "position": list(self.position)}

    def load_state_dict(self, state: Mapping[str, Any], identity: Mapping[str, Any], section: str, what: str) -> None:
        """Continue where `state` was taken. Raises ResumeError when the identity is not the same."""
        for name, value in identity.items():
            saved = state["identity"].get(name)
            if saved != value:
                raise ResumeError(
                    f"{section}: {name} was {saved!r} when the run was saved and is {value!r} now; "
                    f"the order of {what} cannot be continued, restore the data and settings or start a new run"
                )
        self.taken, self.position = list(state["taken"]), list(state["position"])


def permutation(count: int, key: Sequence[int]) -> NDArray[np.int64]:
    """A random order of range(count) from `key`: the ranks of `count` raw Philox numbers.

    Raw bit streams are the part of numpy.random whose values are the same in every version.
    """
    numbers = np.random.Philox(np.random.SeedSequence(list(key))).random_raw(count)
    return np.argsort(numbers, kind="stable").astype(np.int64)
