"""Collectives that a program begins, counted where torch dispatches them; on the CPU in ranges.

NCCL makes ranges of its own, Gloo none: there each collective is put into a range of the domain
`comm`, with its bytes and, of a part of the ranks, these as its category. It is waited for inside,
so that the range lasts as long as it does; sends and receives are not: they may be meant to cross.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, cast

import nvtx
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

_NAMES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce", "all_gather": "all_gather", "alltoall": "all_to_all",
    "all_to_all": "all_to_all", "broadcast": "broadcast", "send": "send", "recv": "recv",
    "barrier": "barrier",
}  # fmt: skip
_CROSSING = ("send", "recv")
# Each rank sends so many times (n - 1)/n of the whole buffer (nccl-tests, PERFORMANCE.md).
_FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
_FUNCTIONAL = "_c10d_functional"
_SPACES = ("c10d", _FUNCTIONAL)


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is entered. With `ranges` it makes them."""

    def __init__(self, *, ranges: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self.sent_bytes = 0.0
        self._ranges = ranges
        self._labels: dict[str, str | None] = {}

    def reset(self) -> None:
        """Set the counts of calls and bytes to zero."""
        self.count, self.sent_bytes = 0, 0.0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = _name_of(func)
        if name is None:
            return func(*args, **kwargs)
        group = _group_of(args) or dist.group.WORLD
        assert group is not None
        size = whole_bytes(str(func), args, group.size())
        self.count += 1
        self.sent_bytes += size * bus_factor(name, group.size())
        if not self._ranges:
            return func(*args, **kwargs)
        message = message_bytes(name, size, group.size())
        with nvtx.annotate(name, domain="comm", category=self.label(group), payload=message):
            result = func(*args, **kwargs)
            if name not in _CROSSING:
                _wait(result)
        return result

    def label(self, group: dist.ProcessGroup) -> str | None:
        """A group by its ranks, as "0,2"; None for all ranks. No group is kept: its threads would
        outlive it."""
        if group.group_name not in self._labels:
            ranks = dist.get_process_group_ranks(group)
            is_all = len(ranks) == dist.get_world_size()
            self._labels[group.group_name] = None if is_all else ",".join(map(str, ranks))
        return self._labels[group.group_name]


def bus_factor(name: str, ranks: int) -> float:
    """Bytes that a rank sends for each byte of the buffer, by steps between pairs of ranks."""
    if name == "recv":
        return 0.0
    factor = _FACTORS.get(name)
    return 1.0 if factor is None else factor * (ranks - 1) / ranks


def whole_bytes(func: str, args: tuple[Any, ...], ranks: int) -> int:
    """Of a gather the output is what moves; it is the larger one, or yet to be made."""
    size = max(_bytes_of(args[0]), _bytes_of(args[1]) if len(args) > 1 else 0)
    return size * ranks if func.startswith(f"{_FUNCTIONAL}.all_gather") else size


def message_bytes(name: str, whole: int, ranks: int) -> int:
    """NCCL's message size, which ranges have too: in some, one rank's share."""
    return whole // ranks if name in ("all_gather", "reduce_scatter", "all_to_all") else whole


@contextmanager
def collectives(*, ranges: bool, counts: bool) -> Iterator[Collectives]:
    """In ranges, or counted, or neither."""
    mode = Collectives(ranges=ranges)
    if not (ranges or counts):
        yield mode
        return
    with mode:
        yield mode


@cache
def _name_of(func: Any) -> str | None:
    space, _, rest = str(func).partition(".")
    if space not in _SPACES:
        return None
    # "allreduce_.default", "_reduce_scatter_base_.default", "all_to_all_single.default"
    word = rest.partition(".")[0].strip("_")
    for prefix in sorted(_NAMES, key=len, reverse=True):
        if word.startswith(prefix):
            return _NAMES[prefix]
    return None


def _group_of(args: tuple[Any, ...]) -> dist.ProcessGroup | None:
    """What a collective is of: its object, or its name where it is functional; None for all."""
    for argument in args:
        if isinstance(argument, torch.ScriptObject):
            with suppress(RuntimeError):  # a reduction is such an object, too
                return dist.ProcessGroup.unbox(argument)
        if isinstance(argument, str):
            with suppress(LookupError, RuntimeError):
                group: Any = torch._C._distributed_c10d._resolve_process_group
                return cast(dist.ProcessGroup, group(argument))
    return None


def _bytes_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(_bytes_of(item) for item in value)
    return 0


def _wait(result: Any) -> None:
    if isinstance(result, torch.Tensor):
        torch.ops._c10d_functional.wait_tensor(result)
        return
    results = result if isinstance(result, list | tuple) else (result,)
    for part in results:
        wait: Callable[[], object] | None = getattr(part, "wait", None)
        if wait is not None and not isinstance(part, torch.Tensor):
            wait()
