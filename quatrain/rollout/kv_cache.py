"""Keys and values of the rows being decoded, in buffers that are allocated once per wave."""

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class BufferLayer(CacheLayerMixin):
    """One layer's keys and values, (rows, kv heads, capacity, head dim); appending copies only what is new."""

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate for the shapes of the first call."""
        rows, heads, _, dim = key_states.shape
        self.keys = key_states.new_empty(rows, heads, self.capacity, dim)
        self.values = value_states.new_empty(rows, heads, self.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append, and return views of all that is stored."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        end = self.length + key_states.shape[2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def select(self, rows: Tensor) -> None:
        """Keep (or repeat) these rows, in this order."""
        assert self.keys is not None and self.values is not None
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_empty(len(rows), *old.shape[1:])
            new[:, :, : self.length] = old[:, :, : self.length].index_select(0, rows)
            setattr(self, name, new)

    def get_seq_length(self) -> int:
        """Positions stored."""
        return self.length

    def get_max_length(self) -> int:
        """Positions that fit."""
        return self.capacity

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys after this call, offset)."""
        return self.length + query_length, 0


def new_cache(layers: int, capacity: int) -> Cache:
    """An empty cache for `layers` layers and `capacity` positions."""
    return Cache(layers=[BufferLayer(capacity) for _ in range(layers)])


def select_rows(cache: Cache, rows: Tensor) -> None:
    """Keep (or repeat) rows in every layer."""
    for layer in cache.layers:
        assert isinstance(layer, BufferLayer)
        layer.select(rows)
