"""Where NVIDIA's own headers place the fields of the parameters that the sampler passes to CUPTI.

    python -m tests.counters.cupti_structs FOLDER/13.0.85 … > tests/data/cupti_structs.json

Each folder, named after a version, holds the headers of one pip package (nvidia-cuda-cupti). A C
compiler measures them, as it does those of `cupti_sampling.h`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gputui.inject.build import COUNTERS

OURS = COUNTERS.source.with_name("cupti_sampling.h")

_BEGIN = {"size": "structSize", "unused": "pPriv"}
_HOST = {**_BEGIN, "host": "pHostObject"}
_SAMPLING = {**_BEGIN, "sampling": "pPmSamplingObject"}

STRUCTS: dict[str, tuple[str, dict[str, str]]] = {
    "ProfilerInitialize": ("CUpti_Profiler_Initialize_Params", _BEGIN),
    "ChipName": (
        "CUpti_Device_GetChipName_Params",
        {**_BEGIN, "device": "deviceIndex", "chip": "pChipName"},
    ),
    "HostInitialize": (
        "CUpti_Profiler_Host_Initialize_Params",
        {
            **_HOST, "profiler": "profilerType", "chip": "pChipName",
            "availability": "pCounterAvailabilityImage",
        },
    ),
    "HostDeinitialize": ("CUpti_Profiler_Host_Deinitialize_Params", _HOST),
    "HostAddMetrics": (
        "CUpti_Profiler_Host_ConfigAddMetrics_Params",
        {**_HOST, "names": "ppMetricNames", "count": "numMetrics"},
    ),
    "HostConfigSize": (
        "CUpti_Profiler_Host_GetConfigImageSize_Params",
        {**_HOST, "bytes": "configImageSize"},
    ),
    "HostConfigImage": (
        "CUpti_Profiler_Host_GetConfigImage_Params",
        {**_HOST, "bytes": "configImageSize", "image": "pConfigImage"},
    ),
    "HostPasses": (
        "CUpti_Profiler_Host_GetNumOfPasses_Params",
        {**_BEGIN, "bytes": "configImageSize", "image": "pConfigImage", "passes": "numOfPasses"},
    ),
    "HostEvaluate": (
        "CUpti_Profiler_Host_EvaluateToGpuValues_Params",
        {
            **_HOST, "image": "pCounterDataImage", "bytes": "counterDataImageSize",
            "index": "rangeIndex", "names": "ppMetricNames", "count": "numMetrics",
            "values": "pMetricValues",
        },
    ),
    "SamplingAvailability": (
        "CUpti_PmSampling_GetCounterAvailability_Params",
        {
            **_BEGIN, "device": "deviceIndex", "bytes": "counterAvailabilityImageSize",
            "image": "pCounterAvailabilityImage",
        },
    ),
    "SamplingEnable": ("CUpti_PmSampling_Enable_Params", {**_SAMPLING, "device": "deviceIndex"}),
    "SamplingObject": ("CUpti_PmSampling_Start_Params", _SAMPLING),
    "SamplingConfig": (
        "CUpti_PmSampling_SetConfig_Params",
        {
            **_SAMPLING, "config_bytes": "configSize", "config": "pConfig",
            "buffer_bytes": "hardwareBufferSize", "interval": "samplingInterval",
            "trigger": "triggerMode", "append": "hwBufferAppendMode",
        },
    ),
    "SamplingImageSize": (
        "CUpti_PmSampling_GetCounterDataSize_Params",
        {
            **_SAMPLING, "names": "pMetricNames", "count": "numMetrics", "samples": "maxSamples",
            "bytes": "counterDataSize",
        },
    ),
    "SamplingImageInitialize": (
        "CUpti_PmSampling_CounterDataImage_Initialize_Params",
        {**_SAMPLING, "bytes": "counterDataSize", "image": "pCounterData"},
    ),
    "SamplingDecode": (
        "CUpti_PmSampling_DecodeData_Params",
        {
            **_SAMPLING, "image": "pCounterDataImage", "bytes": "counterDataImageSize",
            "stop_reason": "decodeStopReason", "overflow": "overflow",
        },
    ),
    "SamplingImageInfo": (
        "CUpti_PmSampling_GetCounterDataInfo_Params",
        {
            **_BEGIN, "image": "pCounterDataImage", "bytes": "counterDataImageSize",
            "total": "numTotalSamples", "populated": "numPopulatedSamples",
            "completed": "numCompletedSamples",
        },
    ),
    "SamplingSampleInfo": (
        "CUpti_PmSampling_CounterData_GetSampleInfo_Params",
        {
            **_SAMPLING, "image": "pCounterDataImage", "bytes": "counterDataImageSize",
            "index": "sampleIndex", "start_ns": "startTimestamp", "end_ns": "endTimestamp",
        },
    ),
}  # fmt: skip
"""Our name of each, NVIDIA's, and NVIDIA's name of each of its fields."""

ALSO_OBJECTS = ("CUpti_PmSampling_Stop_Params", "CUpti_PmSampling_Disable_Params")
"""Structures that are the same as that of starting."""

VALUES = {
    "PROFILER_PM_SAMPLING": "CUPTI_PROFILER_TYPE_PM_SAMPLING",
    "TRIGGER_SYSCLK_CYCLES": "CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_SYSCLK_INTERVAL",
    "TRIGGER_TIME_NS": "CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_TIME_INTERVAL",
    "APPEND_KEEP_OLDEST": "CUPTI_PM_SAMPLING_HARDWARE_BUFFER_APPEND_MODE_KEEP_OLDEST",
    "CUPTI_OK": "CUPTI_SUCCESS",
    "CUPTI_INVALID_OPERATION": "CUPTI_ERROR_INVALID_OPERATION",
    "CUPTI_OUT_OF_MEMORY": "CUPTI_ERROR_OUT_OF_MEMORY",
    "CUPTI_HARDWARE_BUSY": "CUPTI_ERROR_HARDWARE_BUSY",
    "CUPTI_INSUFFICIENT_PRIVILEGES": "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
    "CUPTI_MIG_NOT_SUPPORTED": "CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED",
}

_THEIRS = (
    "cupti_result.h", "cupti_target.h", "cupti_profiler_target.h", "cupti_profiler_host.h",
    "cupti_pmsampling.h",
)  # fmt: skip
_STUBS = {
    "cuda.h": "#include <stdint.h>\ntypedef void *CUcontext;\ntypedef int CUdevice;\n",
    "string": "",  # of C++, which the header of the host's functions includes for nothing
}


def ours() -> dict[str, int]:
    """`Struct.field` → offset, size; constants by name: as our header has them."""
    rows = {name: {field: field for field in fields} for name, (_, fields) in STRUCTS.items()}
    return _measured([str(OURS)], [], {name: (name, rows[name]) for name in rows}, VALUES.keys())


def theirs(headers: Path) -> dict[str, int]:
    """The same by our names, as a version of NVIDIA's headers has them."""
    found = _measured(_THEIRS, [str(headers)], STRUCTS, VALUES.values())
    for name in ALSO_OBJECTS:
        alike = _measured(_THEIRS, [str(headers)], {"SamplingObject": (name, _SAMPLING)}, ())
        assert alike.items() <= found.items(), name
    return {_OUR_VALUES.get(name, name): value for name, value in found.items()}


