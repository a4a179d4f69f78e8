"""DataLoader with workers, pinned memory, workers kept between epochs, and batches ahead."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from . import EXACT, Cure
from ._objects import instances

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_WORKERS = 12
"""More than a GPU needs of most loaders: 12 were within 5 % of 14 (H100, 26 cores)."""

PREFETCH = 4


def workers() -> int:
    """As many as there are cores beside the one of the program itself."""
    return max(2, min(MOST_WORKERS, len(os.sched_getaffinity(0)) - 1))


def _apply(data: Any) -> Callable[[], None]:
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

    loader.__init__ = changed

    def undo() -> None:
        if loader.__init__ is changed:
            loader.__init__ = init

    return undo


def _may_have_more(data: Any, dataset: Any, given: int) -> bool:
    """Whether workers divide the data: an iterable dataset that does not ask which of them it is in
    would give each batch once a worker."""
    if not isinstance(dataset, data.IterableDataset) or given > 1:
        return True
    iterate = getattr(type(dataset).__iter__, "__code__", None)
    return "get_worker_info" in getattr(iterate, "co_names", ())


def _useless(data: Any) -> str | None:
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


CURE = Cure(
    name="loader_workers",
    title="DataLoader has workers, which stay, pins memory and prefetches",
    answers=("idle.input", "idle.host", "idle.wait"),
    result=EXACT,
    change=(
        f"DataLoader(..., num_workers={workers()}, pin_memory=True, persistent_workers=True, "
        f"prefetch_factor={PREFETCH})"
    ),
    apply=_apply,
    library="torch.utils.data",
    in_one_run=False,
    useless=_useless,
    advice="workers",
)
