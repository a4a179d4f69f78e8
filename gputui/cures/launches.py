"""Fewer launches for the same: the optimizer's step for all parameters at once, micro-batches and
embeddings together, adapters in the weights that they change."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from . import (
    ANY,
    EXACT,
    ROUNDING,
    CannotApply,
    Cure,
    Redirected,
    combined,
    instances,
    replaced,
)
from .copies import free_bytes_of_gpu
from .decoding import is_alike, with_forward
from .later import counting_fused_steps, writes_of, writes_of_weights
from .waits import has_compiled

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo


class AccumulationMerged(Cure):
    """transformers' Trainer with batches as large as those whose gradients it adds up, where they
    are small: the same examples in each step, in one pass. It needs more memory."""

    name = "accumulation_merged"
    title = "Trainer takes the batches whose gradients it adds up at once"
    answers = (ANY, "idle.launch", "idle.host")
    result = ROUNDING
    change = "per_device_train_batch_size times as large, gradient_accumulation_steps=1"
    library = "transformers.training_args"
    in_one_run = False
    is_certain = True
    forecast = None

    def apply(self, arguments: Any) -> Undo:
        kind = arguments.TrainingArguments
        after = kind.__post_init__

        @functools.wraps(after)
        def merged(self: Any, *args: Any, **kwargs: Any) -> None:
            self.per_device_train_batch_size *= self.gradient_accumulation_steps
            self.gradient_accumulation_steps = 1
            after(self, *args, **kwargs)

        return replaced((kind, "__post_init__", merged))

    def useless(self, arguments: Any) -> str | None:
        made = instances(arguments.TrainingArguments)
        if made is not None and not any(each.gradient_accumulation_steps > 1 for each in made):
            return "no Trainer adds up gradients"
        return None


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
    _clipped: frozenset[int] = frozenset()
    """The parameters, by their numbers, whose gradients were clipped last as one."""

    def prepare(self, torch: Any) -> None:
        """Gradients that no optimizer uses count in a norm by which all are clipped."""
        utils = torch.nn.utils
        clip = utils.clip_grad_norm_

        @functools.wraps(clip)
        def clipped(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            is_one = hasattr(parameters, "data_ptr")
            parameters = [parameters] if is_one else list(parameters)
            self._clipped = frozenset(map(id, parameters))
            return clip(parameters, *args, **kwargs)

        replaced((utils, "clip_grad_norm_", clipped), (utils.clip_grad, "clip_grad_norm_", clipped))

    def apply(self, torch: Any) -> Undo:
        unowned = self._unowned = self._unowned or _unowned(torch)
        if any(id(each) in self._clipped for each in unowned):
            raise CannotApply("gradients that no optimizer uses are clipped with the others")
        self._values = self._values or self._values_now()
        for each in unowned:
            each.requires_grad_(False)
            each.grad = None

        def undo() -> None:
            for each in unowned:
                each.requires_grad_(True)

        return undo

    def look(self) -> None:
        """Whether they are as they were, as what nothing updates is."""
        if self._values_now() != self._values:
            self.end("something else than torch's optimizers updates the parameters")

    def _values_now(self) -> list[float]:
        return [float(each.detach().flatten()[0]) for each in self._unowned]


def _unowned(torch: Any) -> tuple[Any, ...]:
    """Parameters that have gradients and are no optimizer's. Raises CannotApply."""
    optimizers = instances(torch.optim.Optimizer)
    if not optimizers:
        raise CannotApply("there is no optimizer")
    if instances(torch.nn.parallel.DistributedDataParallel) or "deepspeed" in sys.modules:
        raise CannotApply("what distributes the training waits for all gradients")
    modules = instances(torch.nn.Module) or ()
    parameters = {id(each): each for m in modules for each in m.parameters(recurse=False)}
    _, unowned = _step_marks().unowned_gradients(parameters.values(), optimizers)
    if not unowned:
        raise CannotApply("optimizers update all that has gradients, or copies of it")
    return tuple(unowned)


