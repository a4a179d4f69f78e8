"""Names of CUDA calls, kernels, copies and NVTX domains: made readable, and what they reveal.

For the attribution, which names what it has captured, and for importers, which must arrive at the
same names.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import re
import zlib
from collections.abc import Callable, Sequence

from gputui.base.sanitize import sanitize

# Readable names: demangled kernels; calls and memory operations as nsys names them.

MAX_NAME = 4096
"""Longer names are cut and marked: Eigen and CUTLASS come near this."""

MAX_MANGLED = 16_384
"""Longer mangled names are not demangled."""

COPY_KINDS = {
    1: "Host-to-Device", 2: "Device-to-Host", 3: "Host-to-Array", 4: "Array-to-Host",
    5: "Array-to-Array", 6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device",
    9: "Host-to-Host", 10: "Peer-to-Peer", 11: "Unified Host-to-Device",
    12: "Unified Device-to-Host", 13: "Unified Device-to-Device",
}  # fmt: skip
"""CUpti_ActivityMemcpyKind; from 11 on nsys's ENUM_CUDA_MEMCPY_OPER, for what unified memory moved
by itself.
"""

UNIFIED_COPIES = 11
"""Copies of this kind and above are no call's."""

MEMORY_KINDS = {
    1: "pageable", 2: "pinned", 3: "device", 4: "array", 5: "managed", 6: "device static",
    7: "managed static",
}  # fmt: skip
"""CUpti_ActivityMemoryKind."""

MEMSET = "[CUDA memset]"

STEP_PATTERNS = tuple(
    re.compile(pattern + r"[\s#_:=]*\d*", re.IGNORECASE)
    for pattern in (
        r"(train|training|optimization|decode|generate|inference|engine)[\s_]?step",
        r"step",
        r"ProfilerStep\*?",
        r"(train|training)?[\s_]?iter(ation)?",
        r"(train|training)?[\s_]?batch",
    )
)
"""Common names of the range that is one step, the likeliest first."""

NOT_A_STEP = 1 << 30

_FOUR_DIGIT_VERSION = re.compile(r"_v\d{4}$")
_LAUNCH_SHIM = re.compile(r"^__(cuda\w+?)(_ptsz)?_v\d+$")
_LAUNCHES = re.compile(r"launch(?!HostFunc)|memcpy|memset", re.IGNORECASE)


def api_name(name: str) -> str:
    """A CUDA call as nsys prints it: `_v` and four digits dropped, five digits kept.

    Since CUDA 13 `cudaLaunchKernel` reaches CUPTI as `__cudaLaunchKernel_v13000`.
    """
    name = sanitize(name, MAX_NAME)
    if shim := _LAUNCH_SHIM.match(name):
        return shim[1] + (shim[2] or "")
    return _FOUR_DIGIT_VERSION.sub("", name)


def is_launch(name: str) -> bool:
    """Whether a call of this name puts work on a GPU, so that an operation should follow."""
    return _LAUNCHES.search(name) is not None


def copy_name(kind: int) -> str:
    """A copy as nsys prints it."""
    return f"[CUDA memcpy {COPY_KINDS.get(kind, 'Unknown')}]"


def step_rank(name: str, step_range: str | None) -> int:
    """How likely a range of this name is the step: 0 is likeliest, NOT_A_STEP is none."""
    if step_range is not None:
        return 0 if name == step_range else NOT_A_STEP
    for rank, pattern in enumerate(STEP_PATTERNS):
        if pattern.fullmatch(name):
            return rank
    return NOT_A_STEP


def demangle(mangled: str) -> str:
    """A C++ symbol demangled and sanitized; anything else only sanitized.

    Beyond MAX_NAME it ends in its length and a checksum of the symbol.
    """
    demangler = _demangler()
    text = mangled
    if demangler is not None and mangled.startswith("_Z") and len(mangled) <= MAX_MANGLED:
        text = demangler(mangled) or mangled
    if len(text) <= MAX_NAME:
        return sanitize(text, MAX_NAME)
    # Kernels that differ only further on stay distinct.
    mark = f"… [{len(text)} characters, {zlib.crc32(mangled.encode('utf-8', 'replace')):08x}]"
    return sanitize(text[: MAX_NAME - len(mark)]) + mark


