"""Samples of a day that take half the memory: figures that are equal are one object."""

from __future__ import annotations

from operator import attrgetter

from msgspec.structs import force_setattr

from gputui.model.events import GpuSample, MachineSample

_MOST = 1 << 15
"""Figures remembered; after so many all are forgotten, as most that come are new then."""

_NAMES = GpuSample.__struct_fields__
_figures = attrgetter(*_NAMES)


class SharedFigures:
    """The figures that were met."""

    def __init__(self) -> None:
        self._known: dict[float, float] = {}
        self._whole: dict[int, int] = {}

    def share(self, sample: MachineSample) -> None:
        """Put figures that were met before in the place of equal ones. The sample must be new:
        nobody else may read it yet."""
        if len(self._known) > _MOST:
            self._known.clear()
        if len(self._whole) > _MOST:
            self._whole.clear()
        for figures in sample.gpus:
            for name, value in zip(_NAMES, _figures(figures), strict=True):
                if not value:  # 0.0 and -0.0 are equal, and are shown as they are
                    continue
                if type(value) is float:
                    known = self._known.setdefault(value, value)
                elif type(value) is int:
                    known = self._whole.setdefault(value, value)
                else:
                    continue
                if known is not value:
                    force_setattr(figures, name, known)
