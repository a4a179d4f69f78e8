"""What a program does in Python that costs time: garbage collections, and calls that copy, wait for
the GPU or give its memory back, by the line that makes them.

Loaded by the start-up hook beside the sampler of lines (python_lines), which writes both into its
file, each since the one before it of the same kind and place: `g GENERATION LINE COUNT TOTAL_NS
LONGEST_NS OBJECTS` and `c CALL LINE COUNT BYTES SHAPE`; of texts that are copied to the GPU also
how many tokens of one batch since then are padding, as BYTES of `tokens.all` and `tokens.padding`.
LINE is 0 where it is not known.

Tensors that one line copies to the GPU again and again, the very same ones and unchanged, are
counted once more as `copied.again`.

Of layers that are given the very tensors again that they had before (LayerRepeats), how much of
what all layers compute is computed again, in MFLOP as BYTES of `layers.all` and `layers.repeated`;
`attention.weights`, calls of torch's attention that give its weights, and `forward.graded`, calls
of models that keep a graph for a backward pass. `loader.samples` are the
program's functions that make the samples of torch's DataLoader, with the number of its workers as
BYTES: python_lines has them of a loader that it finds waited for. Of tokens that a model is given,
how many were looked at and how many are a beginning that all texts share, as BYTES of
`beginning.all` and `beginning.shared`. `again.FUNCTION` are calls of functions whose result
follows from one tensor (an inverse, a transform, a cast) with the very tensor of the time before,
unchanged. `layers.uncached` are calls of graph convolutions that are given the same again and may
keep what they make of it (PyG's `cached`). `setting.NAME` are looks, once a second, at which the
library was set so, of `setting.looks`;
`compiler.breaks` how often its compiler has left a function in the middle.
Of calls of torch's scaled_dot_product_attention, looked at now and then: `attention.lengths`, with
how many looks found sizes of its tensors that none before had had as BYTES, and
`attention.causal`, where its mask is a triangle, with the mask's size as BYTES.

Calls are seen by `sys.monitoring` (Python 3.12 on): the interpreter reports the calls in the
program's own code, and no longer of those that are of no interest after the first. Nothing of torch
is wrapped, and its compiler sees the program as it is: from torch 2.9 on it skips such callbacks by
itself (pytorch/pytorch#158171); with an older one calls are not watched. Of two compiled trainings,
one with CUDA graphs, losses had the same bits with calls watched and without, and graphs were as
many (torch 2.11, H200). About 1 µs for a call that is counted (tests/bench/bench_facts.py). Nothing
of gputui is imported.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import time
import weakref
from typing import Any, Callable  # noqa: UP035

MOST_SITES = 2000
LONG_NS = 1_000_000
"""A collection of the youngest objects that takes as long is reported with its line, as is each
collection of all objects."""

SKIPS_CALLBACKS = (2, 9)
"""The version of torch from which its compiler skips what is registered with sys.monitoring."""

_TENSOR_CALLS = ("to", "cuda", "cpu", "item", "tolist", "numpy", "pin_memory")
# What reads a value where it is given a tensor.
_CASTS = {float: "float", int: "int", bool: "bool"}
_MOVES = ("to", "cuda")
AGAIN_BYTES, MOST_AGAIN, LOOKED_AT = 1 << 16, 64, 64
"""Bytes of a tensor from which it is seen whether a line copies it again, tensors of a line that
are remembered, and values of one that are looked at some ten times a second."""
_ATTENTION = "torch.nn.functional.scaled_dot_product_attention"
_FUNCTIONS = {
    "torch.nn.functional": ("scaled_dot_product_attention", "one_hot"),
    "torch.cuda": ("synchronize", "empty_cache"),
    "torch.utils.data": ("DataLoader",),
    "torch.nn": ("Embedding", "EmbeddingBag"),
    "gc": ("collect",),
    "cupy": ("asnumpy", "asarray", "array"),
    "jax": ("device_get", "device_put", "block_until_ready"),
}

_FOLLOWS = {
    "torch.linalg": "",
    "torch.fft": "",
    "jax.numpy.linalg": "",
    "jax.numpy.fft": "",
    "torch.nn.functional": "normalize softmax log_softmax interpolate pad unfold gelu silu",
    "torch": "inverse sort argsort unique cumsum softmax log_softmax norm cov corrcoef quantile "
    "median topk flip tril triu",
    "torch.Tensor": "inverse sort argsort unique cumsum softmax log_softmax norm topk contiguous "
    "float double half bfloat16 to_dense to_sparse to_sparse_csr coalesce repeat",
}
"""Functions, by what they are found in, whose result follows from their first tensor and what is
no tensor: all functions where none is named."""
_OWN_TYPE = {"float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16"}
CO_OPTIMIZED = 1
MOSTLY_AGAIN = 4
"""Calls with the same tensor for each with another one from which they are said to be again."""
LOOK_S = 1.0
_SETTINGS: dict[str, Callable[[Any], bool]] = {
    "xla.platform": lambda _: (
        "jax" in sys.modules and os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR") == "platform"
    ),
    "jax.debug": lambda _: (
        sys.modules["jax"].config.jax_debug_nans or sys.modules["jax"].config.jax_debug_infs
    ),
    "jax.no.jit": lambda _: sys.modules["jax"].config.jax_disable_jit,
    "cupy.no.pool": lambda _: sys.modules["cupy"].cuda.get_allocator().__name__ == "_malloc",
    "anomaly": lambda torch: torch.is_anomaly_enabled(),
    "cudnn.off": lambda torch: not torch.backends.cudnn.enabled,
    "profiler": lambda torch: bool(torch.autograd.profiler._is_profiler_enabled),
    "attention.written.out": lambda torch: not (
        torch.backends.cuda.flash_sdp_enabled() or torch.backends.cuda.mem_efficient_sdp_enabled()
    ),
}
"""What makes a program slow that is set somewhere, and true of it while it is."""
VARIES = 8
"""Calls in a row with another tensor after which those of a place are looked at no more."""

_TOKENS = re.compile(r"\d+x\d+:int(32|64):cpu")
TEXTS, SHORTEST, LEAST_VOCABULARY = 64, 16, 256
"""Texts of a batch that are looked at for padding, the first ones, tokens that they have at least,
and the least of their largest number: classes of pixels, up to 255, are no tokens."""

_HERE = os.path.dirname(os.path.abspath(__file__)).replace("\\", "/") + "/"
# Paths of code whose calls are not the program's: but those of trainers and of what moves their
# batches are.
_LIBRARIES = re.compile(
    r"/(site|dist)-packages/(torch|numpy|jax|jaxlib|cupy|triton|functorch)/"
    r"|/lib/python3[.\d]*/(?!(site|dist)-packages/)|^<|" + re.escape(_HERE)
)
_INSTALLED = re.compile(r"/(site|dist)-packages/")

Write = Callable[[str], Any]


class Facts:
    """What was seen since it was last written."""

    def __init__(self, program_frame: Callable[[Any], Any]) -> None:
        """`program_frame` finds the first frame of the program's own code among a frame and those
        that it was called from; None if there is none."""
        self._program_frame = program_frame
        self._began_ns = 0
        self._collections: dict[tuple[int, Any, int], list[int]] = {}
        self._sites: dict[tuple[int, int | str], list[Any]] = {}
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []
        """What the numbers of functions stand for: so that no other gets one of them."""
        self._tensor: Any = None
        self._follows: dict[int, str] = {}
        """Functions whose result follows from their first tensor, by their numbers."""
        self._given: dict[tuple[int, int], list[Any]] = {}
        """By the place of a call of one: its name, function and line; the tensor that it was given
        last, with what it was then; and how often it was the same, of how many bytes, and another
        one, also in a row."""
        self._tokens: dict[tuple[Any, int], list[int]] = {}
        """By line: tokens that were looked at as they are copied, and how many are padding."""
        self._repeats: LayerRepeats | None = None
        self._look_s = 0.0
        self._looks = self._breaks = 0
        self._is_set = False
        """Whether anything was set so; until then looks are not written."""
        self._attention = AttentionCalls()

    def watch_collections(self) -> None:
        """Have the interpreter say when it collects garbage."""
        gc.callbacks.append(self._collecting)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_ns = time.perf_counter_ns()
            return
        began_ns, self._began_ns = self._began_ns, 0
        if not began_ns:
            return
        ns = time.perf_counter_ns() - began_ns
        try:
            generation = info["generation"]
            # As little as can be is between the two readings of the clock that time a collection.
            key: tuple[int, Any, int] = (generation, None, 0)
            if generation == 2 or ns >= LONG_NS:
                frame = self._program_frame(sys._getframe(1))
                if frame is not None:
                    key = generation, frame.f_code, frame.f_lineno
            sums = self._collections.get(key)
            if sums is None:
                if len(self._collections) >= MOST_SITES:
                    return
                sums = self._collections[key] = [0, 0, 0, 0]
            sums[0] += 1
            sums[1] += ns
            sums[2] = max(sums[2], ns)
            sums[3] += info["collected"]
        except Exception:
            return  # the program goes on without

    def find_functions(self) -> None:
        """Look for the functions of interest in what is imported."""
        self._tensor = getattr(sys.modules.get("torch"), "Tensor", None)
        functions = [(getattr(self._tensor, name, None), name) for name in _TENSOR_CALLS]
        array = getattr(sys.modules.get("cupy"), "ndarray", None)
        functions.append((getattr(array, "get", None), "get"))
        for module, names in _FUNCTIONS.items():
            owner = sys.modules.get(module)
            functions += [(getattr(owner, name, None), f"{module}.{name}") for name in names]
        if self._tensor is not None:
            functions += list(_CASTS.items())
        for function, name in functions:
            if function is not None and id(function) not in self._names:
                self._kept.append(function)
                self._names[id(function)] = name

        for place, some in _FOLLOWS.items():
            home, _, last = place.rpartition(".")
            owner = sys.modules.get(place) or getattr(sys.modules.get(home), last, None)
            for name in some.split() or [each for each in dir(owner) if each.islower()]:
                function = getattr(owner, name, None)
                if name[0] != "_" and callable(function) and id(function) not in self._names:
                    self._kept.append(function)
                    self._follows[id(function)] = f"{place}.{name}".replace("torch.Tensor.", "")

    def watch_calls(self) -> bool:
        """Have the interpreter report calls in the program's code; False where it cannot."""
        tool = free_tool()
        if tool is None:
            return False
        monitoring: Any = getattr(sys, "monitoring")  # noqa: B009
        self.find_functions()
        events, off = monitoring.events, monitoring.DISABLE
        names, sites, new_site = self._names, self._sites, self._new_site
        casts = set(_CASTS.values())

        def called(code: Any, offset: int, function: Any, first: Any) -> Any:
            name = names.get(id(function))
            if name is None:
                follows = self._follows.get(id(function))
                return None if follows and self._see_given(code, offset, follows, first) else off
            if name in casts and type(first) is not self._tensor:
                return off
            try:
                site = sites.get((id(code), offset))
                if site is None:
                    site = new_site(code, offset, name)
                    if site is None:
                        return off
                looks = not site[0]
                if looks:
                    site[2] = _described(first)
                    if name == _ATTENTION:
                        self._attention.see(sys._getframe(1), first, offset, (site[4], site[5]))
                    if name in ("to", "cuda") and _TOKENS.fullmatch(site[2]):
                        tokens, padding = _padding(first)
                        # What is in there the thread that writes may take out at once.
                        seen = self._tokens.setdefault((site[4], site[5]), [0, 0])
                        seen[0] += tokens
                        seen[1] += padding
                site[0] += 1
                size = first.nbytes
                site[1] += size
                if site[7] is not None and size >= AGAIN_BYTES and not first.is_cuda:
                    _see_again(site, first, size, looks)
            except Exception:
                pass  # not a tensor: counted all the same
            return None

        def started(code: Any, _offset: int) -> Any:
            with contextlib.suppress(Exception):
                if not _LIBRARIES.search(code.co_filename):
                    monitoring.set_local_events(tool, code, events.CALL)
            return off

        self._repeats = LayerRepeats(tool, self._program_frame)
        monitoring.register_callback(tool, events.CALL, called)
        monitoring.register_callback(tool, events.PY_START, started)
        monitoring.set_events(tool, events.PY_START)
        frame: Any = sys._getframe(1)
        while frame is not None:  # a loop at the program's top level has begun already
            started(frame.f_code, 0)
            frame = frame.f_back
        return True

    def _see_given(self, code: Any, offset: int, name: str, tensor: Any) -> bool:
        """Compares what a function is given with what the same call was given the time before;
        whether the place is still worth it."""
        place = id(code), offset
        site = self._given.get(place)
        if site is None:
            if len(self._given) >= MOST_SITES:
                return False
            where = self._where(code, offset)
            site = self._given[place] = [name, *where, code, None, (), 0, 0, 0, 0]
        now: tuple[Any, ...]
        now, owner = (), None
        with contextlib.suppress(Exception):
            now, owner = _as_given(name, tensor)
        is_same = bool(now) and site[4] is not None and site[4]() is owner and site[5] == now
        site[4], site[5] = weakref.ref(owner) if now else None, now
        site[6] += is_same
        site[7] += now[0] if is_same else 0
        site[8] += not is_same
        site[9] = 0 if is_same else site[9] + 1
        return bool(site[9] <= VARIES)

    def _new_site(self, code: Any, offset: int, name: str) -> list[Any] | None:
        if len(self._sites) >= MOST_SITES:
            return None
        seen: dict[int, Any] | None = {} if name in _MOVES else None
        where = self._where(code, offset)
        site = self._sites[id(code), offset] = [0, 0, "-", name, *where, code, seen, 0, 0]
        return site

    def _where(self, code: Any, offset: int) -> tuple[Any, int]:
        """The function and line of a call: of a library's the program's that it was called from."""
        line = next(
            (line for begin, end, line in code.co_lines() if begin <= offset < end and line), 0
        )
        if _INSTALLED.search(code.co_filename):  # a trainer's: the line that called it says more
            frame = self._program_frame(sys._getframe(3))
            if frame is not None:
                return frame.f_code, frame.f_lineno
        return code, line

    def note(self, name: str, frame: Any, size: int) -> None:
        """Have something written once, with the program's line that a frame is called from."""
        frame = self._program_frame(frame)
        if frame is not None:
            self.note_code(name, frame.f_code, frame.f_lineno, size)

    def note_code(self, name: str, code: Any, line: int, size: int) -> None:
        """Have a line of a function written once."""
        key = id(code), name
        if key not in self._sites and len(self._sites) < MOST_SITES:
            self._sites[key] = [1, size, "-", name, code, line, code, None, 0, 0]

    def _write_settings(self, write: Write) -> None:
        now_s, torch = time.monotonic(), sys.modules.get("torch")
        if now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        self._looks += 1
        for name, is_set in _SETTINGS.items():
            with contextlib.suppress(Exception):  # a torch that has no such setting
                if is_set(torch):
                    write(f"c setting.{name} 0 1 0 -\n")
                    self._is_set = True
        if self._is_set:
            write(f"c setting.looks 0 {self._looks} 0 -\n")
            self._looks = 0
        with contextlib.suppress(Exception):
            counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
            breaks = sum(dict(counters.get("graph_break", {})).values())
            if breaks > self._breaks:
                write(f"c compiler.breaks 0 {breaks - self._breaks} 0 -\n")
                self._breaks = breaks

    def write(self, number: Callable[[Any, int], int], write: Write) -> None:
        """Write what is new; `number` gives the number of a line of a code object."""
        self._write_settings(write)
        for key in list(self._collections):
            generation, code, line = key
            count, total_ns, longest_ns, objects = self._collections.pop(key)
            place = number(code, line) if code is not None else 0
            write(f"g {generation} {place} {count} {total_ns} {longest_ns} {objects}\n")
        for site in list(self._sites.values()):
            count, size, shape, name, code, line, _, _, again, again_bytes = site
            if count:
                site[0], site[1] = 0, 0
                write(f"c {name} {number(code, line)} {count} {size} {shape}\n")
            if again:
                site[8], site[9] = 0, 0
                write(f"c copied.again {number(code, line)} {again} {again_bytes} {shape}\n")
        for name, function, line, _, _, _, same, size, others, _ in list(self._given.values()):
            if same > MOSTLY_AGAIN * others:
                write(f"c again.{name} {number(function, line)} {same} {size} -\n")
        for site in list(self._given.values()):
            site[6:9] = 0, 0, 0
        for where in list(self._tokens):
            tokens, padding = self._tokens.pop(where)
            if tokens:
                write(f"c tokens.all {number(*where)} 1 {tokens} -\n")
                write(f"c tokens.padding {number(*where)} 1 {padding} -\n")
        for where, looks, new, causal_bytes, shape in self._attention.drain():
            write(f"c attention.lengths {number(*where)} {looks} {new} {shape}\n")
            if causal_bytes:
                write(f"c attention.causal {number(*where)} 1 {causal_bytes} {shape}\n")
        if self._repeats is not None:
            self._repeats.look()
            while self._repeats.weights:
                where, count = self._repeats.weights.popitem()
                write(f"c attention.weights {number(*where)} {count} 0 -\n")
            while self._repeats.uncached:
                where, count = self._repeats.uncached.popitem()
                write(f"c layers.uncached {number(*where)} {count} 0 -\n")
            while self._repeats.graded:
                where, count = self._repeats.graded.popitem()
                write(f"c forward.graded {number(*where)} {count} 0 -\n")
            while self._repeats.beginnings:
                where, (whole, shared) = self._repeats.beginnings.popitem()
                write(f"c beginning.all {number(*where)} 1 {whole} -\n")
                write(f"c beginning.shared {number(*where)} 1 {shared} -\n")
            for where, whole, again in self._repeats.drain():
                write(f"c layers.all {number(*where)} 1 {whole} -\n")
                write(f"c layers.repeated {number(*where)} 1 {again} -\n")


