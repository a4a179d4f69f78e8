"""Fewer launches and copies for the same: the optimizer's step for all parameters at once,
torch.compile of the model, and what the program compiles itself."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import math
import operator
import sys
import threading
import types
from typing import TYPE_CHECKING, Any, ClassVar

from . import (
    ANY,
    COMPILING_S,
    EXACT,
    PLAIN,
    ROUNDING,
    CannotApply,
    Cure,
    Redirected,
    before_first_calls,
    combined,
    hook,
    idle,
    instances,
    replaced,
)
from .ablations import functions_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo

OPTIMIZERS = ("Adam", "AdamW", "SGD")
"""Those of torch with a fused kernel on GPUs."""


class FusedOptimizer(Cure):
    """Optimizers that update all parameters in one kernel."""

    name = "fused_optimizer"
    title = "the optimizer updates all parameters in one kernel"
    answers = (ANY, "idle.launch", "idle.host", "busy.elementwise_chain", "unfused_optimizer")
    result = ROUNDING
    change = "torch.optim.AdamW(..., fused=True)"
    advice = "fused=True"

    _made: list[Any] | None = None

    def apply(self, torch: Any) -> Undo:
        if self._made is None:
            self._made = instances(torch.optim.Optimizer) or []
        kinds = [getattr(torch.optim, name) for name in OPTIMIZERS]
        groups = [
            (optimizer, group)
            for optimizer in self._made
            if type(optimizer) in kinds
            for group in optimizer.param_groups
            if "fused" in group and not group["fused"] and _may_be_fused(group)
        ]
        if not groups:
            raise CannotApply(f"no optimizer of {', '.join(OPTIMIZERS)} that is not fused")
        before = [(group, group["fused"], group["foreach"]) for _, group in groups]
        for optimizer, group in groups:
            group.update(fused=True, foreach=False)
            _count_steps(torch, optimizer, group, on_device=True)

        def undo() -> None:
            for group, fused, foreach in before:
                group.update(fused=fused, foreach=foreach)
            for optimizer, group in groups:
                _count_steps(torch, optimizer, group, on_device=bool(group.get("capturable")))

        return undo


def _may_be_fused(group: dict[str, Any]) -> bool:
    """Whether a fused kernel takes all of a group's parameters; torch looks at the first only."""
    return not group.get("differentiable") and all(
        each.is_floating_point() and not (each.grad is not None and each.grad.is_sparse)
        for each in group["params"]
    )


def _count_steps(torch: Any, optimizer: Any, group: dict[str, Any], on_device: bool) -> None:
    """Has the numbers of steps where a fused kernel reads them, or where others do."""
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        if isinstance(state.get("step"), torch.Tensor):
            place = parameter.device if on_device else "cpu"
            state["step"] = state["step"].to(place, torch.float32)


class UnownedGradientsOff(Cure):
    """No gradients of parameters that no optimizer updates: of a backbone that is not trained but
    was not frozen, whose part of the backward pass is then left out."""

    name = "unowned_gradients_off"
    title = "what no optimizer updates gets no gradients"
    answers = (ANY, "unused_gradients")
    result = EXACT
    is_certain = True
    change = "backbone.requires_grad_(False), or torch.no_grad() around it, for what is not trained"

    _unowned: tuple[Any, ...] = ()
    _values: list[float] | None = None

    def apply(self, torch: Any) -> Undo:
        unowned = self._unowned = self._unowned or _unowned(torch)
        values = [float(each.detach().flatten()[0]) for each in unowned]
        if self._values not in (None, values):
            raise CannotApply("something else than torch's optimizers updates the parameters")
        self._values = values
        for each in unowned:
            each.requires_grad_(False)
            each.grad = None

        def undo() -> None:
            for each in unowned:
                each.requires_grad_(True)

        return undo


def _unowned(torch: Any) -> tuple[Any, ...]:
    """Parameters that have gradients and are no optimizer's. Raises CannotApply."""
    optimizers = instances(torch.optim.Optimizer)
    if not optimizers:
        raise CannotApply("there is no optimizer")
    if instances(torch.nn.parallel.DistributedDataParallel) or "deepspeed" in sys.modules:
        raise CannotApply("what distributes the training waits for all gradients")
    modules = instances(torch.nn.Module) or ()
    parameters = {id(each): each for m in modules for each in m.parameters(recurse=False)}
    _, unowned = hook("step_marks").unowned_gradients(parameters.values(), optimizers)
    if not unowned:
        raise CannotApply("optimizers update all that has gradients, or copies of it")
    return tuple(unowned)