def _step_marks() -> Any:
    """The start-up hook's module, whose folder lies beside this one."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.path.join(folder, "inject", "hook", "step_marks.py")
    spec = importlib.util.spec_from_file_location("_gputui_step_marks", path)
    if spec is None or spec.loader is None:
        raise CannotApply(f"{path} is not there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


class ColumnsTogether(Cure):
    """Look-ups of the columns of one tensor, each in a table of its own, made at once: their tables
    one above the other, as one table would be; and linear layers of its columns, as one product of
    many matrices. What backward passes add up, they add up in another order."""

    name = "columns_together"
    title = "an embedding, or a linear layer, of each column of a table is computed with the others"
    answers = (ANY, "idle.launch")
    result = ROUNDING
    is_certain = True
    change = (
        "one nn.Embedding(sum(sizes), width) for all columns: table(codes + first_row_of_column); "
        "of numbers x.unsqueeze(-1) * weight + bias"
    )
    advice = "one table"

    _alike: list[list[Any]] | None = None

    def apply(self, torch: Any) -> Undo:
        if has_compiled():
            raise CannotApply("the program compiles what it calls")
        kinds = {torch.nn.Embedding: _Tables, torch.nn.Linear: _Linears}
        if self._alike is None:
            lists = instances(torch.nn.ModuleList, torch.nn.ModuleDict) or []
            self._alike = [
                alike for each in lists for kind in kinds
                if (alike := _alike(kind, [*each.children()]))
            ]  # fmt: skip
        if not self._alike:
            raise CannotApply("no list of embeddings of one width, or of small linear layers")
        groups = [kinds[type(alike[0])](torch, alike) for alike in self._alike]
        group_of = {id(layer): group for group in groups for layer in group.layers}

        def together(kind: Any) -> tuple[Any, str, Any]:
            forward = kind.forward

            @functools.wraps(forward)
            def computed(layer: Any, *args: Any, **kwargs: Any) -> Any:
                group = group_of.get(id(layer))
                given = args[0] if args else kwargs.get("input")
                made = None
                if group is not None and type(given) is torch.Tensor and group.may_compute():
                    made = group.compute(layer, given)
                return forward(layer, *args, **kwargs) if made is None else made

            return kind, "forward", computed

        return combined(replaced(*map(together, kinds)), counting_fused_steps())


LEAST_LAYERS, MOST_LAYERS_BYTES, MOST_INPUTS = 8, 1 << 28, 16
"""Layers that are worth it, of which all that they hold is copied in each step, and how many
columns a linear layer has at most."""


def _alike(kind: Any, layers: list[Any]) -> list[Any]:
    """These layers, if they are plain ones of this class that may be one."""
    if len(layers) < LEAST_LAYERS or any(type(each) is not kind for each in layers):
        return []
    kinds = {(each.weight.dtype, each.weight.device, *_shape_of(each)) for each in layers}
    held = sum(each.weight.numel() * each.weight.element_size() for each in layers)
    is_one = len(kinds) == 1 and None not in next(iter(kinds)) and held <= MOST_LAYERS_BYTES
    return layers if is_one else []


def _shape_of(layer: Any) -> tuple[Any, ...]:
    """What layers that may be one have alike; None is in it of what may not."""
    if hasattr(layer, "embedding_dim"):
        is_plain = (
            layer.padding_idx is layer.max_norm is None and not layer.sparse
            and not layer.scale_grad_by_freq
        )  # fmt: skip
        return layer.embedding_dim, is_plain or None
    is_small = layer.in_features <= MOST_INPUTS
    return layer.in_features, layer.out_features, layer.bias is not None, is_small or None


class _Columns:
    """Layers that are called one after the other, each with columns of one tensor."""

    def __init__(self, torch: Any, layers: list[Any]) -> None:
        self.layers, self._torch = layers, torch
        self._columns: dict[int, int] = {}
        """Of each layer, the first of those that it was given last."""
        self._first: Any = None
        """What that comes to on the layers' device, as the kind of layers needs it; None until it
        is made, and where a layer was given other columns."""
        self._base: Any = None
        self._state: Any = None
        self._made: dict[int, tuple[Any, Any]] = {}
        """What is not asked for yet, and how often its layer's weights had been written to."""
        self._thread: int | None = None
        """Whose calls are computed together: the first one's."""
        self._is_off = False
        """Whether not all of it was asked for: a layer that is left out has no gradient."""

    def may_compute(self) -> bool:
        """Whether layers may be computed together in this thread."""
        if self._is_off or self._torch.compiler.is_compiling():
            return False
        self._thread = self._thread or threading.get_ident()
        return self._thread == threading.get_ident()

    def compute(self, layer: Any, given: Any) -> Any:
        """What a layer makes of these columns; None where it is called alone."""
        base, column = given._base, self._column(given)
        if column is None or self._columns.get(id(layer)) != column:
            self._base, self._made = None, {}
            if column is not None:
                self._columns[id(layer)] = column
                self._first = None
            return None
        if len(self._columns) < len(self.layers):
            return None
        if self._made and self._base is not base:
            self._base, self._made, self._is_off = None, {}, True
            return None
        state = base._version, self._torch.is_grad_enabled(), self._torch.is_autocast_enabled()
        made, writes = self._made.pop(id(layer), (None, None))
        if (
            made is None or self._base is not base or self._state != state
            or writes != _writes_of_layer(layer)
        ):  # fmt: skip
            self._base, self._state = base, state
            columns = [self._columns[id(each)] for each in self.layers]
            self._made = {
                id(each): (value, _writes_of_layer(each))
                for each, value in zip(self.layers, self._compute_all(base, columns))  # noqa: B905
            }
            made, _ = self._made.pop(id(layer))
        if not self._made:
            self._base = None
        return made

    def _column(self, given: Any) -> int | None:
        """Which column of another tensor is the first of it; None where it is none."""
        raise NotImplementedError

    def _compute_all(self, base: Any, columns: list[int]) -> Any:
        raise NotImplementedError


