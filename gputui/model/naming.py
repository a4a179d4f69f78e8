"""What the names of CUDA calls, kernels and NVTX domains reveal."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

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
    for found in _BRACKET.finditer(text):
        i, character = found.start(), found[0]
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
        return ("command", *arguments[:2], *(one for one in arguments[2:] if one.endswith(".py")))
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