class CompileOptimizer(Cure):
    """The step of each class of optimizers compiled: also of one that the program wrote itself,
    whose loop over parameters becomes a few kernels."""

    name = "compile_optimizer"
    title = "the optimizer's step is compiled"
    answers = ("idle.launch", "idle.host", "busy.optimizer", "unfused_optimizer")
    result = ROUNDING
    change = "step = torch.compile(optimizer.step), and step() instead of optimizer.step()"
    in_one_run = False
    advice = r"torch\._foreach"

    def apply(self, torch: Any) -> Undo:
        if not hasattr(torch, "compile"):
            raise CannotApply("this torch has no torch.compile")
        base = torch.optim.Optimizer
        init = base.__init__
        undos: dict[Any, Undo] = {}

        @functools.wraps(init)
        def changed(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            kind = type(self)
            if kind not in undos and not self.defaults.get("fused"):
                # Inside what calls the hooks of a step, by which steps are counted.
                plain = getattr(kind.step, "__wrapped__", kind.step)
                step = base.profile_hook_step(torch.compile(plain))
                step.hooked = True
                undos[kind] = replaced((kind, "step", step))

        restore = replaced((base, "__init__", changed))
        return lambda: combined(restore, *undos.values())()

    def useless(self, torch: Any) -> str | None:
        made = instances(torch.optim.Optimizer)
        if made is not None and all(each.defaults.get("fused") for each in made):
            return "its optimizer is fused" if made else "there is no optimizer"
        return None


class AdaptersMerged(Cure):
    """Adapters of PEFT in the weights that they change, where nothing is trained: LoRA's products,
    and the norms of DoRA, are computed for each call else."""

    name = "adapters_merged"
    title = "PEFT's adapters are merged into the weights, where nothing is trained"
    answers = (ANY, "idle.launch", "idle.host")
    result = ROUNDING
    is_certain = True
    change = "model = model.merge_and_unload() before inference"
    library = "peft"
    forecast = None

    _models: list[Any] | None = None

    def apply(self, peft: Any) -> Undo:
        models = self._models if self._models is not None else instances(peft.PeftModel) or []
        if not models:
            raise CannotApply("there is no PeftModel")
        if self._models is None and instances(sys.modules["torch"].optim.Optimizer) != []:
            raise CannotApply("the program trains")
        self._models = models
        layers = [
            layer
            for model in models
            for layer in model.modules()
            if hasattr(layer, "get_base_layer") and hasattr(layer, "merged_adapters")
        ]
        if any(layer.merged_adapters for layer in layers):
            raise CannotApply("adapters are merged")
        # Taking an adapter out again rounds: the weight is put back as it was.
        weights = [layer.get_base_layer().weight for layer in layers]
        undos: list[Undo] = [
            functools.partial(_put_back, weight, weight.data.clone()) for weight in weights
        ]
        for model in models:
            undos.append(model.unmerge_adapter)
            model.merge_adapter()
        return combined(*undos)


def _put_back(weight: Any, before: Any) -> None:
    weight.data.copy_(before)


class ItemsTogether(Cure):
    """Values of one tensor that are read one by one (.item(), float(), in a loop over it) are
    copied from the GPU at once, and again after it was written to. What writes to it without torch
    is not seen."""

    name = "items_together"
    title = "values of a tensor that are read one by one are copied at once"
    answers = ("idle.sync", "busy.copy_pageable")
    result = EXACT
    change = "values = tensor.tolist()  # once, before the loop over them"
    advice = r"\.item\(\)"

    def apply(self, torch: Any) -> Undo:
        copied: list[tuple[Any, int, list[Any]]] = []  # tensors, how often written to, their values

        def together(convert: Any, kind: Any) -> Any:
            @functools.wraps(convert)
            def converted(value: Any) -> Any:
                base = value._base
                if base is None or value.numel() != 1 or value.dtype is not base.dtype:
                    return convert(value)
                for copy in copied:
                    if copy[0] is base and copy[1] == base._version:
                        values = copy[2]
                        break
                else:
                    if type(base) is not torch.Tensor or not self.is_copied(base):
                        return convert(value)
                    values = base.detach().flatten().tolist()
                    copied.insert(0, (base, base._version, values))
                    del copied[BESIDE:]
                made = values[value.storage_offset() - base.storage_offset()]
                return made if kind is None else kind(made)

            return converted

        # Only while it is on: Dynamo would break graphs at what stands in for them.
        converts = [(name, getattr(torch.Tensor, name), kind) for name, kind in _CONVERTED]
        return replaced(
            *((torch.Tensor, name, together(convert, kind)) for name, convert, kind in converts)
        )

    def is_copied(self, base: Any) -> bool:
        """Whether values of a tensor are read from a copy of all."""
        if not self.is_far(base) or base.is_inference() or base.is_complex():
            return False
        return bool(1 < base.numel() <= MOST_TOGETHER and base.is_contiguous())

    def is_far(self, base: Any) -> bool:
        """Whether reading it waits for a GPU."""
        return bool(base.is_cuda)


_CONVERTED = (
    ("item", None), ("__float__", float), ("__int__", int), ("__bool__", bool),
)  # fmt: skip
BESIDE = 4
"""Tensors that are gone through side by side, as by zip()."""
MOST_TOGETHER = 1 << 14
"""Values of a tensor, which are copied in about the time of 20 alone."""


class ItemsDeferred(Cure):
    """What `.item()` reads is read when the program first looks at it, together with all that it
    asked for until then. Sums and products of such numbers wait too; a number that is printed,
    compared, written or passed on is there at once. Each is what it was when it was asked for: it
    is copied on the GPU. A program that asks for its very type fails with it."""

    name = "items_deferred"
    title = "values are read from the GPU (.item()) when they are used, all at once"
    answers = ("idle.sync", "busy.copy_pageable")
    result = EXACT
    change = "keep what is logged on the GPU, and read it together: torch.stack(values).tolist()"
    advice = r"\.item\(\)"

    _is_readable = False

    def apply(self, torch: Any) -> Undo:
        if not self._is_readable:
            self._have_read(torch)
            self._is_readable = True
        reads, item = _Reads(torch, self.is_far), torch.Tensor.item

        @functools.wraps(item)
        def later(value: Any) -> Any:
            deferred = reads.later(value)
            return item(value) if deferred is None else deferred

        return combined(reads.read, replaced((torch.Tensor, "item", later)))

    def _have_read(self, torch: Any) -> None:
        """What asks for numbers in C takes those that were deferred, also once it is off."""
        default = json.JSONEncoder.default

        @functools.wraps(default)
        def written(encoder: Any, value: Any) -> Any:
            return value.now() if _is_later(value) else default(encoder, value)

        def read(function: Any) -> Any:
            @functools.wraps(function)
            def called(*args: Any, **kwargs: Any) -> Any:
                try:
                    return function(*args, **kwargs)
                except (TypeError, RuntimeError):
                    return function(*_now(args), **_now(kwargs))

            return called

        makes = [(torch, name, read(getattr(torch, name))) for name in ("tensor", "as_tensor")]
        replaced((json.JSONEncoder, "default", written), *makes)

    def is_far(self, value: Any) -> bool:
        """Whether reading it waits for a GPU."""
        return bool(value.is_cuda)


MOST_DEFERRED = 4096
"""Values and sums that wait, before all are read."""
MOST_WASTED = 8
"""Times that a line looked at once at what it asked for, after which that is not deferred there."""


class _Reads:
    """Values that were asked for and are not read yet."""

    def __init__(self, torch: Any, is_far: Callable[[Any], bool]) -> None:
        self._torch, self._is_far = torch, is_far
        self._float, self._int = _numbers(torch)
        self._lock = threading.RLock()
        self._waiting: list[_Later] = []
        """In the order in which they were asked for: what one is made of comes before it."""
        self._copies: list[_Copy] = []
        """Of tensors of which values are asked for one by one."""
        self._wasted: dict[Any, int] = {}

    def later(self, value: Any) -> Any:
        """A number that is read later, or one that is there already; None where it is read now."""
        torch = self._torch
        copy = self._copy_of(value._base)
        if (
            copy is not None and copy.values is not None and value.numel() == 1
            and value.dtype is copy.base.dtype
        ):  # fmt: skip
            return copy.values[value.storage_offset() - copy.place]
        if (
            value.numel() != 1 or not self._is_far(value) or value.is_complex()
            or value.dtype is torch.bool or torch.compiler.is_compiling()
        ):  # fmt: skip
            return None
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return None
        frame = sys._getframe(2)
        line = frame.f_code, frame.f_lasti
        if self._wasted.get(line, 0) >= MOST_WASTED:
            return None
        kind = self._float if value.is_floating_point() else self._int
        with torch.no_grad():
            return self._wait(kind(self, *self._copied(value), line))

    def _copied(self, value: Any) -> tuple[Any, int]:
        base = value._base
        if (
            base is None or type(base) is not self._torch.Tensor or base.is_inference()
            or not base.is_contiguous() or base.numel() > MOST_TOGETHER
            or base.dtype is not value.dtype
        ):  # fmt: skip
            return value.detach().reshape(1).clone(), 0
        # A loop over a tensor asks for each value: one copy is for all.
        copy = self._copy_of(base)
        if copy is None:
            copy = _Copy(base)
            self._copies.insert(0, copy)
            del self._copies[BESIDE:]
        return copy.copy, value.storage_offset() - copy.place

    def _copy_of(self, base: Any) -> _Copy | None:
        for copy in self._copies if base is not None else ():
            if copy.base is base and copy.version == base._version:
                return copy
        return None

    def made(self, operation: Any, *values: Any) -> Any:
        """What is computed of numbers, some of which are read later."""
        is_float = operation is operator.truediv or any(
            type(value) in (float, self._float) for value in values
        )
        return self._wait((self._float if is_float else self._int)(self, operation, values))

    def _wait(self, value: _Later) -> _Later:
        with self._lock:
            self._waiting.append(value)
            if len(self._waiting) >= MOST_DEFERRED:
                self.read()
        return value

    def read(self) -> None:
        """Read all that waits."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            leaves = [each for each in waiting if each.line is not None]
            for each in leaves:
                self._wasted[each.line] = (
                    self._wasted.get(each.line, 0) + 1 if len(leaves) == 1 else 0
                )
            copies: dict[int, Any] = {id(each.source): each.source for each in leaves}
            values: dict[int, list[Any]] = {}
            for kind in {(copy.device, copy.dtype) for copy in copies.values()}:
                alike = [copy for copy in copies.values() if (copy.device, copy.dtype) == kind]
                together, place = self._torch.cat(alike).tolist(), 0
                for copy in alike:
                    values[id(copy)] = together[place : place + copy.numel()]
                    place += copy.numel()
            for copy in self._copies:
                copy.values = values.get(id(copy.copy), copy.values)
            for each in waiting:
                each.set(values)


class _Copy:
    """Of a tensor as it was when it had been written to so often, on the GPU."""

    def __init__(self, base: Any) -> None:
        self.base, self.version, self.place = base, base._version, base.storage_offset()
        self.copy = base.detach().flatten().clone()
        self.values: list[Any] | None = None
        """What is in it, once it is read."""


class _Later:
    """A number that is read when it is looked at."""

    kind: ClassVar[type]

    def __init__(self, reads: _Reads, source: Any, place: Any, line: Any = None) -> None:
        """Of a tensor and a place in it, asked for at a line, or an operation and what it is of."""
        self.reads, self.source, self.place, self.line = reads, source, place, line
        self._number: Any = None
        self._error: ArithmeticError | None = None

    def set(self, values: dict[int, list[Any]]) -> None:
        """Take it from the values that were read, or compute it."""
        try:
            if self.line is not None:
                self._number = values[id(self.source)][self.place]
            else:
                self._number = self.source(*map(_now, self.place))
        except ArithmeticError as error:  # is the program's once it looks
            self._error = error
        self.source = self.place = None

    def now(self) -> Any:
        """The number."""
        if self.source is not None:
            self.reads.read()
        if self._error is not None:
            raise self._error
        return self._number

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.now(), name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return sys.modules["numpy"].asarray(self.now(), dtype=dtype)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return self.kind, (self.now(),)

    @classmethod
    def __torch_function__(
        cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*_now(args), **_now(kwargs or {}))

    # What torch asks of a number that is symbolic, which it takes where it takes a float.

    @property
    def node(self) -> Any:
        return self

    def guard_float(self, *_place: Any) -> float:
        return float(self.now())

    def guard_int(self, *_place: Any) -> int:
        return operator.index(self.now())

    def _is_not(self) -> bool:
        return False

    is_symbolic = is_constant = is_nested_int = is_bool = _is_not

    def is_float(self) -> bool:
        return self.kind is float

    def is_int(self) -> bool:
        return self.kind is int

    def maybe_as_int(self) -> int | None:
        return self.now() if self.kind is int else None


@functools.lru_cache(maxsize=1)
def _numbers(torch: Any) -> tuple[Any, Any]:
    """The classes of numbers that are read later. Of any other than torch's own symbolic ones its
    functions in C would want a float."""

    class LaterFloat(_Later, getattr(torch, "SymFloat", object)):  # type: ignore[misc]
        kind = float

    class LaterInt(_Later, getattr(torch, "SymInt", object)):  # type: ignore[misc]
        kind = int

    return LaterFloat, LaterInt


def _is_later(value: Any) -> bool:
    return issubclass(type(value), _Later)


def _now(value: Any) -> Any:
    """With the numbers in it read."""
    if _is_later(value):
        return value.now()
    if type(value) in (tuple, list):
        return type(value)(map(_now, value))
    return {key: _now(value[key]) for key in value} if type(value) is dict else value


def _waits(operation: Any, is_reflected: bool = False) -> Any:
    def method(self: _Later, *other: Any) -> Any:
        values = (*other, self) if is_reflected else (self, *other)
        are_numbers = all(type(value) in (int, float) or _is_later(value) for value in values)
        # Other powers may be complex.
        is_real = operation is not operator.pow or (type(values[1]) is int and self.kind is float)
        if are_numbers and is_real:
            return self.reads.made(operation, *values)
        return operation(*map(_now, values))

    return method


def _looks(operation: Any, is_reflected: bool = False) -> Any:
    def method(self: _Later, *others: Any) -> Any:
        values = (*others, self) if is_reflected else (self, *others)
        return operation(*map(_now, values))

    return method


for _name in ("add", "sub", "mul", "truediv", "pow", "neg", "abs"):
    setattr(_Later, f"__{_name}__", _waits(getattr(operator, _name)))
    setattr(_Later, f"__r{_name}__", _waits(getattr(operator, _name), True))
for _name in ("floordiv", "mod"):
    setattr(_Later, f"__{_name}__", _looks(getattr(operator, _name)))
    setattr(_Later, f"__r{_name}__", _looks(getattr(operator, _name), True))
for _name in ("lt", "le", "eq", "ne", "gt", "ge", "index", "pos", "invert"):
    setattr(_Later, f"__{_name}__", _looks(getattr(operator, _name)))
for _function in (
    float, int, bool, complex, hash, str, repr, format, round, divmod, math.trunc, math.floor,
    math.ceil,
):  # fmt: skip
    setattr(_Later, f"__{_function.__name__}__", _looks(_function))


class ForeachClip(Redirected):
    """Norms of all gradients at once where they are clipped."""

    name = "foreach_clip"
    title = "clip_grad_norm_(foreach=False) takes all norms at once"
    answers = (ANY, "idle.launch")
    result = ROUNDING
    is_certain = True
    change = "torch.nn.utils.clip_grad_norm_(parameters, limit), without foreach=False"
    advice = "clip_grad_norm_"

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        utils = torch.nn.utils
        return (utils, "clip_grad_norm_"), (utils.clip_grad, "clip_grad_norm_")

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        if kwargs.get("foreach") is not False:
            return None
        return functools.partial(function, *args, **{**kwargs, "foreach": None})


class EmbeddingsTogether(Cure):
    """Look-ups of the columns of one tensor, each in a table of its own, made at once: their tables
    one above the other, as one table would be. What backward passes add up, they add up in another
    order."""

    name = "embeddings_together"
    title = "an embedding for each column of a table is looked up at once with the others"
    answers = (ANY, "idle.launch")
    result = ROUNDING
    is_certain = True
    change = (
        "one nn.Embedding(sum(sizes), width) for all columns: table(codes + first_row_of_column)"
    )
    advice = "one table"

    _tables: list[Any] | None = None

    def apply(self, torch: Any) -> Undo:
        if self._tables is None:
            lists = instances(torch.nn.ModuleList, torch.nn.ModuleDict) or []
            self._tables = [
                tables for each in lists if (tables := _alike(torch, [*each.children()]))
            ]
        if not self._tables:
            raise CannotApply("no list of embeddings of one width")
        groups = [_Tables(torch, tables) for tables in self._tables]
        group_of = {id(table): group for group in groups for table in group.tables}
        forward = torch.nn.Embedding.forward

        @functools.wraps(forward)
        def together(table: Any, given: Any) -> Any:
            group = group_of.get(id(table))
            if group is None or torch.compiler.is_compiling():
                return forward(table, given)
            made = group.look_up(table, given)
            return forward(table, given) if made is None else made

        return replaced((torch.nn.Embedding, "forward", together))


LEAST_TABLES, MOST_TABLE_BYTES = 8, 1 << 28
"""Tables that are worth it, and of which all that they hold is copied in each step."""


def _alike(torch: Any, tables: list[Any]) -> list[Any]:
    """These tables, if they are plain ones that may be one."""
    if len(tables) < LEAST_TABLES or any(type(each) is not torch.nn.Embedding for each in tables):
        return []
    kinds = {(each.embedding_dim, each.weight.dtype, each.weight.device) for each in tables}
    is_plain = all(
        each.padding_idx is each.max_norm is None and not each.sparse
        and not each.scale_grad_by_freq
        for each in tables
    )  # fmt: skip
    held = sum(each.weight.numel() * each.weight.element_size() for each in tables)
    return tables if len(kinds) == 1 and is_plain and held <= MOST_TABLE_BYTES else []


class _Tables:
    """Tables that are looked up one after the other, each by a column of one tensor."""

    def __init__(self, torch: Any, tables: list[Any]) -> None:
        self.tables, self._torch = tables, torch
        rows = [0]
        for table in tables:
            rows.append(rows[-1] + table.num_embeddings)
        self._rows = rows[:-1]
        self._columns: dict[int, int] = {}
        """Of each table, as it was given last."""
        self._first: Any = None
        """The rows at which tables begin, and the columns, on their device."""
        self._key: Any = None
        self._made: dict[int, Any] = {}

    def look_up(self, table: Any, given: Any) -> Any:
        """What a table has for these codes; None where it is looked up alone."""
        base, column = given._base, self._column(given)
        if column is None or self._columns.get(id(table)) != column:
            self._made, self._first = {}, None
            if column is not None:
                self._columns[id(table)] = column
            return None
        if len(self._columns) < len(self.tables):
            return None
        weights = [each.weight for each in self.tables]
        key = base._version, self._torch.is_grad_enabled(), [each._version for each in weights]
        if self._key is None or self._key[0] is not base or self._key[1] != key or (
            id(table) not in self._made
        ):  # fmt: skip
            self._key = base, key
            self._made = self._look_up(base, weights)
        made = self._made.pop(id(table))
        if not self._made:
            self._key = None
        return made

    def _column(self, given: Any) -> int | None:
        """Which column of another tensor it is; None where it is none."""
        base = given._base
        if base is None or base.dim() != given.dim() + 1 or base.is_inference():
            return None
        if given.shape != base.shape[:-1] or given.stride() != base.stride()[:-1]:
            return None
        column, rest = divmod(given.storage_offset() - base.storage_offset(), base.stride(-1))
        return column if not rest and 0 <= column < base.shape[-1] else None

    def _look_up(self, base: Any, weights: list[Any]) -> dict[int, Any]:
        torch = self._torch
        if self._first is None:
            columns = [self._columns[id(table)] for table in self.tables]
            self._first = (
                torch.tensor(columns, device=base.device),
                torch.tensor(self._rows, device=base.device).view(-1, *[1] * (base.dim() - 1)),
            )
        codes = base.movedim(-1, 0).index_select(0, self._first[0]) + self._first[1]
        made = torch.nn.functional.embedding(codes, torch.cat(weights)).unbind(0)
        return {id(table): made[place] for place, table in enumerate(self.tables)}


class _Compiled(Cure):
    """Each outermost module is compiled before its first call, in place: its parameters stay the
    optimizer's."""

    result = ROUNDING
    in_one_run = False
    longer_s = COMPILING_S
    options: ClassVar[dict[str, Any]] = {}

    def apply(self, torch: Any) -> Undo:
        if not hasattr(torch.nn.Module, "compile"):
            raise CannotApply("modules have .compile() from torch 2.2 on")

        def change(module: Any) -> None:
            inner = "torch._dynamo" in type(module).__module__
            if module._compiled_call_impl is None and not inner:
                module.compile(**self.options)

        return before_first_calls(torch, change)

    def useless(self, torch: Any) -> str | None:
        if instances(torch.nn.Module) == []:
            return "there is no module to compile"
        return "the program compiles its model" if _is_compiled(torch) else None


def _is_compiled(torch: Any) -> bool:
    """Whether the program compiles a model itself."""
    compiles = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    if compiles is not None and instances(compiles):
        return True
    modules = instances(torch.nn.Module)
    return any(getattr(module, "_compiled_call_impl", None) for module in modules or ())


class Compile(_Compiled):
    """torch.compile of the outermost module, in its default mode."""

    name = "compile"
    title = "the model is compiled"
    answers: ClassVar[tuple[str, ...]] = (
        "idle.launch", "busy.elementwise_chain", "busy.attention_unfused", "copies"
    )  # fmt: skip
    change = "model = torch.compile(model), or model.compile(...) in place"
    advice = r"torch\.compile"


class CompileReduceOverhead(Compile):
    """torch.compile whose kernels are replayed as CUDA graphs (mode="reduce-overhead")."""

    name = "compile_reduce_overhead"
    title = "the model is compiled and replayed as CUDA graphs"
    answers = ("idle.launch",)
    change = 'model = torch.compile(model, mode="reduce-overhead"), or model.compile(...) in place'
    advice = "reduce-overhead"
    options: ClassVar[dict[str, Any]] = {"mode": "reduce-overhead"}


class CompileFunction(Cure):
    """A function of the program compiled, where a chain of small kernels is launched from it: what
    no module is, such as a simulation's step, or an average of weights. Numbers are drawn as they
    are without."""

    name = "compile_function"
    title = "a function that launches many small kernels is compiled"
    answers = ("busy.elementwise_chain", "idle.launch")
    result = ROUNDING
    change = "@torch.compile on the function"
    argument = "FILE:FUNCTION"
    advice = r"torch\.compile"
    longer_s = COMPILING_S / 2.0

    _compiled: list[tuple[Any, str, Any]] | None = None

    def apply(self, torch: Any) -> Undo:
        if self._compiled is None:
            if not hasattr(torch, "compile"):
                raise CannotApply("this torch has no torch.compile")
            owners, _, name = functions_at(self.given)
            made = [(owner, vars(owner)[name]) for owner in owners]
            functions = {id(each): each for _, each in made if _may_be_compiled(each)}
            if not functions or len({id(each) for _, each in made}) != len(functions):
                raise CannotApply(f"{name} is no plain function, or is compiled already")
            if any(
                _NOT_COMPILED.intersection(each.__code__.co_names) for each in functions.values()
            ):
                raise CannotApply(f"{name} trains, or reads values from the GPU")
            config: Any = importlib.import_module("torch._dynamo.config")
            config.suppress_errors = True
            options = {"fallback_random": True}
            compiled = {key: torch.compile(functions[key], options=options) for key in functions}
            self._compiled = [(owner, name, compiled[id(each)]) for owner, each in made]
        return replaced(*self._compiled)


def _may_be_compiled(function: Any) -> bool:
    is_plain = type(function) is types.FunctionType
    return is_plain and not hasattr(function, "_torchdynamo_orig_callable")


_NOT_COMPILED = frozenset({"backward", "step", "zero_grad", "item", "tolist", "cpu", "numpy"})
"""What a function does around which a compiler breaks what it makes of it into pieces."""


class CompileDynamic(Cure):
    """What the program compiles for each size, or each number that a module counts up, alone is
    compiled for all."""

    name = "compile_dynamic"
    title = "what is compiled is compiled once for all sizes and numbers"
    answers = (ANY, "idle.compile", "compiler_gave_up")
    result = ROUNDING
    change = "torch.compile(..., dynamic=True), and tensors for what modules count"
    in_one_run = False
    advice = "dynamic"

    def apply(self, torch: Any) -> Undo:
        if not hasattr(torch, "compile"):
            raise CannotApply("this torch has no torch.compile")
        for_module = getattr(torch.nn.Module, "compile", None)
        return replaced(
            (torch, "compile", _dynamic(torch.compile)),
            (torch.nn.Module, "compile", _dynamic(for_module)),
        )

    def useless(self, torch: Any) -> str | None:
        if not _compiles():
            return COMPILES_NOTHING
        # "2/3": the second function's fourth time.
        made = [str(each.compile_id) for each in torch._dynamo.utils.get_compilation_metrics()]
        again = max((int(each.rpartition("/")[2]) for each in made if "/" in each), default=0)
        return None if again >= LEAST_AGAIN else f"compiled again at most {again} times"


COMPILES_NOTHING = "the program compiles nothing with torch.compile"


def _compiles() -> bool:
    """Whether torch.compile has compiled something: only then it imports what does."""
    return "torch._dynamo.convert_frame" in sys.modules


LEAST_AGAIN = 3
"""Times that a function was compiled again before it is compiled for all sizes: one or two make it
so, where torch sees it."""


def _dynamic(function: Any) -> Any:
    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        config: Any = importlib.import_module("torch._dynamo.config")
        if hasattr(config, "allow_unspec_int_on_nn_module"):
            config.allow_unspec_int_on_nn_module = True
        return function(*args, **{**options, "dynamic": True})

    return called


class CompileOff(Cure):
    """What the program compiles runs as it is written: where each shape, or each step, is compiled
    for anew, that costs more than it gains."""

    name = "compile_off"
    title = "torch.compile compiles nothing"
    answers = ("idle.compile",)
    result = ROUNDING
    change = "no torch.compile, or only of what keeps its shapes"
    in_one_run = False
    forecast = None

    def apply(self, torch: Any) -> Undo:
        def compile(model: Any = None, **_options: Any) -> Any:
            return (lambda model: model) if model is None else model

        in_place = getattr(torch.nn.Module, "compile", None)
        return replaced(
            (torch, "compile", compile),
            (torch.nn.Module, "compile", functools.wraps(in_place)(idle) if in_place else None),
        )

    def useless(self, _torch: Any) -> str | None:
        return None if _compiles() else COMPILES_NOTHING


class OptaxJitted(Cure):
    """What optax computes of gradients is compiled, where the program calls it outside of jax.jit,
    operation by operation. Its functions are pure, as optax asks of what it is given."""

    name = "optax_jitted"
    title = "optax's updates are compiled"
    answers = (ANY, "idle.launch", "idle.host", "idle.compile")
    result = ROUNDING
    is_certain = True
    change = "jax.jit of the whole step: gradients, tx.update and optax.apply_updates"
    library = "optax"
    forecast = None

    _is_on = False
    _calls = 0

    def prepare(self, optax: Any) -> None:
        kind = optax.GradientTransformation
        make = kind.__new__

        def made(cls: Any, init: Any, update: Any) -> Any:
            return make(cls, init, self._jitted(update))

        pure = [name for name in _PURE if hasattr(optax, name)]
        replaced(
            (kind, "__new__", made),
            *((optax, name, self._jitted(getattr(optax, name))) for name in pure),
        )

    def _jitted(self, function: Any) -> Any:
        jax = sys.modules["jax"]
        jitted: list[Any] = []

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            leaves = jax.tree_util.tree_leaves((args, kwargs))
            is_alone = not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
            if not is_alone or not any(isinstance(leaf, jax.Array) for leaf in leaves):
                return function(*args, **kwargs)
            self._calls += 1
            if not self._is_on or jitted == [None]:
                return function(*args, **kwargs)
            if not jitted:
                jitted.append(jax.jit(function))
            try:
                return jitted[0](*args, **kwargs)
            except Exception:  # of what is no array, or asks for a value
                jitted[:] = [None]
                return function(*args, **kwargs)

        return called

    def apply(self, _optax: Any) -> Undo:
        if self._calls < LEAST_UPDATES:
            raise CannotApply("optax is called within jax.jit, or not at all")
        self._is_on = True
        return functools.partial(setattr, self, "_is_on", False)


_PURE = ("apply_updates", "incremental_update", "global_norm")
LEAST_UPDATES = 4
"""Calls outside of jax.jit before anything is switched."""


class JaxFloatsTraced(Cure):
    """Python floats that jax.jit was told are static, such as a learning rate, passed as what they
    are: each of their values is compiled for else."""

    name = "jax_floats_traced"
    title = "floats are no static arguments of jax.jit"
    answers = ("idle.compile",)
    result = EXACT
    change = "no floats in static_argnums or static_argnames of jax.jit"
    library = "jax"
    in_one_run = False

    def apply(self, jax: Any) -> Undo:
        real = jax.jit

        @functools.wraps(real)
        def jit(function: Any = None, **options: Any) -> Any:
            if function is None:
                return functools.partial(jit, **options)
            names = _static_names(function, options)
            return _traced(real, function, names, options) if names else real(function, **options)

        return replaced((jax, "jit", jit))


def _static_names(function: Any, options: dict[str, Any]) -> frozenset[str]:
    """The names of a function's static arguments; none where they cannot be told."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()
    numbers, words = options.get("static_argnums"), options.get("static_argnames")
    numbers = () if numbers is None else (numbers,) if isinstance(numbers, int) else numbers
    words = () if words is None else (words,) if isinstance(words, str) else words
    return frozenset((*words, *(parameters[number] for number in numbers)))


def _traced(real: Any, function: Any, names: frozenset[str], options: dict[str, Any]) -> Any:
    """jit of a function whose static arguments are those of `names` that are no floats."""
    others = {name: options[name] for name in options if not name.startswith("static_arg")}
    signature, jitted = inspect.signature(function), {}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        static = frozenset(name for name in names if not isinstance(given.get(name), float))
        if static not in jitted:
            jitted[static] = real(function, static_argnames=sorted(static) or None, **others)
        return jitted[static](*args, **kwargs)

    called.lower = real(function, **options).lower  # type: ignore[attr-defined]
    return called


class JaxJitKept(Cure):
    """A function that the program makes anew and gives to jax.jit again, such as a lambda in the
    loop, is compiled once, if all that it computes by is known to stay as it is: numbers, words,
    arrays of JAX, modules, classes, and functions and tuples of these."""

    name = "jax_jit_kept"
    title = "jax.jit compiles a function that is made again only once"
    answers = ("idle.compile",)
    result = EXACT
    change = "jax.jit(...) once, outside the loop, of a function that is given all that it needs"
    library = "jax"
    in_one_run = False

    def apply(self, jax: Any) -> Undo:
        real = jax.jit
        kept: dict[Any, Any] = {}

        @functools.wraps(real)
        def jit(function: Any = None, **options: Any) -> Any:
            if function is None:
                return functools.partial(jit, **options)
            try:
                key = _made_of(function, jax.Array), _made_of(tuple(sorted(options.items())), ())
            except _MayChange:
                return real(function, **options)
            if key not in kept and len(kept) < MOST_KEPT:
                kept[key] = real(function, **options)
            return kept[key] if key in kept else real(function, **options)

        return replaced((jax, "jit", jit))


MOST_KEPT = 256
"""Jitted functions that are kept, and what they compute by."""
MOST_DEEP = 4
"""Functions within functions that are looked into."""


class _MayChange(Exception):
    """What a function computes by may be another thing in the next call."""


_STAYS = (types.ModuleType, types.BuiltinFunctionType, type)


class _Itself:
    """Is equal to another of the same object only, which is kept."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value


def _made_of(value: Any, array: Any, depth: int = MOST_DEEP) -> Any:
    """What a function computes by: its code, and what it holds and takes from its module. Raises
    _MayChange."""
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, (*_STAYS, array)) or hasattr(value, "lower"):  # a jitted one
        return _Itself(value)
    if not depth:
        raise _MayChange
    if isinstance(value, tuple):
        return type(value), *(_made_of(each, array, depth - 1) for each in value)
    if not isinstance(value, types.FunctionType):
        raise _MayChange
    codes = [value.__code__]
    names: set[str] = set()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    try:
        held = [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:  # one that is not set yet
        raise _MayChange from None
    held += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    held += [value.__globals__[name] for name in sorted(names) if name in value.__globals__]
    return (value.__code__, *(_made_of(each, array, depth - 1) for each in held))
