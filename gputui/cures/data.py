"""Data on its way to the GPU and back: loaders, copies, and values that are read."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from . import BOUND, EXACT, Cure
from .changing import combined, instances, replaced

if TYPE_CHECKING:
    from . import Undo

MOST_WORKERS = 12
"""More than a GPU needs of most loaders: 12 were within 5 % of 14 (H100, 26 cores)."""

PREFETCH = 4


def workers() -> int:
    """As many as there are cores beside the one of the program itself."""
    return max(2, min(MOST_WORKERS, len(os.sched_getaffinity(0)) - 1))


class LoaderWorkers(Cure):
    """DataLoader with workers, pinned memory, workers kept between epochs, and batches ahead."""

    name = "loader_workers"
    title = "DataLoader has workers, which stay, pins memory and prefetches"
    answers = ("idle.input", "idle.host", "idle.wait")
    result = EXACT
    change = (
        f"DataLoader(..., num_workers={workers()}, pin_memory=True, persistent_workers=True, "
        f"prefetch_factor={PREFETCH})"
    )
    library = "torch.utils.data"
    in_one_run = False
    advice = "workers"

    def apply(self, data: Any) -> Undo:
        loader = data.DataLoader
        init = loader.__init__

        @functools.wraps(init)
        def changed(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
            if len(args) < 5:
                given = kwargs.get("num_workers") or 0
                # One worker gives the same batches in the same order, whatever the data set.
                most = workers() if _may_have_more(data, dataset, given) else 1
                kwargs["num_workers"] = max(most, given)
                kwargs["prefetch_factor"] = max(PREFETCH, kwargs.get("prefetch_factor") or 0)
                kwargs["persistent_workers"] = True
            if len(args) < 7:
                kwargs["pin_memory"] = True
            init(self, dataset, *args, **kwargs)

        return replaced((loader, "__init__", changed))

    def useless(self, data: Any) -> str | None:
        # A loop often holds the iterator alone.
        iterator = data.dataloader._BaseDataLoaderIter
        made = instances(data.DataLoader, iterator)
        if made == []:
            return "there is no DataLoader"
        loaders = [each for each in made or () if not isinstance(each, iterator)]
        if loaders and all(
            each.num_workers >= workers() and each.pin_memory and each.persistent_workers
            for each in loaders
        ):
            return "its loaders have workers, which stay, and pin memory"
        return None


def _may_have_more(data: Any, dataset: Any, given: int) -> bool:
    """Whether workers divide the data: an iterable dataset that does not ask which of them it is in
    would give each batch once a worker."""
    if not isinstance(dataset, data.IterableDataset) or given > 1:
        return True
    iterate = getattr(type(dataset).__iter__, "__code__", None)
    return "get_worker_info" in getattr(iterate, "co_names", ())


class RepeatBatch(Cure):
    """Ablation: a DataLoader gives its last batch again."""

    name = "repeat_batch"
    title = "the loader gives its last batch again"
    answers = ("idle.input",)
    result = BOUND
    change = "cheaper loading: read whole batches, decode beforehand, more workers"
    library = "torch.utils.data.dataloader"

    def apply(self, loaders: Any) -> Undo:
        iterator = loaders._BaseDataLoaderIter
        following = iterator.__next__

        @functools.wraps(following)
        def again(self: Any) -> Any:
            if not hasattr(self, "_gputui_batch"):
                self._gputui_batch = following(self)
            return self._gputui_batch

        return replaced((iterator, "__next__", again))


LEAST_BYTES = 1 << 16
"""Smaller copies go through the driver's own pinned buffer: nothing to gain (CUDA API reference,
"API synchronization behavior")."""


class PinnedCopies(Cure):
    """Copies from pageable memory go through pinned memory, and the CPU does not wait for them."""

    name = "pinned_copies"
    title = "copies to the GPU go through pinned memory, without waiting"
    answers = ("busy.copy_pageable",)
    result = EXACT
    change = "DataLoader(..., pin_memory=True), and x.to(device, non_blocking=True)"
    advice = "pin_memory"

    def apply(self, torch: Any) -> Undo:
        tensor = torch.Tensor
        to, cuda, copy = tensor.to, tensor.cuda, tensor.copy_

        def staged(source: Any) -> Any:
            """The same in pinned memory, which torch's allocator keeps until its copy is over."""
            if (
                source.device.type == "cpu"
                and source.layout is torch.strided
                and source.numel() * source.element_size() >= LEAST_BYTES
                and not source.requires_grad
                and not source.is_pinned()
            ):
                return source.pin_memory()
            return source

        def goes_to_gpu(place: Any) -> bool:
            if isinstance(place, torch.Tensor):
                return bool(place.is_cuda)
            if isinstance(place, int) and not isinstance(place, bool):
                return True
            return str(place).startswith("cuda")

        @functools.wraps(to)
        def to_staged(self: Any, *args: Any, **kwargs: Any) -> Any:
            place = kwargs.get("device", args[0] if args else None)
            if self.device.type == "cpu" and place is not None and goes_to_gpu(place):
                pinned = staged(self)
                if pinned is not self:
                    if not any(isinstance(word, bool) for word in args):
                        kwargs["non_blocking"] = True
                    return to(pinned, *args, **kwargs)
            return to(self, *args, **kwargs)

        @functools.wraps(cuda)
        def cuda_staged(self: Any, *args: Any, **kwargs: Any) -> Any:
            pinned = staged(self)
            if pinned is not self and len(args) < 2:
                kwargs["non_blocking"] = True
            return cuda(pinned, *args, **kwargs)

        @functools.wraps(copy)
        def copy_staged(self: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_cuda and isinstance(source, torch.Tensor):
                pinned = staged(source)
                if pinned is not source and not args:
                    kwargs["non_blocking"] = True
                return copy(self, pinned, *args, **kwargs)
            return copy(self, source, *args, **kwargs)

        return replaced(
            (tensor, "to", to_staged), (tensor, "cuda", cuda_staged), (tensor, "copy_", copy_staged)
        )


READS = ("item", "cpu", "tolist", "__float__", "__int__", "__bool__")
MOST_LINES = 1000
"""Lines whose values are kept."""


class LastValues(Cure):
    """Ablation: .item(), .cpu(), .tolist() and the like of what is on the GPU give the last value
    that was read at the line."""

    name = "last_values"
    title = "values read from the GPU are those read last at the line"
    answers = ("idle.sync", "busy.copy_pageable")
    result = BOUND
    change = "keep values on the GPU, read them every N steps"
    advice = ".item()"

    def apply(self, torch: Any) -> Undo:
        return combined(*(_of_last(torch.Tensor, name) for name in READS))


def _of_last(tensor: Any, name: str) -> Undo:
    read = getattr(tensor, name)
    values: dict[Any, Any] = {}

    @functools.wraps(read)
    def last(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        key = frame.f_code, frame.f_lasti, self.shape
        if key in values:
            return values[key]
        value = read(self, *args, **kwargs)
        if len(values) < MOST_LINES:
            values[key] = value
        return value

    return replaced((tensor, name, last))
