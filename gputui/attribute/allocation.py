"""Keep memory that arrays give back: without this, a third of reading is page faults."""

from __future__ import annotations

import contextlib
import ctypes
import functools

KEPT_BYTES = 128 << 20
"""Free memory that stays with the process; glibc hands back from 128 KiB on, and every array of a
batch would be new pages."""

MAPPED_BYTES = 32 << 20
"""Larger arrays still are pages of their own, which go back at once; the most that glibc takes."""

# malloc.h of glibc
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


@functools.cache
def keep_freed_memory() -> None:
    """For the rest of the process. Other C libraries than glibc are left alone."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES)
