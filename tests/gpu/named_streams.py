"""Names that a program gives its CUDA streams through NVTX, on a real GPU.

    python tests/gpu/named_streams.py

Records a program that names two streams and the device and copies and multiplies on them, and
checks that the tables call them so: CUPTI is asked which number a stream's handle has.
Needs torch, a C compiler and one GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAMS = Path(__file__).parents[1] / "inject" / "programs"

LIBRARY = """
#include "nvtx_loader.h"
int load(void) { return nvtx_load(); }
void name_device(long device, const char *name) { CUDART(1)((void *)device, name); }
void name_stream(void *stream, const char *name) { CUDART(3)(stream, name); }
"""

CHILD = """
import ctypes, sys, torch
nvtx = ctypes.CDLL(sys.argv[1])
nvtx.name_stream.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
assert nvtx.load() == 1
torch.cuda.init()
a = torch.ones(1024, 1024, device="cuda")
nvtx.name_device(0, b"trainer")
nvtx.name_stream(None, b"default")
streams = {name: torch.cuda.Stream() for name in ("compute", "copies")}
for name, stream in streams.items():
    nvtx.name_stream(stream.cuda_stream, name.encode())
host = torch.empty(1024, 1024, pin_memory=True)
for _ in range(20):
    with torch.cuda.stream(streams["compute"]):
        b = a @ a
    with torch.cuda.stream(streams["copies"]):
        host.copy_(a, non_blocking=True)
torch.cuda.synchronize()
"""


def main() -> int:
    """Print what was found; 0 when every name is there."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source, library = folder / "names.c", folder / "names.so"
        source.write_text(LIBRARY)
        include = f"-I{PROGRAMS}"
        flags = ["-shared", "-fPIC", "-w", include]
        subprocess.run(["cc", *flags, str(source), "-o", str(library), "-ldl"], check=True)
        recording = folder / "r.gputui"
        gputui = [sys.executable, "-m", "gputui"]
        subprocess.run(
            [*gputui, "--record", "-o", str(recording), "--",
             sys.executable, "-c", CHILD, str(library)], check=True,
        )  # fmt: skip
        told = subprocess.run(
            [*gputui, "summary", str(recording), "--format", "json"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        document = json.loads(told.stdout)
        streams = document["timing"]["streams"]
        for stream in streams:
            print(stream["stream"], stream["name"], stream["operations"])
        names = {stream["name"] for stream in streams}
        print("resources:", document["run"]["processes"][0]["resources"])
        missing = {"default", "compute", "copies"} - names
        print("missing:", sorted(missing) or "none")
        return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
