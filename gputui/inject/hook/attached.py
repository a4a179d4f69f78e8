"""Runs in a Python program that gputui attaches to, and again as it detaches.

Registers torch's global forward hooks, so that a program without NVTX shows phases, puts ranges
around the turns of transformers' continuous batching, and shows the nvtx package the tool that it
missed at its import. All are taken back on detaching. The capture
library contains this text and runs it in a thread of its own with the interpreter's lock, in a
namespace with `hook_source` (the text of torch_ranges.py), the addresses of the library's
functions and `wanted`; it reads `answer`: 0 nothing to do, 2 done, 3 failed.

If anything fails here, the program goes on without ranges. Python 3.8 and later; nothing of gputui
is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
import types
import warnings
from typing import Any

given: dict[str, Any] = globals()
"""What the library gives."""

NOTHING, HOOKED, FAILED = 0, 2, 3
NVTX_VERSIONS = {"0.2.15", "0.2.16", "0.2.17"}
"""Of the nvtx package, whose way of turning itself off is known."""


def _hook() -> Any:
    """The start-up hook's way of naming modules."""
    module = types.ModuleType("_gputui_hook")
    module.__dict__["__file__"] = "<gputui>"
    exec(compile(given["hook_source"], "<gputui>", "exec"), module.__dict__)
    return module


def _ranges(hook: Any) -> Any:
    class Given(hook.Ranges):  # type: ignore[misc]
        """Push and pop by their addresses: an attached library has no name to load it by."""

        def __init__(self) -> None:
            self._define = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(
                given["name_address"]
            )
            self.push = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(given["push_address"])
            self.pop = ctypes.PYFUNCTYPE(None)(given["pop_address"])
            self._handles: dict[str, int] = {}

    return Given()


def _hook_modules(hook: Any, torch: Any, ranges: Any) -> list[Any]:
    """Handles of the hooks around every module's forward."""

    class Named(hook.Modules):  # type: ignore[misc]
        """The first call seen may be of an inner module, which a later, outer one renames."""

        def _name(self, root: Any) -> Any:
            try:
                for path, module in hook.submodules(root):
                    self._keep(module, ".".join(path) or type(module).__name__)
                return self._handles[id(root)]
            except Exception:
                return None

    named = Named(ranges)
    handles, name, push, pop = named._handles, named._name, ranges.push, ranges.pop
    is_compiling, entered = hook.compiling(torch), threading.local()

    def before(module: Any, _arguments: Any) -> None:
        if is_compiling():
            return
        key = id(module)
        push(handles[key] if key in handles else name(module))
        try:
            entered.modules.append(key)
        except AttributeError:
            entered.modules = [key]

    def after(module: Any, _arguments: Any, _result: Any) -> None:
        if is_compiling():
            return
        # A call that had begun before is not ours to end.
        modules = getattr(entered, "modules", None)
        if modules and modules[-1] == id(module):
            modules.pop()
            pop()

    hooks = torch.nn.modules.module
    first = hooks.register_module_forward_pre_hook(before)
    try:
        return [first, hooks.register_module_forward_hook(after, always_call=True)]
    except BaseException:
        first.remove()
        raise


def _silence(torch: Any) -> Any:
    """torch.compile warns of global hooks at each compiled module's next call."""
    del torch
    warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global")
    return warnings.filters[0]


def _show_tool(nvtx: Any) -> bool:
    """Give the nvtx package real domains; whether it had none, and its version is known."""
    inner = nvtx.nvtx
    if getattr(inner, "dummy_domain", None) is None:
        return False
    if inner.get_domain() is not inner.dummy_domain or not inner._ENABLED:
        return False
    from importlib import import_module
    from importlib.metadata import version

    if version("nvtx") not in NVTX_VERSIONS:
        return False
    real, handle = inner.Domain, import_module("nvtx._lib.lib").DomainHandle

    def domain(name: Any = None) -> Any:
        made = object.__new__(real)
        made.handle = handle(name)
        made.__init__(name)
        return made

    domain(None)  # raises here rather than in the program
    inner.Domain = domain
    inner._get_domain_cached.cache_clear()
    for each in _annotations(inner):
        fresh = inner.annotate(*each.init_args)
        # The domain last: another thread may be entering it.
        each.mutable_payload, each.attributes = fresh.mutable_payload, fresh.attributes
        each.domain = fresh.domain
    state.nvtx = (inner, real)
    return True


def _annotations(inner: Any) -> list[Any]:
    return [each for each in gc.get_objects() if type(each) is inner.annotate]


def _hide_tool() -> None:
    inner, real = state.nvtx
    inner.Domain = real
    inner._get_domain_cached.cache_clear()
    for each in _annotations(inner):
        each.domain = inner.get_domain(each.init_args[2])


def _on() -> int:
    state.handles, state.filter, state.nvtx = [], None, None
    done = NOTHING
    nvtx = sys.modules.get("nvtx")
    if nvtx is not None:
        try:
            done = HOOKED if _show_tool(nvtx) else NOTHING
        except Exception:
            state.nvtx = None
    torch = sys.modules.get("torch")
    if torch is not None and getattr(getattr(torch, "nn", None), "Module", None) is not None:
        state.filter = _silence(torch)
        hook = _hook()
        ranges = _ranges(hook)
        state.handles = _hook_modules(hook, torch, ranges)
        for name, annotate in hook.ENGINES.items():
            if name in sys.modules:
                with contextlib.suppress(Exception):
                    state.handles += annotate(sys.modules[name], ranges)
        done = HOOKED
    return done


def _off() -> int:
    for handle in state.handles:
        handle.remove()
    if state.filter is not None and state.filter in warnings.filters:
        warnings.filters.remove(state.filter)  # type: ignore[attr-defined]
    if state.nvtx is not None:
        _hide_tool()
    state.handles, state.filter, state.nvtx = [], None, None
    return NOTHING


def _run() -> int:
    try:
        if not given["wanted"]:
            return _off()
        if state.handles or state.nvtx:
            return HOOKED
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            return FAILED  # threads that run at once were not tried
        return _on()
    except BaseException:
        return FAILED


state = globals().get("state") or types.SimpleNamespace(handles=[], filter=None, nvtx=None)
answer = _run()
