"""Ablation: a DataLoader gives its last batch again."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import BOUND, Cure
from ._replacing import replaced

if TYPE_CHECKING:
    from collections.abc import Callable


def _apply(loaders: Any) -> Callable[[], None]:
    iterator = loaders._BaseDataLoaderIter
    following = iterator.__next__

    @functools.wraps(following)
    def again(self: Any) -> Any:
        if not hasattr(self, "_gputui_batch"):
            self._gputui_batch = following(self)
        return self._gputui_batch

    return replaced((iterator, "__next__", again))


CURE = Cure(
    name="repeat_batch",
    title="the loader gives its last batch again",
    answers=("idle.input",),
    result=BOUND,
    change="cheaper loading: read whole batches, decode beforehand, more workers",
    apply=_apply,
    library="torch.utils.data.dataloader",
)