def _writes_of_layer(layer: Any) -> list[Any]:
    return [writes_of(each) for each in layer._parameters.values() if each is not None]


def _column_of(given: Any, base: Any, shape: Any, stride: Any) -> int | None:
    if base is None or base.is_inference() or (given.shape, given.stride()) != (shape, stride):
        return None
    # Columns of what is expanded are all one.
    step = base.stride(-1) or 1
    column, rest = divmod(given.storage_offset() - base.storage_offset(), step)
    return column if not rest and 0 <= column < base.shape[-1] else None


class _Tables(_Columns):
    """Embeddings, each of a column of codes. `_first` is the columns, and the rows at which tables
    begin."""

    def _column(self, given: Any) -> int | None:
        base = given._base
        if base is None or base.dim() != given.dim() + 1:
            return None
        return _column_of(given, base, base.shape[:-1], base.stride()[:-1])

    def _compute_all(self, base: Any, columns: list[int]) -> Any:
        torch = self._torch
        if self._first is None:
            rows = [0]
            for table in self.layers[:-1]:
                rows.append(rows[-1] + table.num_embeddings)
            self._first = (
                torch.tensor(columns, device=base.device),
                torch.tensor(rows, device=base.device).view(-1, *[1] * (base.dim() - 1)),
            )
        codes = base.movedim(-1, 0).index_select(0, self._first[0]) + self._first[1]
        weights = torch.cat([table.weight for table in self.layers])
        return torch.nn.functional.embedding(codes, weights).unbind(0)


class _Linears(_Columns):
    """Linear layers, each of a few columns of numbers. `_first` is all of these columns."""

    def _column(self, given: Any) -> int | None:
        base, count = given._base, self.layers[0].in_features
        if base is None or base.dim() != given.dim() or base.requires_grad:
            return None
        return _column_of(given, base, (*base.shape[:-1], count), base.stride())

    def _compute_all(self, base: Any, columns: list[int]) -> Any:
        torch, count = self._torch, self.layers[0].in_features
        if self._first is None:
            every = [column + place for column in columns for place in range(count)]
            self._first = torch.tensor(every, device=base.device)
        rows = base.reshape(-1, base.shape[-1]).index_select(1, self._first)
        given = rows.view(len(rows), len(columns), count).transpose(0, 1)
        weights = torch.stack([each.weight for each in self.layers]).transpose(1, 2)
        if self.layers[0].bias is None:
            made = torch.bmm(given, weights)
        else:
            biases = torch.stack([each.bias for each in self.layers]).unsqueeze(1)
            made = torch.baddbmm(biases, given, weights)
        return made.view(len(columns), *base.shape[:-1], made.shape[-1]).unbind(0)


MOST_RANK, LEAST_RATIO = 512, 2
"""Of an adapter, and by how much smaller it is at least than what it is added to."""
TRIED_ROWS = 8


