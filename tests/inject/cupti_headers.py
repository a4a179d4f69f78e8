"""Where NVIDIA's own headers place the fields that the capture library reads of CUPTI's records.

    python tests/inject/cupti_headers.py FOLDER/12.1.105 … > tests/data/cupti_fields.json

Each folder, named after a version, holds the headers of one pip package (nvidia-cuda-cupti-cu12 or
nvidia-cuda-cupti). A C compiler measures them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from gputui.inject.build import CAPTURE

FIELDS = CAPTURE.source.with_name("cupti_fields.h")

_RECORDS = {
    "activity": "",
    "kernel": "Kernel",
    "memcpy": "Memcpy",
    "memcpy_peer": "MemcpyPtoP",
    "memset": "Memset",
    "api": "API",
    "graph": "GraphTrace",
}
_CALLBACK_DATA = {
    "callback": "CUpti_CallbackData",
    "resource": "CUpti_ResourceData",
    "graph_data": "CUpti_GraphData",
}
_TRANSFERS = ("memcpy", "memcpy_peer", "memset")

# What the headers take from CUDA's own, which are in no small package.
_CUDA = """
#pragma once
#include <stddef.h>
#include <stdint.h>
typedef struct { char bytes[16]; } CUuuid;
typedef struct {
    void *base; size_t bytes; float ratio; int hit, miss;
} CUaccessPolicyWindow;
typedef int CUdevice, CUdevice_attribute, CUgraphNodeType, CUstreamAttrID;
typedef union { char bytes[64]; } CUstreamAttrValue;
typedef void *CUcontext, *CUstream, *CUevent, *CUgraph, *CUgraphExec, *CUgraphNode;
"""

Place = tuple[int, int]
"""Offset and size, in bytes."""


def fields_read() -> dict[str, Place]:
    """`record.field` → where the capture library reads it; a field of all transfers thrice."""
    found: dict[str, Place] = {}
    sizes = {
        "uint8_t": 1,
        "uint16_t": 2,
        "uint32_t": 4,
        "uint64_t": 8,
        "const char *": 8,
        "void *": 8,
    }
    for record, field, kind, offset in re.findall(
        r"^    FIELD\((\w+), (\w+), ([^,]+), (\d+)\)", FIELDS.read_text(), re.MULTILINE
    ):
        for each in _TRANSFERS if record == "transfer" else (record,):
            found[f"{each}.{field}"] = (int(offset), sizes[kind])
    return found


def fields_of(headers: Path) -> dict[str, Place]:
    """`record.field` → where a version of CUPTI places it in its newest form of the record."""
    text = (headers / "cupti_activity.h").read_text()
    newest = {
        record: "CUpti_Activity"
        + max(re.findall(rf"^}} CUpti_Activity({name}\d*);", text, re.MULTILINE), key=_number)
        for record, name in _RECORDS.items()
    } | _CALLBACK_DATA
    lines = "".join(
        f'printf("{name} %zu %zu\\n", offsetof({newest[record]}, {field}), '
        f"sizeof((({newest[record]} *)0)->{field}));\n"
        for name in fields_read()
        for record, _, field in [name.partition(".")]
    )
    headers_used = ("stdio.h", "cupti_activity.h", "cupti_callbacks.h")
    includes = "".join(f"#include <{name}>\n" for name in headers_used)
    program = f"{includes}int main(void) {{ {lines} }}"
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cuda.h", "builtin_types.h"):
            Path(folder, name).write_text(_CUDA)
        binary = f"{folder}/fields"
        command = ["cc", "-x", "c", "-w", f"-I{folder}", f"-I{headers}", "-", "-o", binary]
        subprocess.run(command, input=program, text=True, check=True)
        printed = subprocess.check_output([binary], text=True)
    rows = (line.split() for line in printed.splitlines())
    return {name: (int(offset), int(size)) for name, offset, size in rows}


def _number(struct: str) -> int:
    return int(re.sub(r"\D", "", struct) or 0)


def api_version(headers: Path) -> int:
    """CUPTI's own number of its version."""
    (number,) = re.findall(
        r"#define CUPTI_API_VERSION (\d+)", (headers / "cupti_version.h").read_text()
    )
    return int(number)


if __name__ == "__main__":
    versions = {
        Path(folder).name: {
            "api_version": api_version(Path(folder)),
            "fields": fields_of(Path(folder)),
        }
        for folder in sys.argv[1:]
    }
    print(json.dumps(versions, separators=(",", ":")).replace('},"1', '},\n"1'))
