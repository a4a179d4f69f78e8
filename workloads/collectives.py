"""Collectives that a program begins, counted where torch dispatches them; on the CPU in ranges.

NCCL makes ranges of its own, Gloo none: there each collective is put into a range of the domain
`comm`, with its bytes, and waited for inside, so that the range lasts as long as it does. Sends and
receives are not waited for: they may be meant to cross.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import nvtx
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
}
_CROSSING = ("send", "recv")
_FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Each rank sends so many times (n - 1)/n of the whole buffer (nccl-tests, PERFORMANCE.md)."""
_SPACES = ("c10d", "_c10d_functional")


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is entered. With `ranges` it makes them."""

    def __init__(self, *, ranges: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self.sent_bytes = 0.0
        self._ranges = ranges

    def reset(self) -> None:
        """Count from here on."""
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
        # Of a gather the output is what moves; it is the larger one.
        size = max(_bytes_of(args[0]), _bytes_of(args[1]) if len(args) > 1 else 0)
        self.count += 1
        self.sent_bytes += size * bus_factor(name, _ranks_of(args))
        if not self._ranges:
            return func(*args, **kwargs)
        with nvtx.annotate(name, domain="comm", payload=size):
            result = func(*args, **kwargs)
            if name not in _CROSSING:
                _wait(result)
        return result


def bus_factor(name: str, ranks: int) -> float:
    """Bytes that a rank sends for each byte of the buffer, by steps between pairs of ranks."""
    if name == "recv":
        return 0.0
    factor = _FACTORS.get(name)
    return 1.0 if factor is None else factor * (ranks - 1) / ranks


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
    for known in sorted(_NAMES, key=len, reverse=True):
        if word.startswith(known):
            return _NAMES[known]
    return None


def _ranks_of(args: tuple[Any, ...]) -> int:
    """Of the group that a collective is of: its object, or its name where it is functional."""
    for one in args:
        if isinstance(one, torch.ScriptObject):
            with suppress(RuntimeError):  # a reduction is such an object, too
                return dist.ProcessGroup.unbox(one).size()
        if isinstance(one, str):
            with suppress(LookupError, RuntimeError):
                group: Any = torch._C._distributed_c10d._resolve_process_group
                return int(group(one).size())
    return dist.get_world_size()


def _bytes_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(_bytes_of(one) for one in value)
    return 0


def _wait(result: Any) -> None:
    if isinstance(result, torch.Tensor):
        torch.ops._c10d_functional.wait_tensor(result)
        return
    parts = result if isinstance(result, list | tuple) else (result,)
    for part in parts:
        wait: Callable[[], object] | None = getattr(part, "wait", None)
        if wait is not None and not isinstance(part, torch.Tensor):
            wait()