_OUR_VALUES = {theirs: ours for ours, theirs in VALUES.items()}


def _measured(
    headers: Iterable[str],
    folders: Iterable[str],
    structs: dict[str, tuple[str, dict[str, str]]],
    values: Iterable[str],
) -> dict[str, int]:
    prints = [f'printf("{value} %d\\n", (int){value});' for value in values]
    for ours, (name, fields) in structs.items():
        for of_ours, field in fields.items():
            place = f"(offsetof({name}, {field}) << 8 | sizeof((({name} *)0)->{field}))"
            prints.append(f'printf("{ours}.{of_ours} %zu\\n", {place});')
    includes = "".join(f'#include "{header}"\n' for header in headers)
    program = f"#include <stdio.h>\n#include <stddef.h>\n{includes}"
    program += f"int main(void) {{ {' '.join(prints)} return 0; }}"
    with tempfile.TemporaryDirectory() as folder:
        for name, text in _STUBS.items():
            Path(folder, name).write_text(text)
        binary = f"{folder}/structs"
        includes_of = [f"-I{place}" for place in (folder, *folders)]
        command = ["cc", "-x", "c", "-w", *includes_of, "-", "-o", binary]
        subprocess.run(command, input=program, text=True, check=True)
        printed = subprocess.check_output([binary], text=True)
    return {name: int(value) for name, value in (line.split() for line in printed.splitlines())}


if __name__ == "__main__":
    versions = {Path(folder).name: theirs(Path(folder)) for folder in sys.argv[1:]}
    print(json.dumps(versions, separators=(",", ":")).replace('},"1', '},\n"1'))
