"""Tensors that are copied to the GPU again and again, unchanged."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from . import EXACT, Cure, replaced
from .copies import LEAST_KEPT_BYTES, free_bytes_of_gpu
from .writes import MOST_COMPARED_BYTES, differ, rows_all_over, writes_of

if TYPE_CHECKING:
    from . import Undo


class CopiesKept(Cure):
    """A tensor, or the same slice of one, that is copied to the GPU again (.to(), .cuda()) and was
    not written to since is what was copied last. While it is off each is compared with what is
    kept, on the GPU, and rows all over it at the end of each block, because numpy, another process,
    and tensors of inference mode do not count what they write: where one was written to, the cure
    ends."""

    name = "copies_kept"
    title = "tensors that are copied to the GPU again stay there"
    answers = ("busy.copy_pageable", "busy.copy_pinned", "slow_link")
    result = EXACT
    change = "x = x.to(device) once, before the loop"
    advice = "keep on the GPU what"

    _is_on = _is_prepared = False
    _differs: Any = None

    def apply(self, torch: Any) -> Undo:
        if not self._is_prepared:
            self._is_prepared = True
            self._seen: dict[Any, tuple[Any, Any]] = {}
            self._kept: dict[Any, _Copy] = {}
            tensor = torch.Tensor
            replaced(*((tensor, name, self._moving(torch, name)) for name in ("to", "cuda")))
        self._is_on = True
        self._compared: set[Any] = set()
        return functools.partial(setattr, self, "_is_on", False)

    def _moving(self, torch: Any, name: str) -> Any:
        move = getattr(torch.Tensor, name)

        @functools.wraps(move)
        def moved(source: Any, *args: Any, **kwargs: Any) -> Any:
            is_plain = type(source) in (torch.Tensor, torch.nn.Parameter)
            if (
                not is_plain or source.is_cuda or (source.requires_grad and torch.is_grad_enabled())
                or source.numel() * source.element_size() < LEAST_KEPT_BYTES or self.ended
            ):  # fmt: skip
                return move(source, *args, **kwargs)
            owner = _owner_of(source)
            place = source.data_ptr(), source.shape, source.stride(), source.dtype
            key = id(owner), place, name, args, tuple(sorted(kwargs.items()))
            try:
                before, at_all = self._seen.get(key), writes_of(source)
            except TypeError:  # of words that are no key
                return move(source, *args, **kwargs)
            kept = self._kept.get(key)
            is_kept = kept is not None and kept.owner is owner and kept.is_as_it_was()
            if kept is not None and kept.is_shared_and_written():
                self.end(WRITTEN)
            elif kept is not None and is_kept and self._is_on:
                kept.times += 1
                return kept.made
            new = move(source, *args, **kwargs)
            if kept is not None and is_kept and key not in self._compared:
                self._compared.add(key)
                self._compare(torch, kept.made, new)
            elif self._is_on and before is not None and before[0]() is owner:
                if before[1] == at_all and self.is_far(new) and self._has_room(torch, new):
                    if len(self._kept) >= MOST_KEPT:
                        del self._kept[next(iter(self._kept))]
                    self._kept[key] = _Copy(
                        owner, source, new, lambda rows: move(rows, *args, **kwargs)
                    )
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen[key] = weakref.ref(owner), at_all
            return new

        return moved

    def look(self) -> None:
        """Whether what is kept is what would be copied: of some of it, each time of others."""
        left_bytes, is_other = MOST_COMPARED_BYTES, False
        for key in list(self._kept):
            kept = self._kept.pop(key)
            self._kept[key] = kept  # the last to be looked at again
            is_other = is_other or kept.is_shared_and_written() or kept.differs()
            left_bytes -= kept.made.nbytes
            if left_bytes < 0:
                break
        if is_other or (self._differs is not None and bool(self._differs)):
            self.end(WRITTEN)

    def _compare(self, torch: Any, kept: Any, new: Any) -> None:
        """Whether both have the same bits is known once the block is over: nothing waits."""
        bits = [each.detach().contiguous().view(torch.uint8) for each in (kept, new)]
        differs = (bits[0] != bits[1]).any()
        self._differs = differs if self._differs is None else self._differs | differs

    def is_far(self, made: Any) -> bool:
        """Whether it is on a GPU."""
        return bool(made.is_cuda)

    def _has_room(self, torch: Any, made: Any) -> bool:
        """Whether as much again, which is compared with it, and as much for that are free."""
        free_bytes = free_bytes_of_gpu(torch, made.device if made.is_cuda else None)
        return bool(4 * made.numel() * made.element_size() < free_bytes)


def _owner_of(source: Any) -> Any:
    """What lives as long as the memory that a tensor shows: slices are made anew for each copy. A
    view counts what is written to its base, by whichever view; `x.data`, which has a count of its
    own and no base, is a tensor of its own. In inference mode views have no base, and nothing is
    counted: their storage is what is left."""
    if source.is_inference():
        return source.untyped_storage()
    return source if source._base is None else source._base


class _Copy:
    """A tensor, and what it was copied to."""

    def __init__(self, owner: Any, source: Any, made: Any, move: Any) -> None:
        self.owner, self.source, self.made, self._move = owner, source, made, move
        self._writes = writes_of(source), writes_of(made)
        self.times = 1
        """Times that the program was given the copy."""

    def is_as_it_was(self) -> bool:
        """Whether neither was written to, as far as that is counted."""
        return (writes_of(self.source), writes_of(self.made)) == self._writes

    def is_shared_and_written(self) -> bool:
        """Whether the program has written to what it was given in another place, too."""
        return self.times > 1 and writes_of(self.made) != self._writes[1]

    def differs(self) -> bool:
        """Whether rows would be copied to something else by now."""
        rows = rows_all_over(self.source)
        return self.is_as_it_was() and differ(self._move(rows), rows_all_over(self.made))


WRITTEN = "what is copied again was written to between"
MOST_SEEN, MOST_KEPT = 10_000, 1024
"""Copies of different tensors that are remembered, and that are kept."""
