"""What is computed again and again of the same: results, beginnings of texts, caches that grow."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

from . import ANY, EXACT, PLAIN, ROUNDING, CannotApply, Cure, combined, instances, replaced
from .copies import LEAST_BYTES, LEAST_KEPT_BYTES, free_bytes_of_gpu
from .data import bytes_of
from .decoding import CHECKED, copy_of_cache, is_alike, with_forward
from .later import counting_fused_steps, in_modes_of_now, writes_of_weights
from .results_kept import called_once, has_same_bits, is_tensor, writes_in

if TYPE_CHECKING:
    from . import Undo


_FOLLOWS = {
    "linalg": "", "fft": "",
    "nn.functional": "normalize one_hot interpolate pad unfold softmax log_softmax",
    "": "inverse cdist cov corrcoef sort argsort unique topk cumsum tril triu kron matmul mm bmm "
    "einsum softmax log_softmax quantile median mul sub add div bitwise_and",
    "Tensor": "inverse sort argsort unique topk cumsum to float double half bfloat16 contiguous "
    "repeat to_dense to_sparse to_sparse_csr coalesce softmax log_softmax type __mul__ __rmul__ "
    "__sub__ __add__ __radd__ __truediv__ __and__ __rshift__ __lshift__ __matmul__ mul sub add div "
    "matmul mm",
}  # fmt: skip
"""Functions whose result follows from their arguments: all of a module, where none is named."""


WRITTEN = "what functions were given again was written to"


class ComputedKept(Cure):
    """Functions of torch that are given the very tensors again, unchanged, and no gradients are
    asked of, give what they gave: an inverse, a transform or a cast of what stays as it is. Where
    the program writes to what was kept, that is not kept again, and where it had been given it
    twice, the cure is not applied again. Neither is it where a call that is made nevertheless, at
    each power of two, gives anything else: what a CUDA graph writes to is not counted."""

    name = "computed_kept"
    title = "functions of torch that are given the same tensors again return what they gave"
    answers: ClassVar[tuple[str, ...]] = ("computed_before",)
    result = EXACT
    change = "what follows from what stays the same is computed once, before the loop"

    def __init__(self, target: str = "") -> None:
        super().__init__(target)
        self._returned: dict[Any, int] = {}
        """Times that a function returned what is kept."""
        self._looked = 0

    def apply(self, torch: Any) -> Undo:
        self._torch = torch
        self._kept: dict[Any, _Kept] = {}
        self._room = free_bytes_of_gpu(torch) // 4
        places = [
            (owner, name, self._keeping(getattr(owner, name))) for owner, name in self.places(torch)
        ]
        undo = replaced(*places)
        return combined(lambda: self._kept.clear(), undo)

    def look(self) -> None:
        """Whether what was given twice is as it was, and some of it, each time other, what the
        functions give by now."""
        twice = [each for each in self._kept.values() if each.made is not None and each.times > 1]
        first = self._looked % max(1, len(twice))
        self._looked += MOST_MADE_AGAIN
        if any(each.state != writes_in(each.made) for each in twice) or any(
            each.is_other() for each in (twice[first:] + twice[:first])[:MOST_MADE_AGAIN]
        ):
            self.end(WRITTEN)

    def places(self, torch: Any) -> list[tuple[Any, str]]:
        """The functions that are kept, each by its owner and name."""
        places = []
        for place, names in _FOLLOWS.items():
            owner = torch
            for part in filter(None, place.split(".")):
                owner = getattr(owner, part)
            for name in names.split() or [each for each in dir(owner) if each.islower()]:
                function = getattr(owner, name, None)
                if name[0] != "_" and callable(function) and not isinstance(function, type):
                    places.append((owner, name))
        return places

    def _keeping(self, function: Any) -> Any:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            tensors = [each for each in (*args, *kwargs.values()) if is_tensor(each)]
            key = self._key(function, tensors, args, kwargs) if tensors else None
            if key is None:
                return function(*args, **kwargs)
            kept, writes = self._kept.get(key), [each._version for each in tensors]
            if kept is None or not kept.is_of(writes):
                if kept is not None and kept.made is not None:
                    self._room += bytes_of(kept.made)
                if len(self._kept) < MOST_COMPUTED or kept is not None:
                    self._kept[key] = _Kept(tensors, writes)  # what is given once is not held
                else:
                    self._kept = {k: v for k, v in self._kept.items() if v.made is not None}
                return function(*args, **kwargs)
            if kept.made is not None and kept.state != writes_in(kept.made):
                if kept.times > 1:
                    self.end(WRITTEN)
                kept.made, kept.is_written = None, True  # it is the program's own from now on
            if kept.made is None:
                # What is made in inference mode does not count how often it is written to.
                with self._torch.inference_mode(False), self._torch.no_grad():
                    made, has_drawn = called_once(self._torch, lambda: function(*args, **kwargs))
                kept.is_written = kept.is_written or has_drawn
                is_own = not any(made is each for each in tensors)  # a cast to what it is
                if (
                    not kept.is_written and is_own and _are_tensors(made)
                    and bytes_of(made) < self._room
                ):  # fmt: skip
                    self._room -= bytes_of(made)
                    # What it is of is held with it: its memory is no other's then.
                    kept.made, kept.state, kept.tensors = made, writes_in(made), tensors
                    make = functools.partial(function, *args, **kwargs)
                    kept.make = in_modes_of_now(self._torch, make)
                kept.times = 1
                return made
            self._returned[function] = count = self._returned.get(function, 0) + 1
            if not count & (count - 1):
                made = function(*args, **kwargs)
                if not has_same_bits(made, kept.made):
                    kept.made, kept.is_written = None, True
                    self.end(WRITTEN)
                    return made
            kept.times += 1
            return kept.made

        return called

    def _key(self, function: Any, tensors: list[Any], args: Any, kwargs: Any) -> Any:
        """What tells a call from others; None for one that is made as it is."""
        torch = self._torch
        if torch.compiler.is_compiling() or len(tensors) > MOST_TENSORS or self.ended:
            return None
        if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
            return None
        if not any(map(self.is_far, tensors)) or any(each.is_inference() for each in tensors):
            return None
        given = (*args, *kwargs.values())
        modules = [each for each in given if isinstance(each, torch.nn.Module)]
        others = [each for each in given if not is_tensor(each) and each not in modules]
        plain = (*PLAIN, torch.dtype, torch.device, torch.memory_format, torch.layout)
        if not all(isinstance(each, plain) or _is_shape(each) for each in others):
            return None
        # What depends on trained parameters has gradients, and is not kept for that.
        owned = [value for each in modules for value in (*each.parameters(), *each.buffers())]
        return (
            function, *map(_place, tensors), *map(repr, others), *kwargs, *map(id, modules),
            *(value._version for value in owned if not value.requires_grad),
            torch.is_autocast_enabled("cuda"),
        )  # fmt: skip

    def is_far(self, tensor: Any) -> bool:
        """Whether it is on a GPU, and worth it."""
        return bool(tensor.is_cuda) and int(tensor.nbytes) >= LEAST_BYTES


class GraphsKept(ComputedKept):
    """What a graph's layer passes along its edges, and their weights, where neither the graph nor
    what is passed changes, and nothing in it is trained: the first layers of a network over one
    graph with fixed features (PyG)."""

    name = "graphs_kept"
    title = "what is passed along the edges of the same graph is computed once"
    answers = (ANY, "computed_before")
    is_certain = True
    change = "SGConv(..., cached=True), GCNConv(..., cached=True), or x propagated before the loop"
    library = "torch_geometric"

    def apply(self, _library: Any) -> Undo:
        return super().apply(sys.modules["torch"])

    def places(self, _torch: Any) -> list[tuple[Any, str]]:
        """Where the functions are: some classes have a function of their own."""
        message = sys.modules["torch_geometric"].nn.MessagePassing
        kinds = {base for each in instances(message) or () for base in type(each).__mro__}
        if not kinds:
            raise CannotApply("there is no layer of PyG")
        named = [
            module for name, module in sys.modules.items()
            if name.startswith("torch_geometric.") and "gcn_norm" in vars(module)
        ]  # fmt: skip
        own = [(kind, "propagate") for kind in kinds if "propagate" in vars(kind)]
        return [*own, *((module, "gcn_norm") for module in named)]


MOST_COMPUTED, MOST_TENSORS = 4096, 4
MOST_MADE_AGAIN = 16
"""Of what is kept, results that are made again at the end of a block."""


def _owner(tensor: Any) -> Any:
    return tensor if tensor._base is None else tensor._base


def _place(tensor: Any) -> tuple[Any, ...]:
    """Which tensor it is, and of what it is a view."""
    place = id(_owner(tensor)), tensor.data_ptr()
    return (*place, tuple(tensor.shape), tensor.stride(), tensor.dtype)


class _Kept:
    """What a function gave of tensors that were written to so often."""

    def __init__(self, tensors: list[Any], writes: list[int]) -> None:
        self.writes_of, self._refs = writes, [weakref.ref(_owner(each)) for each in tensors]
        self.made: Any = None
        self.state: Any = None
        self.tensors: list[Any] = []
        self.make: Any = None
        self.times = 0
        self.is_written = False

    def is_of(self, writes: list[int]) -> bool:
        """Whether they are those that there were, and as they were."""
        return self.writes_of == writes and None not in [ref() for ref in self._refs]

    def is_other(self) -> bool:
        """Whether it is not what the function gives of the same, as far as writes are counted."""
        is_same = self.is_of([each._version for each in self.tensors])
        return is_same and not has_same_bits(self.make(), self.made)


def _is_shape(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(each, PLAIN) for each in value)


def _are_tensors(value: Any) -> bool:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return all(is_tensor(each) and not each.requires_grad for each in values)


class BeginningKept(Cure):
    """Keys and values of a beginning that all texts share, in a batch and from batch to batch, kept
    for a causal model of transformers that computes whole texts without gradients: what comes later
    has no part in them. It is looked in each call whether the texts begin so, and the first calls,
    and some later ones, are made both ways: where they differ, nothing is kept any more."""

    name = "beginning_kept"
    title = "a causal model keeps what it computed of a beginning that all texts share"
    answers = ("shared_beginning",)
    result = ROUNDING
    change = "past_key_values of the beginning, computed once, for each batch (cropped after it)"
    library = "transformers.modeling_utils"

    _models: list[Any] | None = None
    used: int = 0
    unused = "no texts that a model is given begin alike"

    def apply(self, modeling: Any) -> Undo:
        if self._models is None:
            self._models = [
                each
                for each in instances(modeling.PreTrainedModel) or []
                if not getattr(each.config, "is_encoder_decoder", False)
                and each.get_output_embeddings() is not None
            ]
        if not self._models:
            raise CannotApply("there is no causal model of transformers")
        wrapped = [with_forward(each, _Beginning(each, self).forward) for each in self._models]
        return combined(replaced(*wrapped), counting_fused_steps())


LEAST_SHARED, LEAST_SHARED_PART = 64, 0.25
"""Tokens of a beginning, and its part of a text, from which it is kept."""
MOST_BEGINNINGS = 8
_LEFT_OPEN = {"input_ids", "attention_mask", "use_cache", "logits_to_keep", "return_dict"}


class _Beginning:
    """The beginning of a model's texts."""

    def __init__(self, model: Any, cure: BeginningKept) -> None:
        self._model, self._forward, self._cure = model, model.forward, cure
        self._torch = sys.modules["torch"]
        self._is_off = False
        self._spared = 0
        """Calls in which the beginning was not computed."""
        self._ids: Any = None
        """The last text, and the shared beginning of all,"""
        self._shared: Any = None
        self._caches: dict[int, Any] = {}
        """with its keys and values by the size of a batch,"""
        self._logits: Any = None
        """and what the model gave for it."""
        self._weights: Any = None
        """How often the model's weights had been written to then."""
        self._kept = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives, its shared beginning out of what is kept where that is allowed."""
        made = None
        is_off = self._is_off or self._cure.ended or self._model.training
        if len(args) <= 1 and not is_off and not self._torch.is_grad_enabled():
            given = {key: kwargs[key] for key in kwargs if kwargs[key] is not None}
            ids = args[0] if args else given.get("input_ids")
            if ids is not None and ids.dim() == 2 and given.keys() <= _LEFT_OPEN:
                try:
                    made = self._computed(ids, given)
                except Exception:  # it is not made for that
                    self._is_off = True
        if made is None:
            return self._forward(*args, **kwargs)
        self._spared += 1
        self._cure.used += 1
        if self._spared <= CHECKED or not self._spared & (self._spared - 1):
            whole = self._forward(*args, **kwargs)
            if not is_alike(made.logits, whole.logits):
                self._is_off = True
                self._cure.used -= 1
                if self._spared > CHECKED:  # until then each was made both ways
                    self._cure.end("a model gives something else beside a beginning that is kept")
                return whole
            self._cure.both_ways += 1
        return made

    def _computed(self, ids: Any, given: dict[str, Any]) -> Any:
        """With what is kept; None where it is not of that."""
        before, self._ids = self._ids, ids[0].clone()
        weights = writes_of_weights(self._model)
        if weights != self._weights:
            self._weights, self._shared = weights, None
        keeps, mask = given.get("logits_to_keep", 0), given.get("attention_mask")
        if before is None or not isinstance(keeps, int) or given.get("return_dict") is False:
            return None
        shared = self._shared
        if shared is None or len(shared) >= ids.shape[1] or (
            not bool((ids[:, : len(shared)] == shared).all())
        ):  # fmt: skip
            shared = self._keep_beginning(ids, before)
        if shared is None:
            return None
        length, (batch, whole) = len(shared), ids.shape
        if mask is not None and (mask.shape != ids.shape or not bool(mask[:, :length].all())):
            return None
        if batch not in self._caches:
            self._caches = {1: self._caches[1], batch: copy_of_cache(self._caches[1])}
            self._caches[batch].batch_repeat_interleave(batch)
        more = {"attention_mask": mask} if mask is not None else {}
        if 0 < keeps <= whole - length:
            more["logits_to_keep"] = keeps
        made = self._forward(
            input_ids=ids[:, length:], past_key_values=copy_of_cache(self._caches[batch]),
            use_cache=True, **more,
        )  # fmt: skip
        if keeps == 0 or keeps > whole - length:
            first = self._logits.expand(batch, -1, -1)
            logits = self._torch.cat((first, made.logits), 1)
            made.logits = logits[:, -keeps:] if keeps else logits
        if given.get("use_cache") is False:
            made.past_key_values = None
        return made

    def _keep_beginning(self, ids: Any, before: Any) -> Any:
        """The beginning that these texts share with the one before, kept; None where it is short,
        or others were kept too often."""
        length = min(len(before), ids.shape[1] - 1)
        same = (ids[:, :length] == before[:length]).all(0)
        length = int(same.long().cumprod(0).sum())
        if length < max(LEAST_SHARED, LEAST_SHARED_PART * ids.shape[1]):
            return None
        self._kept += 1
        if self._kept > MOST_BEGINNINGS:
            return None
        shared = ids[0, :length].clone()
        made = self._forward(input_ids=shared[None], use_cache=True)
        cache = made.past_key_values
        layers = getattr(cache, "layers", ())
        if not layers or any(type(each).__name__ != "DynamicLayer" for each in layers):
            self._kept = MOST_BEGINNINGS
            return None
        self._shared, self._logits, self._caches = shared, made.logits, {1: cache}
        return shared


class CacheGrows(Cure):
    """A tensor that grows by torch.cat, such as a decoder's keys and values, grows within memory
    that has room for it: what was there is not read and written again. What is given out are parts
    of that memory, and only the newest of them grows: where the program writes to one in place, the
    cure is not applied again."""

    name = "cache_grows"
    title = "tensors that grow by torch.cat grow in place"
    answers = ("copies",)
    result = EXACT
    change = "a buffer of the full length, made once, and slices of it"
    advice = r"torch\.cat"

    def __init__(self, target: str = "") -> None:
        super().__init__(target)
        self._growing: dict[int, _Growing] = {}

    def apply(self, torch: Any) -> Undo:
        growing = self._growing
        cat = torch.cat

        @functools.wraps(cat)
        def grown(tensors: Any, dim: Any = 0, **options: Any) -> Any:
            is_pair = type(tensors) in (tuple, list) and len(tensors) == 2
            if (
                not is_pair or options or type(dim) is not int or not self.is_worth(tensors)
                or torch.is_grad_enabled() or torch.compiler.is_compiling() or self.ended
            ):  # fmt: skip
                return cat(tensors, dim, **options)
            first = tensors[0]
            before = growing.pop(id(first), None)
            made = None
            if before is not None and before.was_written():
                self.end(WRITTEN_IN_PLACE)
            if before is not None and before.tensor() is first:
                made = before.with_more(torch, tensors[1], dim % tensors[0].dim())
            if made is None:
                made = _Growing(cat(tensors, dim), None, 0)
            if len(growing) >= MOST_GROWING:
                self.look()
                growing.clear()
            growing[id(made.newest)] = made
            return made.given()

        places = [(torch, name, grown) for name in ("cat", "concat", "concatenate")]

        return combined(growing.clear, replaced(*places))

    def look(self) -> None:
        """Whether any of them was written to."""
        if any(each.was_written() for each in self._growing.values()):
            self.end(WRITTEN_IN_PLACE)

    def is_worth(self, tensors: Any) -> bool:
        """Whether the first is much, on a GPU, and the second little."""
        first, second = tensors
        return (
            bool(first.is_cuda) and first.nbytes >= LEAST_KEPT_BYTES
            and first.dtype is second.dtype and first.dim() == second.dim()
            and second.numel() * 4 <= first.numel()
        )  # fmt: skip


WRITTEN_IN_PLACE = "tensors that grow are written to in place"
MOST_GROWING = 1024
LEAST_ROOM = 64


class _Growing:
    """What torch.cat gave, within memory that has room for more; without any where it was the
    first."""

    def __init__(self, newest: Any, memory: Any, version: int) -> None:
        self.newest, self._memory, self._version = newest, memory, version
        self.tensor = weakref.ref(newest)

    def given(self) -> Any:
        """It, held by who asked for it alone."""
        newest, self.newest = self.newest, None
        return newest

    def was_written(self) -> bool:
        """Whether the program wrote to memory that several tensors are parts of. Writes to that of
        inference mode are not counted."""
        memory = self._memory
        return not (memory is None or memory.is_inference() or memory._version == self._version)

    def with_more(self, torch: Any, more: Any, dim: int) -> _Growing | None:
        """With more behind it; None where that has no place in it."""
        first: Any = self.tensor()
        have, whole = first.shape[dim], first.shape[dim] + more.shape[dim]
        shape = list(first.shape)
        if [n for d, n in enumerate(more.shape) if d != dim] != [
            n for d, n in enumerate(shape) if d != dim
        ]:
            return None
        memory = self._memory
        if memory is None or memory.shape[dim] < whole:
            shape[dim] = max(whole + LEAST_ROOM, whole + whole // 2)
            if shape[dim] * first.nbytes > have * free_bytes_of_gpu(torch) // 4:
                return None
            memory = torch.empty(shape, dtype=first.dtype, device=first.device)
            memory.narrow(dim, 0, have).copy_(first)
        elif self.was_written():
            return None
        memory.narrow(dim, have, more.shape[dim]).copy_(more)
        newest = memory.narrow(dim, 0, whole)
        version = 0 if memory.is_inference() else memory._version
        return _Growing(newest, memory, version)