MOST_LENGTHS, ROWS_OF_MASK, SMALLEST_MASK = 4096, 8, 32
"""Sizes of attention that a line had, rows of a mask that are looked at, and rows that it has."""
MASK_ARGUMENT = 4
"""Arguments by position from which the last one is a mask."""


class AttentionCalls:
    """Sizes and masks that lines give to scaled_dot_product_attention. Only its first argument is
    told: the others are looked for among the variables of the function that calls it."""

    def __init__(self) -> None:
        self._sites: dict[tuple[int, int], list[Any]] = {}
        """By the place of a call: its line; the sizes that it had; looks since it was asked last,
        and how many saw new sizes; its mask, in bytes where it is a triangle, None where that is
        not known, 0 where there is none; rows of it that are being copied; the shape of the newest
        queries; the code, which keeps its number."""

    def see(self, frame: Any, query: Any, offset: int, where: tuple[Any, int]) -> None:
        """Looks at one call, of the function of a frame."""
        code, torch = frame.f_code, sys.modules["torch"]
        site = self._sites.get((id(code), offset))
        if site is None:
            if len(self._sites) >= MOST_LINES:
                return
            mask_bytes = None if _has_mask(code, offset) else 0
            site = self._sites[id(code), offset] = [where, set(), 0, 0, mask_bytes, None, "-", code]
        variables = _variables(frame)
        given = [each for each in variables.values() if type(each) is torch.Tensor]
        alike = [
            each for each in given if each.ndim == query.ndim and each.shape[-1] == query.shape[-1]
        ]
        sizes = tuple(query.shape), max((each.shape[-2] for each in alike), default=0)
        site[2] += 1
        site[3] += sizes not in site[1]
        if len(site[1]) < MOST_LENGTHS:
            site[1].add(sizes)
        site[6] = _described(query)
        if site[4] is None:
            self._see_mask(site, variables.get("self"), given, query.shape[-2], torch)

    def _see_mask(
        self, site: list[Any], own: Any, given: list[Any], length: int, torch: Any
    ) -> None:
        # Asking for an event would end the recording of a CUDA graph.
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        if site[5] is not None:
            event, rows, step, size = site[5]
            if event is None or event.query():
                site[4], site[5] = size if _is_triangle(rows.tolist(), step) else 0, None
            return
        kept = list(getattr(own, "_buffers", {}).values())
        masks = [each for each in (*given, *kept) if _may_be_mask(each, length, torch)]
        if not masks or torch._C._len_torch_dispatch_stack():
            site[4] = 0
            return
        mask = masks[0]
        step = max(1, length // ROWS_OF_MASK)
        part = mask.detach()[..., :length:step, :length].reshape(-1, -(-length // step), length)[0]
        # Memory that is not pinned would have the program wait.
        rows = torch.empty(part.shape, dtype=part.dtype, device="cpu", pin_memory=mask.is_cuda)
        rows.copy_(part, non_blocking=True)
        event = torch.cuda.Event() if mask.is_cuda else None
        if event is not None:
            event.record()
        site[5] = event, rows, step, mask.nbytes

    def drain(self) -> list[tuple[tuple[Any, int], int, int, int, str]]:
        """By line: looks since it was asked last, how many saw new sizes, the bytes of a mask that
        is a triangle, and the queries' shape."""
        lines: list[tuple[tuple[Any, int], int, int, int, str]] = []
        for where, _, looks, new, mask_bytes, _, shape, _ in list(self._sites.values()):
            if looks:
                lines.append((where, looks, new, mask_bytes or 0, shape))
        for site in list(self._sites.values()):
            site[2:4] = 0, 0
        return lines


def _variables(frame: Any) -> dict[str, Any]:
    """The variables of the code that a frame runs, by their names."""
    names = frame.f_locals
    variables = dict(names)
    # Before Python 3.13 the frame of a function keeps what it gives: tensors that the function
    # deletes or makes anew would stay until it returns.
    if sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED:
        names.clear()
    return variables


def _has_mask(code: Any, offset: int) -> bool:
    """Whether a call is given attn_mask, by the names of its arguments or their number."""
    import dis

    names: Any = ()
    for each in dis.get_instructions(code):
        if each.opname in ("KW_NAMES", "LOAD_CONST") and each.arg is not None:
            value = code.co_consts[each.arg]
            names = value if type(value) is tuple and value else ()
        if each.offset == offset:
            return "attn_mask" in names or (each.arg or 0) - len(names) >= MASK_ARGUMENT
        if each.opname.startswith("CALL"):
            names = ()
    return False


def _may_be_mask(tensor: Any, length: int, torch: Any) -> bool:
    """Whether a tensor can be a mask of so many rows that is the same for all texts."""
    if type(tensor) is not torch.Tensor or not 2 <= tensor.ndim <= 4 or length < SMALLEST_MASK:
        return False
    shape = tensor.shape
    is_one = all(size == 1 for size in shape[:-2])
    is_kind = tensor.dtype == torch.bool or tensor.is_floating_point()
    return bool(
        is_one and is_kind and shape[-1] == shape[-2] >= length and not tensor.requires_grad
    )


def _is_triangle(rows: list[list[Any]], step: int) -> bool:
    """Whether each row lets what comes up to it, and nothing that follows."""
    for number, row in enumerate(rows):
        own = number * step + 1
        lets = [value is True or (value is not False and value == 0) for value in row]
        if not all(lets[:own]) or any(lets[own:]):
            return False
    return len(rows) > 1


WINDOWS = 40
EARLY_WINDOWS, EARLY_S, LATE_S, LONGEST_S = 8, 1.0, 10.0, 3.0
MOST_RETURNS, OF_ALL = 2000, 4
"""Calls of layers that are looked at in a window: with gradients, of which only the outermost are
compared (6 µs a call inside on two cores that others used), and for how many of these one without
gradients counts (10 µs and more): 5 to 12 ms of the program's time, once a second at first and
every ten seconds later."""
CONSTANT, VARIED = 3, 0.1
"""Calls with the same that were looked at from which what a model is given is constant, and part
of what all models compute that is of others: a program of one input is a benchmark."""
BACKWARD = 3
"""What a forward pass with its backward pass computes, in forward passes."""
MOST_LAYERS, MOST_LINES = 4000, 16
ALL_AGAIN = 0.9
"""Part of the calls of layers that no other calls which are given the same again from which a
program is a benchmark of one input."""
_SIMPLE = (int, float, bool, str, type(None))
BEGINNING_LEAST, BEGINNINGS, DISTINCT = 64, 4, 8
"""Tokens of a text, texts of a batch that are looked at, once a window, and different tokens in
what they share: padding on the left has one."""


class LayerRepeats:
    """What layers of torch compute again: calls with the tensors that the same layer was given the
    time before, unchanged, of tensors that are others after a while.

    From time to time the returns of some calls of modules are looked at, wherever the program
    is: the interpreter reports them, nothing of torch is wrapped. Tensors are held weakly.
    """

    def __init__(self, tool: int, program_frame: Callable[[Any], Any]) -> None:
        self._tool, self._program_frame = tool, program_frame
        self._monitoring: Any = getattr(sys, "monitoring")  # noqa: B009
        self._torch: Any = None
        self._code: Any = None
        self._windows = self._left = 0
        self._next_s = time.monotonic() + EARLY_S
        self._over_s = 0.0
        self._given: dict[int, tuple[Any, ...]] = {}
        """By the number of a layer: itself, weakly, what it was given last, whether twice, in which
        window, and its first parameter, weakly."""
        self._inside: dict[int, tuple[int, dict[tuple[Any, int], int]]] = {}
        """By the number of the frame of a call: what the calls in it compute, and what of it again,
        by line."""
        self._outer = [0, 0]
        self._whole = self._in_graded = 0
        self._again: dict[tuple[Any, int], int] = {}
        self._renewed: set[tuple[Any, int]] = set()
        self._constants: dict[int, list[Any]] = {}
        """By the number of an outermost layer: how often it was looked at since it was given
        something else, what it computed since it was told, and the line once it is constant."""
        self._repeated_at: dict[int, tuple[Any, int]] = {}
        """By the number of a layer: the line at which it was last given the same again."""
        self.weights: dict[tuple[Any, int], int] = {}
        """Calls of attention that gave its weights, by line."""
        self.uncached: dict[tuple[Any, int], int] = {}
        """Calls of layers that are given the same again and could keep what they make of it."""
        self._propagated: dict[int, list[Any]] = {}
        self.graded: dict[tuple[Any, int], int] = {}
        """Calls of models that keep a graph for a backward pass, by line."""
        self.beginnings: dict[tuple[Any, int], list[int]] = {}
        """By line: tokens that were looked at, and how many are a beginning that all share."""
        self._looks_at_tokens = False
        self._copied: tuple[Any, ...] | None = None
        self._text: list[int] = []

    def look(self) -> None:
        """Begin or end a window, as it is time."""
        now_s = time.monotonic()
        events = self._monitoring.events
        if self._left > 0:
            if now_s >= self._over_s:
                self._end()
            return
        if now_s < self._next_s or self._windows >= WINDOWS:
            return
        self._torch = sys.modules.get("torch")
        call = getattr(getattr(self._torch, "nn", None), "Module", None)
        self._code = getattr(getattr(call, "_call_impl", None), "__code__", None)
        if self._code is None:
            return
        self._windows += 1
        self._next_s = now_s + (EARLY_S if self._windows < EARLY_WINDOWS else LATE_S)
        self._over_s, self._left = now_s + LONGEST_S, MOST_RETURNS
        self._inside.clear()
        self._in_graded = 0
        self._looks_at_tokens = True
        self._monitoring.register_callback(self._tool, events.PY_RETURN, self._returned)
        self._monitoring.set_local_events(self._tool, self._code, events.PY_RETURN)

    def _end(self) -> None:
        self._left = 0
        self._monitoring.set_local_events(self._tool, self._code, 0)

    def _returned(self, code: Any, _offset: int, made: Any) -> Any:
        if code is not self._code or self._left <= 0:
            return
        passes = BACKWARD if self._torch.is_grad_enabled() else 1
        self._left -= 1 if passes > 1 else OF_ALL
        try:
            if self._left <= 0:
                self._end()
                return
            frame = sys._getframe(1)
            if type(made) is tuple and len(made) == 2 and made[1] is not None:
                self._see_weights(frame)
            # What a backward pass computes again is checkpointing, which saves memory.
            if passes == 1 or self._torch._C._current_graph_task_id() == -1:
                self._see(frame, made, passes)
        except Exception:
            return  # the program goes on without

    def _see_weights(self, frame: Any) -> None:
        if isinstance(frame.f_locals["self"], self._torch.nn.MultiheadAttention):
            own = self._program_frame(frame.f_back)
            if own is not None and len(self.weights) < MOST_SITES:
                where = own.f_code, own.f_lineno
                self.weights[where] = self.weights.get(where, 0) + 1

    def _see(self, frame: Any, made: Any, passes: int) -> None:
        names = frame.f_locals
        layer = names["self"]
        if getattr(layer, "cached", None) is False:
            self._see_uncached(frame, layer, names)
        whole, inside = self._inside.pop(id(frame), (0, {}))
        nn = self._torch.nn
        if self._looks_at_tokens and isinstance(layer, getattr(nn, "Embedding", ())):
            self._see_tokens(frame, (*names["args"], *names["kwargs"].values())[0])
        if isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd)):
            weight = layer.weight
            whole += passes * 2 * made.numel() * weight.numel() // max(1, weight.shape[0])
        if passes > 1 and not getattr(layer, "_modules", True):
            self._in_graded += whole  # of the outermost call, which alone is compared
            return
        around, caller = frame.f_back, None
        while around is not None:
            if around.f_code is self._code:
                caller = around
                break
            around = around.f_back
        if passes > 1:
            self._in_graded += whole
            if caller is not None:
                return
            whole, self._in_graded = self._in_graded, 0
        args, kwargs = names.get("args", ()), names.get("kwargs", {})
        is_again, renews, is_same = self._compare(layer, args, kwargs)
        before = self._repeated_at.pop(id(layer), None) if renews else None
        if before is not None and before in self._again:  # else told with what it is in
            self._renewed.add(before)
        if is_again and whole:
            own = self._program_frame(frame.f_back)
            if own is not None:
                where = self._repeated_at[id(layer)] = own.f_code, own.f_lineno
                # The layers inside a repeated one are counted with it.
                inside = {} if passes > 1 and self._drops(layer) else {where: whole}
        if caller is not None:
            flops, around_inside = self._inside.get(id(caller), (0, {}))
            for where, its in inside.items():
                around_inside[where] = around_inside.get(where, 0) + its
            self._inside[id(caller)] = flops + whole, around_inside
            return
        self._whole += whole
        self._see_constant(frame, layer, whole, is_same)
        if passes > 1 and getattr(next(iter(layer.parameters()), None), "requires_grad", False):
            own = self._program_frame(frame.f_back)
            if own is not None and len(self.graded) < MOST_LINES:
                line = own.f_code, own.f_lineno
                self.graded[line] = self.graded.get(line, 0) + 1
        for where, its in inside.items():
            if where in self._again or len(self._again) < MOST_SITES:
                self._again[where] = self._again.get(where, 0) + its
        self._outer[0] += 1
        self._outer[1] += is_again

    def _drops(self, layer: Any) -> bool:
        """Whether dropout makes each pass another one, as what compares two of them wants it."""
        kind = getattr(getattr(self._torch.nn.modules, "dropout", None), "_DropoutNd", ())
        return any(isinstance(m, kind) and m.training and m.p > 0 for m in layer.modules())

    def _see_tokens(self, frame: Any, tokens: Any) -> None:
        """Compares the tokens of the window before, if they have come, and has those of now copied:
        behind the program's work, nothing waits. All on its own thread, whose GPU is the right
        one."""
        torch = self._torch
        shape = tuple(tokens.shape)
        if len(shape) != 2 or shape[0] < 2 or shape[1] < BEGINNING_LEAST:
            return
        on_gpu = bool(tokens.is_cuda)
        if tokens.is_floating_point() or torch._C._len_torch_dispatch_stack():
            return
        if on_gpu and torch.cuda.is_current_stream_capturing():
            return
        self._looks_at_tokens = False
        if self._copied is not None:
            event, rows, where = self._copied
            if event is not None and not event.query():
                return
            self._compare_texts(rows.tolist(), where)
        rows = tokens[:BEGINNINGS].detach()
        # Memory that is not pinned would have the program wait.
        kept = torch.empty(rows.shape, dtype=rows.dtype, device="cpu", pin_memory=on_gpu)
        kept.copy_(rows, non_blocking=True)
        event = torch.cuda.Event() if on_gpu else None
        if event is not None:
            event.record()
        own = self._program_frame(frame.f_back)
        self._copied = event, kept, (own.f_code, own.f_lineno) if own is not None else None

    def _compare_texts(self, rows: list[list[int]], where: tuple[Any, int] | None) -> None:
        before, self._text = self._text, rows[0]
        if not before or where is None or len(self.beginnings) >= MOST_LINES:
            return
        shared = 0
        for column in zip(before, *rows, strict=False):
            if any(token != column[0] for token in column):
                break
            shared += 1
        if shared == len(rows[0]) or len(set(before[:shared])) < DISTINCT:
            shared = 0
        sums = self.beginnings.setdefault(where, [0, 0])
        sums[0] += len(rows[0])
        sums[1] += shared

    def _see_uncached(self, frame: Any, layer: Any, names: dict[str, Any]) -> None:
        """A layer that could keep what it makes of its input without its weights, as convolutions
        of graphs that have an option for it, and is given the same again."""
        tensors = [x for x in names["args"] if isinstance(x, self._torch.Tensor)]
        given: list[Any] = [weakref.ref(x) for x in tensors] + [_version(x) for x in tensors]
        before = self._propagated.get(id(layer))
        if len(self._propagated) < MOST_LINES:
            self._propagated[id(layer)] = given
        own = self._program_frame(frame.f_back)
        if given and _are_same(before, given) and own is not None:
            where = own.f_code, own.f_lineno
            self.uncached[where] = self.uncached.get(where, 0) + 1

    def _see_constant(self, frame: Any, layer: Any, whole: int, is_same: bool) -> None:
        """An outermost call: of a layer that is given the same in window after window, and that
        was nothing else yet, where others are given something else each time."""
        seen = self._constants.setdefault(id(layer), [0, 0, None])
        if len(self._constants) > MOST_LAYERS:
            self._constants.clear()
        seen[0] += 1
        seen[1] += whole
        if not is_same:
            seen[0], seen[2] = 1, None
        elif seen[2] is None and seen[0] >= CONSTANT and whole:
            own = self._program_frame(frame.f_back)
            seen[2] = (own.f_code, own.f_lineno) if own is not None else None

    def _compare(self, layer: Any, args: Any, kwargs: Any) -> tuple[bool, bool, bool]:
        """Whether a layer is given what it was given the time before, for sure; whether it is given
        something else now, after it was given one thing several times; and whether it is what it
        was given when it was last looked at."""
        given: list[Any] = []
        for each in (*args, *kwargs.values()):
            if isinstance(each, self._torch.Tensor):
                given += [weakref.ref(each), _version(each)]
            elif isinstance(each, _SIMPLE):
                given.append(each)
            else:
                given = []
                break
        key = id(layer)
        nothing: tuple[Any, ...] = (None, None, False, 0, None)
        layer_ref, before, was_again, window, first = self._given.pop(key, nothing)
        if not given or len(self._given) >= MOST_LAYERS:
            return False, False, False
        is_known = layer_ref is not None and layer_ref() is layer
        if not is_known:
            first = next(iter(layer.parameters()), None)
            first = weakref.ref(first) if first is not None else None
        given.append(_version(first()) if first is not None else 0)
        is_same = is_known and _are_same(before, given)
        # What it was given between two windows is not known.
        is_again = is_same and window == self._windows
        several = is_again or (is_same and was_again)
        self._given[key] = weakref.ref(layer), given, several, self._windows, first
        return is_again, was_again and not is_same, is_same

    def drain(self) -> list[tuple[tuple[Any, int], int, int]]:
        """The lines that repeat, how much all layers compute, and how much each line again, in
        MFLOP, since it was asked last; none while a window is open."""
        if self._left > 0 or not self._whole:
            return []
        constant: dict[tuple[Any, int], int] = {}
        of_others = 0
        for _, flops, where in self._constants.values():
            if where is not None:
                constant[where] = constant.get(where, 0) + flops
            else:
                of_others += flops
        if constant and of_others >= VARIED * self._whole:
            self._renewed.update(constant)
            self._again.update(constant)
        if not self._renewed:
            return []
        for seen in self._constants.values():
            seen[1] = 0
        whole, self._whole = self._whole, 0
        again, self._again = self._again, {}
        (calls, same), self._outer = self._outer, [0, 0]
        if same >= ALL_AGAIN * calls:
            return []
        return [
            (where, whole // 1_000_000, again.get(where, 0) // 1_000_000)
            for where in sorted(self._renewed, key=lambda where: -again.get(where, 0))[:MOST_LINES]
        ]


def _as_given(name: str, tensor: Any) -> tuple[tuple[Any, ...], Any]:
    """What a tensor is now, its size first, and what must be the same: the one that it is a view
    of, or itself. () where it is small, of the host, or nothing that a change would show."""
    kind = type(tensor)
    # A class of the program's own may have every question about its tensors come to its code.
    if kind.__name__ not in ("Tensor", "Parameter") and hasattr(kind, "__torch_function__"):
        return (), tensor
    size = int(tensor.nbytes)
    if not hasattr(tensor, "is_cuda"):
        # An array of JAX never changes, one of NumPy may.
        never_changes = type(tensor).__module__.startswith("jax")
        return ((size,) if never_changes and size >= AGAIN_BYTES else ()), tensor
    costs_nothing = str(tensor.dtype) == f"torch.{_OWN_TYPE.get(name, '')}" or (
        name == "contiguous" and tensor.is_contiguous()
    )
    if size < AGAIN_BYTES or costs_nothing or not tensor.is_cuda or tensor.is_inference():
        return (), tensor
    base = tensor._base
    now = size, int(tensor._version), tensor.data_ptr(), tuple(tensor.shape)
    return now, tensor if base is None else base


def _see_again(site: list[Any], tensor: Any, size: int, looks: bool) -> None:
    """Counts a tensor that the line copied before and that nobody wrote to since. `looks` at some
    of its values, too: what NumPy writes into it torch does not count."""
    seen, key, version = site[7], id(tensor), _version(tensor)
    tensor_ref, before, values = seen.get(key, (None, 0, None))
    is_same = tensor_ref is not None and tensor_ref() is tensor and before == version
    if looks or not is_same:
        now = _some_values(tensor) if looks else None
        if is_same and values is not None and now != values:
            site[7:] = None, 0, 0
            return
        if len(seen) >= MOST_AGAIN:
            seen.clear()
        seen[key] = weakref.ref(tensor), version, now or values if is_same else now
    if is_same:
        site[8] += 1
        site[9] += size


def _some_values(tensor: Any) -> list[Any] | None:
    if not tensor.is_contiguous():
        return None
    values = tensor.detach().view(-1)
    return list(values[:: max(1, len(values) // LOOKED_AT)].tolist())


def _are_same(before: Any, now: list[Any]) -> bool:
    if before is None or len(before) != len(now):
        return False
    for old, new in zip(before, now, strict=True):
        if type(old) is not type(new):
            return False
        if isinstance(new, weakref.ref):
            if old() is None or old() is not new():
                return False
        elif old != new:
            return False
    return True


def _version(tensor: Any) -> int:
    """How often a tensor was written to; 0 of what torch does not count, as in inference mode."""
    try:
        return int(tensor._version)
    except Exception:
        return 0


def _padding(texts: Any) -> tuple[int, int]:
    """How many tokens the first texts of a batch have, and how many of these are padding: the
    number that most texts end or begin with, there. (0, 0) of what are no texts, as the pages of a
    KV cache, of which each belongs to one request: words come again."""
    numpy = sys.modules.get("numpy")
    rows = texts[:TEXTS].numpy() if numpy is not None else None
    if rows is None or rows.shape[1] < SHORTEST or len(rows) < 2:
        return 0, 0
    if rows.max() < LEAST_VOCABULARY:
        return 0, 0
    most = padding = 0
    for each in (rows, rows[:, ::-1]):
        values, counts = numpy.unique(each[:, -1], return_counts=True)  # type: ignore[union-attr]
        last = int(values[counts.argmax()])
        differs = each[:, ::-1] != last
        alike = differs.argmax(axis=1)
        alike[~differs.any(axis=1)] = rows.shape[1]
        most, padding = max((most, padding), (int(alike.sum()), last))
    words = rows[rows != padding]
    different = numpy.unique(words)  # type: ignore[union-attr]
    return (rows.size, most) if len(different) < len(words) else (0, 0)


def _described(array: Any) -> str:
    """A tensor's shape, type and place, as `64x3x224x224:float32:cpu`; - of anything else."""
    try:
        shape = "x".join([str(int(size)) for size in array.shape]) or "1"
        kind = str(array.dtype).replace("torch.", "")
        place = "gpu" if getattr(array, "is_cuda", False) else "cpu"
        return f"{shape[:80]}:{kind[:20]}:{place}".replace(" ", "")
    except Exception:
        return "-"


def _compiler_skips_callbacks() -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    try:
        major, minor = str(torch.__version__).split(".")[:2]
        return (int(major), int(minor)) >= SKIPS_CALLBACKS
    except Exception:
        return False


def free_tool() -> int | None:
    """A number to use `sys.monitoring` with, taken; None where it cannot be used, or others have
    taken all."""
    monitoring = getattr(sys, "monitoring", None)
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()  # else it was not tried
    if monitoring is None or not has_lock or not _compiler_skips_callbacks():
        return None
    tool = next((number for number in (4, 3) if monitoring.get_tool(number) is None), None)
    if tool is not None:
        monitoring.use_tool_id(tool, "gputui")
    return tool


def start(program_frame: Callable[[Any], Any]) -> Facts:
    """Begin to watch what can be watched here."""
    facts = Facts(program_frame)
    facts.watch_collections()
    facts.watch_calls()
    return facts
