"""One capture library under many versions of libcupti: what is traced with each.

    python tests/gpu/cupti_versions.py FOLDER/12.1.105/libcupti.so.12 …

Needs a GPU and nvcc. Runs every_kind.cu, whose operations are known, under `gputui --record` with
each file, and prints a line each; status 1 where one lost or misread something that it traced. A
libcupti newer than the driver knows may refuse to start: then gputui must say so, and the program
must run on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KNOWN = {
    "kernels": 200,
    "graph": 100,
    "launches": 200,
    "copies to device": 50,
    "copies to host": 50,
    "memsets": 40,
    "pageable MiB": 60 * (1 << 16) / (1 << 20),
    "cudaMalloc": 11,
    "graph launches": 20,
}


def build(folder: Path) -> Path:
    """The program."""
    compiler = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if compiler is None:
        sys.exit("no nvcc: every_kind.cu needs CUDA's compiler on the PATH")
    target = folder / "every_kind"
    source = Path(__file__).with_name("programs") / "every_kind.cu"
    subprocess.run([compiler, "-O2", "-o", target, source, "-ldl"], check=True)
    return target


def record(program: Path, library: str, folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """The summary of a run of it under one libcupti, and its copies by kind of memory."""
    path = folder / f"{Path(library).parent.name}.gputui"
    gputui = [sys.executable, "-m", "gputui"]
    subprocess.run(
        [*gputui, "--record", "-o", str(path), "--", str(program)],
        check=True,
        env=os.environ | {"GPUTUI_CUPTI_PATH": library},
        stderr=subprocess.DEVNULL,
    )
    words = [*gputui, "summary", str(path), "--format", "json"]
    summary, copies = (
        json.loads(subprocess.run([*words, *more], check=True, capture_output=True).stdout)
        for more in ([], ["--table", "memory_copies"])
    )
    return summary, copies["rows"]


def found(document: dict[str, Any], copies: list[Any]) -> dict[str, float]:
    """The same figures as KNOWN."""
    phases = {row["path"]: row for row in document["phases"]}
    calls = {row["name"]: row["num_calls"] for row in document["api"]}
    sizes = {row["operation"]: row for row in document["memops_size"]}

    def operations(word: str) -> float:
        return sum(row["count"] for name, row in sizes.items() if word in name)

    pageable = sum(row["Total (bytes)"] for row in copies if "pageable" in (row["From"], row["To"]))
    return {
        "kernels": phases["kernels"]["kernels"],
        "graph": phases["graph"]["kernels"],
        "launches": phases["kernels"]["launches"],
        "copies to device": operations("Host-to-Device"),
        "copies to host": operations("Device-to-Host"),
        "memsets": operations("memset"),
        "pageable MiB": pageable / (1 << 20),
        "cudaMalloc": calls.get("cudaMalloc", 0),
        "graph launches": sum(n for name, n in calls.items() if name.startswith("cudaGraphLaunch")),
    }


def main() -> int:
    """Build, run under each, print."""
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        for library in sys.argv[1:]:
            version = Path(library).parent.name
            document, copies = record(program, library, Path(name))
            processes = document["run"]["processes"]
            states = {process["cuda_status"] for process in processes}
            if states != {"tracing"}:
                print(f"{version:<10} not traced: {'; '.join(sorted(states))}")
                continue
            seen = found(document, copies)
            differing = [
                f"{what} {seen[what]:g} for {KNOWN[what]:g}"
                for what in KNOWN
                if seen[what] != KNOWN[what]
            ]
            wrong += bool(differing)
            said = ", ".join(differing) or f"all {len(KNOWN)} figures as known"
            spoke = ", ".join(sorted({str(process["cupti_version"]) for process in processes}))
            print(f"{version:<10} API {spoke:<8} {said}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
