"""Writes to a small ring in bursts and reads it in between, as its standard input says: lines of
numbers, pushes and reads in turn. Prints what stood in the ring: numbers of pushes, and losses.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

from gputui.ring import RecordKind
from gputui.ring.reader import RingReader


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    library.gputui_name.restype = ctypes.c_void_p
    library.gputui_push.argtypes = [ctypes.c_void_p]
    name = library.gputui_name(b"range")
    (path,) = Path(os.environ["GPUTUI_CAPTURE_DIR"]).glob("*.ring")
    ring = RingReader(path)
    for line in sys.stdin:
        found: list[tuple[str, int]] = []

        def read(most: int, found: list[tuple[str, int]] = found) -> None:
            records = ring.read(most)
            assert (records["start"] <= records["end"])[records["kind"] == RecordKind.LOST].all()
            columns = (records[name].tolist() for name in ("kind", "d", "value"))
            for kind, level, value in zip(*columns, strict=True):
                if kind == RecordKind.RANGE_PUSH:
                    found.append(("push", level))  # levels count them
                elif kind == RecordKind.LOST:
                    found.append(("lost", value))

        for turn, count in enumerate(json.loads(line)):
            if turn % 2:
                read(count)
            else:
                for _ in range(count):
                    library.gputui_push(name)
        read(1 << 16)
        library.gputui_push(name)  # there is room: what is missing before it is written
        read(1 << 16)
        print(json.dumps({"found": found, "dropped": ring.health().dropped}), flush=True)


if __name__ == "__main__":
    main()
