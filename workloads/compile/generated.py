"""What the compiler generated: kernels and library calls in its code, operations without it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_TRITON_CALL = re.compile(r"^\s*(triton_\w+)\.run\(", re.MULTILINE)
_CPP_CALL = re.compile(r"^\s*(cpp_fused\w*)\(", re.MULTILINE)
_LIBRARY_CALL = re.compile(r"^\s*(?:\w+ = )?(?:extern_kernels|aten|torch\.ops\.aten)\.(\w+)", re.M)

# Operations that launch nothing but are not views either.
_NO_KERNEL = {
    "aten::detach", "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::lift_fresh",
    "aten::_unsafe_view", "aten::new_empty", "aten::alias", "aten::empty.memory_format",
}  # fmt: skip


def calls(code: Iterable[str]) -> Counter[str]:
    """How often each kernel or library function is called in the compiler's output."""
    calls_by_name: Counter[str] = Counter()
    for source in code:
        for pattern in (_TRITON_CALL, _CPP_CALL):
            calls_by_name.update(pattern.findall(source))
        calls_by_name.update(f"library: {name}" for name in _LIBRARY_CALL.findall(source))
    return calls_by_name


def source_lines(kernel: str, code: Iterable[str]) -> list[str]:
    """The source of a generated kernel, without empty lines at its ends; none of a library's."""
    pattern = re.compile(
        rf"^{re.escape(kernel)} = async_compile\.\w+\(.*?\'\'\'(.*?)\'\'\'", re.M | re.S
    )
    source = next(filter(None, map(pattern.search, code)), None)
    return source[1].strip("\n").splitlines() if source else []


def source_files() -> dict[str, str]:
    """What Inductor has generated so far in this process: the path of each file by its text."""
    from torch._inductor.codecache import PyCodeCache

    modules = getattr(PyCodeCache, "modules", ())
    files = [str(module.__file__) for module in modules if getattr(module, "__file__", None)]
    return {Path(name).read_text(encoding="utf-8"): name for name in files if Path(name).is_file()}


def ptx_file(kernel: str) -> str | None:
    """The newest PTX of a Triton kernel in the caches of Triton and Inductor; None without one."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    folders = [
        Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"),
        Path(cache_dir()) / "triton",
    ]
    files = [path for folder in folders for path in folder.glob(f"**/{kernel}.ptx")]
    return str(max(files, key=lambda path: path.stat().st_mtime)) if files else None


class CountOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside `with`, `count` grows by one for every operation that computes something.

    Each launches one kernel on a GPU, or a few: it is a lower bound of launches.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        arguments: tuple[Any, ...] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        is_view = bool(getattr(function, "is_view", False))
        self.count += not is_view and function._schema.name not in _NO_KERNEL
        return function(*arguments, **(keywords or {}))
