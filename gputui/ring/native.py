"""The functions of the monitor's own C library."""

from __future__ import annotations

import ctypes
import functools

from gputui.base.errors import GputuiError
from gputui.inject.build import RING
from gputui.inject.environment import library_path, missing_library_reason

_POINTER, _UINT64, _INT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int

FUNCTIONS: dict[str, tuple[type | None, list[type]]] = {
    "gputui_guard": (None, [_POINTER, _UINT64]),
    "gputui_unguard": (None, [_POINTER]),
    "gputui_ring_open": (_POINTER, [_POINTER, _UINT64, _UINT64]),
    "gputui_ring_read": (_UINT64, [_POINTER, _POINTER, _UINT64, _INT]),
    "gputui_ring_waiting": (_UINT64, [_POINTER]),
    "gputui_ring_hold": (_UINT64, [_POINTER, _UINT64]),
    "gputui_ring_close": (None, [_POINTER]),
    "gputui_watch_open": (_POINTER, [ctypes.c_char_p, _UINT64]),
    "gputui_watch_add": (None, [_POINTER, _POINTER]),
    "gputui_watch_remove": (None, [_POINTER, _POINTER]),
    "gputui_watch_run": (_INT, [_POINTER, ctypes.c_int64]),
    "gputui_watch_stop": (None, [_POINTER]),
    "gputui_watch_close": (None, [_POINTER]),
}


class RingError(GputuiError):
    """A ring cannot be read by this version or on this machine; the message is one line for
    people.
    """


@functools.cache
def ring_library() -> ctypes.CDLL:
    """The library, loaded. Raises RingError if there is none. Its functions run without the GIL."""
    if library_path() is None:
        raise RingError(missing_library_reason())
    library = ctypes.CDLL(str(RING.path))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