class OwnAdaptersMerged(Cure):
    """A module of the program's own that adds low-rank products to a linear layer (LoRA written by
    hand) computes one product, by the weight that both are together. That it does nothing else is
    seen by what it gives for zeros, for each input alone, and for random rows, twice as large
    too."""

    name = "own_adapters_merged"
    title = "low-rank adapters of the program's own are merged into the weights beside them"
    answers = (ANY, "idle.launch", "idle.host")
    result = ROUNDING
    is_certain = True
    change = "weight += scale * B @ A once, before inference"
    forecast = None

    _layers: list[_Layer] | None = None

    def apply(self, torch: Any) -> Undo:
        if has_compiled():
            raise CannotApply("the program compiles what it calls")
        if self._layers is None:
            if instances(torch.optim.Optimizer) != []:
                raise CannotApply("the program trains")
            modules = instances(torch.nn.Module) or []
            self._layers = [
                _Layer(torch, each, base) for each in modules
                if (base := _weight_beside_adapters(torch, each)) is not None
            ]  # fmt: skip
        room, merged = free_bytes_of_gpu(torch) // 2, []
        for layer in self._layers:
            room -= layer.base.nbytes
            if room > 0 and layer.merge():
                merged.append(layer)
        if not merged:
            raise CannotApply("no module of its own adds low-rank products to a linear layer")
        self._merged = merged
        undos = [replaced(with_forward(each.module, each.forward)) for each in merged]
        return combined(*(each.forget for each in merged), *undos)

    def look(self) -> None:
        """Whether weights are what they were."""
        if any(each.writes != writes_of_weights(each.module) for each in self._merged):
            self.end("weights that are merged are written to")


def _weight_beside_adapters(torch: Any, module: Any) -> Any:
    """The large weight of a module that has small ones of low rank beside it; None of others."""
    linear = torch.nn.Linear
    if type(module).__module__.startswith(("torch.", "peft.", "transformers.")) or module.training:
        return None
    own = [each for each in module.children() if isinstance(each, linear)]
    inner = [each for each in module.modules() if each is not module]
    weights = [each.weight for each in own] + list(module.parameters(recurse=False))
    matrices = [each for each in weights if each.dim() == 2]
    if len(inner) > TRIED_ROWS or len(matrices) < 3:
        return None
    base = max(matrices, key=lambda each: each.numel())
    rows, columns = base.shape
    small = [
        each for each in matrices
        if each is not base and min(each.shape) <= min(MOST_RANK, min(base.shape) // LEAST_RATIO)
        and (rows in each.shape or columns in each.shape)
    ]  # fmt: skip
    return base if len(small) == len(matrices) - 1 else None


class _Layer:
    """One such module, and the weight that it computes by."""

    def __init__(self, torch: Any, module: Any, base: Any) -> None:
        self._torch, self.module, self.base = torch, module, base
        self._forward = module.forward
        self._weight = self._bias = None
        self.writes: Any = None

    def merge(self) -> bool:
        """Find the weight; whether the module is nothing but a product with it."""
        torch, base = self._torch, self.base
        self.writes = writes_of_weights(self.module)
        count = base.shape[1]
        words = {"dtype": base.dtype, "device": base.device}
        try:
            with torch.no_grad(), torch.random.fork_rng():
                bias = self._forward(torch.zeros(1, count, **words))
                rows = torch.randn(TRIED_ROWS, count, **words)
                right, twice = self._forward(rows), self._forward(rows * 2.0)
                whole = (self._forward(torch.eye(count, **words)) - bias).t().contiguous()
        except Exception:  # it is given something else
            return False
        if whole.shape != base.shape or whole.dtype is not base.dtype:
            return False
        self._weight, self._bias = whole, bias[0] if bool(bias.any()) else None
        made = torch.nn.functional.linear(rows, whole, self._bias)
        is_linear = is_alike(made, right) and is_alike((twice - bias).float(), (right - bias) * 2.0)
        if not is_linear:
            self.forget()
        return is_linear

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives, by one product."""
        torch = self._torch
        x: Any = args[0] if args else None
        if (
            self._weight is None or len(args) != 1 or kwargs or type(x) is not torch.Tensor
            or x.dtype is not self._weight.dtype or (torch.is_grad_enabled() and x.requires_grad)
            or self.module.training or x.shape[-1] != self._weight.shape[1]
        ):  # fmt: skip
            return self._forward(*args, **kwargs)
        return torch.nn.functional.linear(x, self._weight, self._bias)

    def forget(self) -> None:
        """Let go of the merged weight, so that its memory is free."""
        self._weight = self._bias = None