@functools.cache
def _demangler() -> Callable[[str], str | None] | None:
    try:
        library = ctypes.CDLL(ctypes.util.find_library("stdc++") or "libstdc++.so.6")
        function = library.__cxa_demangle
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    free.restype = None
    free.argtypes = [ctypes.c_void_p]

    def demangle_with_libstdcxx(mangled: str) -> str | None:
        status = ctypes.c_int(-1)
        encoded = mangled.encode("utf-8", "replace")
        address = function(encoded, None, None, ctypes.byref(status))
        if not address:
            return None
        try:
            return ctypes.string_at(address).decode("utf-8", "replace")
        finally:
            free(address)

    return demangle_with_libstdcxx


LIBRARY_DOMAINS = (
    "nccl", "cccl", "cub", "thrust", "cublas", "cudnn", "cusparse", "cusolver", "cufft",
    "curand", "cutensor", "nvshmem", "ucx", "tensorrt", "nvjpeg", "cudf",
)  # fmt: skip
"""Prefixes of the domains in which NVIDIA's libraries annotate their own work."""

NO_NAME = "(no name)"
"""Replaces the empty string, and the missing message of a range or mark."""

OF_ONE_NAME = "of that name)"
"""Ends the name of several kernels in a table for people."""

PROFILER_STEP = "ProfilerStep"
"""torch.profiler's name of a step, which it follows with # and a number."""

OPERATOR_CATEGORY = "operator"
"""The category of ranges that a framework's profiler put around its operators."""

_KERNEL_LAUNCHES = re.compile(
    r"^(cudaLaunch(?!HostFunc)|cuLaunch(?!HostFunc)|cudaGraphLaunch|cuGraphLaunch)"
)

_MANY_KERNELS = re.compile("GraphLaunch|MultiDevice")


def is_library_domain(domain: str) -> bool:
    """Whether a domain belongs to a library rather than to the program."""
    return domain.lower().startswith(LIBRARY_DOMAINS)


def is_kernel_launch(call: str) -> bool:
    """Whether a CUDA call of this name puts kernels on a GPU.

    A graph launch is one call, however many nodes it has.
    """
    return _KERNEL_LAUNCHES.match(call) is not None


def launches_one_kernel(call: str) -> bool:
    """Whether a CUDA call of this name puts exactly one kernel on a GPU."""
    return is_kernel_launch(call) and not _MANY_KERNELS.search(call)


_BRACKET = re.compile("[<>(]")


@functools.lru_cache(maxsize=65536)
def short_name(name: str) -> str:
    """The function's own name: no return type, namespaces, template or call arguments.

    Like nsys's `:base` names: `void at::native::elementwise_kernel<128, …>(int, …)` becomes
    `elementwise_kernel`. A name that is not C++ is unchanged.
    """
    depth = 0
    end = len(name)
    anonymous = "(anonymous namespace)"
    text = name.replace(anonymous, "@" * len(anonymous))
    for bracket in _BRACKET.finditer(text):
        i, character = bracket.start(), bracket[0]
        if character == "<":
            if depth == 0:
                end = min(end, i)
            depth += 1
        elif character == ">":
            depth = max(0, depth - 1)
            if depth == 0 and text[i + 1 : i + 3] == "::":
                end = len(name)
        elif character == "(" and depth == 0:
            end = min(end, i)
            break
    head = text[:end].rstrip()
    base = head.rsplit("::", 1)[-1] if depth == 0 or "<" not in head else head
    base = base.rsplit(" ", 1)[-1] if not name.startswith("[") else name
    return base.replace("@" * len(anonymous), anonymous) or name


def command_key(kind: str | None, name: str | None, arguments: Sequence[str]) -> tuple[str, ...]:
    """What runs of one command share: a workload's name, or a program with its script, and with
    the scripts that are behind those: a wrapper runs programs that have nothing in common."""
    if kind == "command":
        return (
            "command",
            *arguments[:2],
            *(argument for argument in arguments[2:] if argument.endswith(".py")),
        )
    return (kind or "", name or "")


def operands(arguments: Sequence[str]) -> tuple[str, ...]:
    """The words of a command that are neither options, nor what follows one, nor numbers: with
    others a program may do other work."""
    before = ("", *arguments)
    return tuple(
        word
        for word, last in zip(arguments, before, strict=False)
        if not word.startswith("-") and not last.startswith("-") and not _NUMBER.fullmatch(word)
    )


_NUMBER = re.compile(r"[\d.,eE+-]+")
