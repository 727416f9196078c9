"""Bytes of live tensors by component while real code runs, with real tensors or fake ones.

A storage is counted when an operation first returns it and uncounted when it dies (a weakref finaliser), so views,
in-place operations and tensors that autograd keeps are counted once and for as long as they live. A storage belongs to
the component that `classify` names, else to that of the phase; gradients are named when autograd has accumulated them.
What the counter cannot see: memory that a kernel takes and gives back inside one operation, the allocator's rounding
and fragments, and the driver.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Classify = Callable[[Tensor], str | None]


class _Record:
    """What is known of one storage."""

    __slots__ = ("component", "size")

    def __init__(self, component: str, size: int) -> None:
        self.component, self.size = component, size


class Storages(TorchDispatchMode):
    """Live bytes by component: those of a phase's fullest moment (`peaks`), and the most of each (`highest`)."""

    def __init__(self, classify: Classify = lambda _: None) -> None:
        super().__init__()
        self.classify, self.default = classify, "activations"
        self.live: Counter[str] = Counter()
        self.total = 0
        self.peaks: dict[str, dict[str, int]] = {}
        self.highest: dict[str, Counter[str]] = {}
        self._records: weakref.WeakKeyDictionary[Any, _Record] = weakref.WeakKeyDictionary()
        self._phase, self._highest = "", 0

    @property
    def name(self) -> str:
        """The phase that is running."""
        return self._phase

    @contextmanager
    def phase(self, name: str, default: str = "activations") -> Iterator[None]:
        """Note the peak of this block as `name`; storages without a component are called `default` in it.

        Copies of weights in another type (autocast's) are `compute weights`."""
        before = self._phase, self._highest, self.default
        self._phase, self._highest, self.default = name, -1, default
        self.highest[name] = Counter(self.live)
        self._note()
        try:
            yield
        finally:
            self._phase, self._highest, self.default = before

    def add(self, tensor: Tensor | None, component: str) -> None:
        """Count `tensor` as `component`, or give it that name from now on."""
        for part in _locals(tensor):
            storage = part.untyped_storage()
            record = self._records.get(storage)
            if record is None:
                record = _Record(component, storage.nbytes())
                self._records[storage] = record
                weakref.finalize(storage, self._change, record, 0)
                self._move(component, record.size)
            elif record.component != component:
                self._move(record.component, -record.size)
                self._move(component, record.size)
                record.component = component

    def add_model(self, module: nn.Module, trained: str = "weights", frozen: str = "frozen") -> None:
        """Count a model's parameters and buffers, and name its gradients as they are accumulated."""
        for parameter in module.parameters():
            self.add(parameter, trained if parameter.requires_grad else frozen)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda p: self.add(p.grad, "gradients"))
        for buffer in module.buffers():
            self.add(buffer, "buffers")

    def _move(self, component: str, size: int) -> None:
        self.live[component] += size
        self.total += size
        if self._phase:
            most = self.highest[self._phase]
            most[component] = max(most[component], self.live[component])
        self._note()

    def _note(self) -> None:
        if self._phase and self.total > self._highest:
            self._highest = self.total
            self.peaks[self._phase] = {name: size for name, size in self.live.items() if size}

    def _change(self, record: _Record, size: int) -> None:
        self._move(record.component, size - record.size)
        record.size = size

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        copied = function is torch.ops.aten._to_copy.default and self._component(args[0]) == "weights"
        for leaf in tree_leaves(result):
            for part in _locals(leaf):
                if part.untyped_storage() not in self._records:
                    self.add(part, "compute weights" if copied else self.classify(part) or self.default)
        return result

    def _component(self, tensor: Tensor) -> str:
        record = self._records.get(_locals(tensor)[0].untyped_storage())
        return record.component if record else ""

    def __enter__(self) -> "Storages":
        resize = torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> Any:  # sharded training frees gathered weights this way
            answer = resize(storage, size)
            if (record := self._records.get(storage)) is not None:
                self._change(record, size)
            return answer

        self._patch = mock.patch.object(torch.UntypedStorage, "resize_", resized)
        self._patch.start()
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *details: Any) -> None:
        self._patch.stop()
        super().__exit__(*details)


def _locals(value: Any) -> list[Tensor]:
    """The tensors with memory of their own: the local part of a distributed one."""
    if not isinstance(value, Tensor):
        return []
    local = getattr(value, "_local_tensor", None)
    return [value if local is None else local]


def head_logits(vocabulary: int) -> Classify:
    """Names what is as wide as the vocabulary `logits` (a power of two would be mistaken for another width)."""
    return lambda tensor: "logits" if tensor.ndim and tensor.shape[-1] == vocabulary else None
