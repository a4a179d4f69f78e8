"""Halves the memory of a day's samples: equal values share one object."""

from __future__ import annotations

from operator import attrgetter

from msgspec.structs import force_setattr

from gputui.model.events import GpuSample, MachineSample

_MOST = 1 << 15
"""Values remembered; beyond this all are forgotten, because most new ones differ by then."""

_NAMES = GpuSample.__struct_fields__
_figures = attrgetter(*_NAMES)


class SharedFigures:
    """The values seen so far."""

    def __init__(self) -> None:
        self._known: dict[float, float] = {}
        self._whole: dict[int, int] = {}

    def share(self, sample: MachineSample) -> None:
        """Replace values by equal ones seen before. The sample must be new: nobody else may hold it
        yet.
        """
        if len(self._known) > _MOST:
            self._known.clear()
        if len(self._whole) > _MOST:
            self._whole.clear()
        for figures in sample.gpus:
            for name, value in zip(_NAMES, _figures(figures), strict=True):
                if not value:  # 0.0 and -0.0 are equal, but print differently
                    continue
                if type(value) is float:
                    known = self._known.setdefault(value, value)
                elif type(value) is int:
                    known = self._whole.setdefault(value, value)
                else:
                    continue
                if known is not value:
                    force_setattr(figures, name, known)
