"""Modules that are given the same again: the very tensors, which are as they were, or equal
ones."""

from __future__ import annotations

import copy
import threading
import weakref
from typing import TYPE_CHECKING, Any

from . import ANY, EXACT, PLAIN, CannotApply, Cure, combined
from .copies import free_bytes_of_gpu
from .data import bytes_of
from .later import UNCOUNTED, counting_fused_steps, writes_of
from .module_calls import ModuleCalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo


class ResultsKept(Cure):
    """A module that is given the same tensors again, unchanged, where no gradients are asked for,
    returns what it gave before: an encoder within the loop of a sampler, keys and values of what
    is attended to at each token. Tensors of inference mode do not count how often they were written
    to: sums of them are compared at the end, and where one was, the cure is not applied again.
    Neither is it where a call that is made nevertheless, at each power of two, gives anything else:
    writes through .data or by a CUDA graph, numbers of a generator of its own, and what a module
    counts or holds are not seen otherwise."""

    name = "results_kept"
    title = "a module that is given the same tensors again returns what it gave"
    answers = (ANY, "repeated_layers")
    result = EXACT
    is_certain = True
    change = "what stays the same is computed once, before the loop"

    _is_on = False
    _left = 20_000
    """Calls of modules that are looked at before it is switched."""

    def prepare(self, torch: Any) -> None:
        main = threading.get_ident()
        self._torch = torch
        self._again: dict[int, int] = {}
        self._seen: dict[int, list[tuple[Any, list[Any]]]] = {}
        self._kept: dict[int, list[_Result]] = {}
        self._returned: dict[int, int] = {}
        """Times that a module returned what is kept."""
        self._watched: dict[int, tuple[Any, Any]] = {}

        def called(call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            if self.ended or (not self._is_on and self._left <= 0):
                self._calls.stop()
                return call(module, *args, **kwargs)
            if torch.is_grad_enabled() or module.training or threading.get_ident() != main:
                return call(module, *args, **kwargs)
            given = (*args, *kwargs.values())
            if not self._is_on:
                self._look(module, given, (*map(_as_given, given), *kwargs))
                return call(module, *args, **kwargs)
            if (
                self._again.get(id(module), 0) < LEAST_GIVEN or not any(map(is_tensor, given))
                or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
            ):  # fmt: skip
                return call(module, *args, **kwargs)
            owned = (*module.parameters(), *module.buffers())
            key = (*map(_as_given, (*given, *owned)), *kwargs, *_modes(torch))
            kept = self._kept.setdefault(id(module), [])
            for result in kept:
                if result.key == key and result.state == writes_in(result.made):
                    if self._is_to_be_checked(module):
                        made = call(module, *args, **kwargs)
                        if not has_same_bits(made, result.made):
                            self.end(WRITTEN)
                            return made
                    result.times += 1
                    return result.made
            # What was given to the program twice is one tensor in two places.
            if any(each.times > 1 and each.state != writes_in(each.made) for each in kept):
                self.end(WRITTEN)
            if len(kept) >= MOST_WATCHED and self._watched:
                self.look()
                self._forget()
                return call(module, *args, **kwargs)
            own = _numbers_of(module)
            made, has_drawn = called_once(torch, lambda: call(module, *args, **kwargs))
            if (
                not has_drawn and _is_of_tensors(made) and own == _numbers_of(module)
                and not has_hooks(module) and self._watch(given, owned, made)
            ):  # fmt: skip
                result = _Result(key, (given, owned), made)
                self._kept[id(module)] = [result, *kept[: MOST_GIVEN - 1]]
            return made

        self._calls = ModuleCalls(torch, called)
        self._calls.start()

    def _is_to_be_checked(self, module: Any) -> bool:
        count = self._returned[id(module)] = self._returned.get(id(module), 0) + 1
        return not count & (count - 1)

    def _look(self, module: Any, given: Any, key: Any) -> None:
        self._left -= 1
        seen = self._seen.setdefault(id(module), [])
        # A tensor that is gone may have left its place, and its number, to another.
        again = any(same == key and None not in [ref() for ref in refs] for same, refs in seen)
        self._again[id(module)] = self._again.get(id(module), 0) + again
        refs = [weakref.ref(value) for value in given if is_tensor(value)]
        self._seen[id(module)] = [(key, refs), *seen[: MOST_GIVEN - 1]]

    def _watch(self, *values: Any) -> bool:
        """Whether all tensors of inference mode among these are compared at the end."""
        for value in values:
            if isinstance(value, (tuple, list, dict)):
                if not self._watch(*(value.values() if isinstance(value, dict) else value)):
                    return False
            elif writes_of(value) is UNCOUNTED and id(value) not in self._watched:
                try:
                    self._watched[id(value)] = value, _sums(self._torch, value)
                except Exception:  # of a kind without sums
                    return False
        return True

    def look(self) -> None:
        """Whether what was watched, and what was given twice, is as it was."""
        equal = self._torch.equal
        if any(
            not equal(sums, _sums(self._torch, value)) for value, sums in self._watched.values()
        ) or any(
            each.times > 1 and each.state != writes_in(each.made)
            for kept in self._kept.values() for each in kept
        ):  # fmt: skip
            self.end(WRITTEN)

    def _forget(self) -> None:
        self._watched.clear()
        self._kept.clear()

    def apply(self, _torch: Any) -> Undo:
        self._left = 0
        self._calls.stop()
        if max(self._again.values(), default=0) < LEAST_GIVEN:
            raise CannotApply("no module is given the same tensors again")
        self._is_on = True
        self._calls.start()

        def undo() -> None:
            self._is_on = False
            self._calls.stop()
            self._forget()

        return combined(undo, counting_fused_steps())


class _Result:
    """What a module gave, and what it had been given, with how often that was written to."""

    def __init__(self, key: Any, held: Any, made: Any) -> None:
        self.key, self.made, self.state = key, made, writes_in(made)
        self._held = held  # so that no other tensor gets the number of one of the key
        self.times = 1
        """Times that the program was given it."""


def has_same_bits(made: Any, kept: Any) -> bool:
    """Whether tensors have the same bits. It waits for the GPU."""
    if is_tensor(made):
        is_alike = is_tensor(kept) and made.shape == kept.shape and made.dtype is kept.dtype
        return is_alike and bool(((made == kept) | (made.isnan() & kept.isnan())).all())
    if isinstance(made, dict):
        made, kept = list(made.items()), list(kept.items())
    if isinstance(made, (tuple, list)):
        return len(made) == len(kept) and all(
            has_same_bits(*pair)
            for pair in zip(made, kept)  # noqa: B905
        )
    return bool(made == kept)


def _is_of_tensors(made: Any) -> bool:
    """Whether a result holds tensors and plain values alone: a cache grows, an object changes."""
    if isinstance(made, dict):
        made = list(made.values())
    if isinstance(made, (tuple, list)):
        return all(map(_is_of_tensors, made))
    return is_tensor(made) or isinstance(made, PLAIN)


def _numbers_of(module: Any) -> list[Any]:
    """What modules hold that they may count, or collect, as they are called."""
    held = [value for each in module.modules() for value in vars(each).values()]
    plain = [value for value in held if isinstance(value, PLAIN)]
    return [*plain, *(len(value) for value in held if isinstance(value, (list, dict)))]


def has_hooks(module: Any) -> bool:
    """Whether something of the program's own is called with a module, or with one in it."""
    return any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())


WRITTEN = "what modules are given again was written to between"
LEAST_GIVEN = 3
"""Times that a module was given the same tensors again before it is switched, from which it is
given them in each step, and not once by chance."""
MOST_GIVEN = 4
"""Different inputs of a module that are remembered: with and without guidance, say;"""
SAMPLED = 1 << 14
"""Values of a tensor that are compared with what they were."""
MOST_WATCHED = 2
"""and of those that do not count how often they are written to, for which memory is held."""


def _as_given(value: Any) -> Any:
    """What tells one argument from another: a tensor by itself and how often it was written to."""
    if is_tensor(value):
        return id(value), writes_of(value)
    return value if isinstance(value, PLAIN) else object()


def _modes(torch: Any) -> tuple[bool, bool]:
    return torch.is_autocast_enabled("cuda"), torch.is_inference_mode_enabled()


def is_tensor(value: Any) -> bool:
    return hasattr(value, "data_ptr")


def _sums(torch: Any, value: Any) -> Any:
    """What tells a tensor from what it was before it was written to, where it is: nothing waits
    for it. The sum of its bits, read once, and values from all over it: an order is no sum.
    In FP64, twice, the sums took most of what a decoder gained."""
    real = torch.view_as_real(value) if value.is_complex() else value
    bits = real.detach().view(getattr(torch, f"int{8 * real.element_size()}"))
    every = max(1, bits.numel() // SAMPLED)
    sampled = bits.flatten()[::every] if bits.is_contiguous() else bits[:1].flatten()[:SAMPLED]
    return torch.cat((bits.sum(dtype=torch.int64).reshape(1), sampled.long()))


def called_once(torch: Any, call: Callable[[], Any]) -> tuple[Any, bool]:
    """What a call gives, and whether it drew random numbers."""
    before = _random_states(torch)
    made = call()
    return made, not all(map(torch.equal, before, _random_states(torch)))


def _random_states(torch: Any) -> list[Any]:
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    return [each.get_state() for each in generators]


def writes_in(value: Any) -> Any:
    """How often the tensors of a result were written to."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return tuple(map(writes_in, value))
    return writes_of(value)


# Modules that are given equal tensors again, which the program has made anew.

MOST_LOOKED = 64
"""Calls of modules that are looked at before anything is switched."""
LEAST_AGAIN, LEAST_SHARE = 3, 0.2
"""Of them those that are given what another was, in number and of all."""
MOST_INPUTS = 256
"""Different inputs that are kept;"""
MOST_INPUT_BYTES = 1 << 28
"""and the size of one, which is compared with what is kept."""
WEIGHTED = 4096
"""Values of a tensor whose places are in its sums: those of two that are swapped differ."""


class InputsKept(Cure):
    """A model that is given tensors equal to those of a call before, where no gradients are asked
    for, returns copies of what it gave: prompts that are tokenised again for each batch, documents
    that are embedded again for each query. What is given is compared, all of it. At each power of
    two the call is made nevertheless: where it gives anything else, as of a module that counts, the
    cure is not applied again."""

    name = "inputs_kept"
    title = "a model that is given equal tensors again returns what it gave"
    answers = (ANY, "repeated_layers")
    result = EXACT
    is_certain = True
    change = "what stays the same is computed once, before the loop, or kept by its text"
    forecast = None

    _is_on = False
    _returned = 0
    """Calls that were not made."""

    def prepare(self, torch: Any) -> None:
        self._torch = torch
        self._looked: list[tuple[Any, Any]] | None = []
        """Of calls what tells their input from others, and its sums, on the GPU."""
        self._kept: dict[Any, tuple[list[Any], Any]] = {}
        main, inside = threading.get_ident(), [False]

        def called(call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                inside[0] or module.training or not module._modules
                or torch.is_grad_enabled() or threading.get_ident() != main
            ):  # fmt: skip
                return call(module, *args, **kwargs)
            inside[0] = True
            try:
                key, given = self._key(module, args, kwargs)
                if key is None:
                    return call(module, *args, **kwargs)
                if self._is_on:
                    return self._made(key, given, lambda: call(module, *args, **kwargs))
                if self._looked is not None and len(self._looked) < MOST_LOOKED:
                    self._looked.append((key, self._sums(given)))
                return call(module, *args, **kwargs)
            finally:
                inside[0] = False

        self._calls = ModuleCalls(torch, called)
        self._calls.start()

    def apply(self, _torch: Any) -> Undo:
        if self._looked is not None:
            seen, again = set(), 0
            for key, sums in self._looked:
                place = key, tuple(sums.tolist())
                again += place in seen
                seen.add(place)
            count, self._looked = len(self._looked), None
            self._calls.stop()
            self._has_equal = again >= max(LEAST_AGAIN, LEAST_SHARE * count)
        if not self._has_equal:
            raise CannotApply("no model is given equal tensors again")
        self._is_on = True
        self._calls.start()

        def off() -> None:
            self._is_on = False
            self._calls.stop()
            self._kept.clear()

        return combined(off, counting_fused_steps())

    def is_worth(self, given: list[Any]) -> bool:
        """Whether these tensors are on a GPU, and little enough to be compared."""
        return all(each.is_cuda for each in given) and bytes_of(given) <= MOST_INPUT_BYTES

    def _key(self, module: Any, args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
        """What tells a call from others but for the values of its tensors, and these; None where
        it is made as it is."""
        torch = self._torch
        values = (*args, *kwargs.values())
        given = [each for each in values if isinstance(each, torch.Tensor)]
        others = [each for each in values if not isinstance(each, torch.Tensor)]
        if not given or not all(isinstance(each, PLAIN) for each in others):
            return None, given
        if len({each.device for each in given}) > 1 or not all(map(self._is_dense, given)):
            return None, given
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return None, given
        owned = [*module.parameters(), *module.buffers()]
        if not owned or not self.is_worth(given) or any(each.is_inference() for each in owned):
            return None, given
        if has_hooks(module):
            return None, given
        words = [
            (each.shape, each.dtype, each.device) if isinstance(each, torch.Tensor) else each
            for each in values
        ]
        # By a reference: another module may have the number of one that is gone. It is hashed while
        # there is something to hash.
        itself = weakref.ref(module)
        hash(itself)
        weights = [(id(each), writes_of(each)) for each in owned]
        return (itself, *words, *kwargs, *weights, *_modes(torch)), given

    def _is_dense(self, tensor: Any) -> bool:
        """Whether it has bits that are summed and compared: sparse, nested and quantized tensors,
        and those of other classes, are left alone."""
        torch = self._torch
        return (
            type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
            and not tensor.is_nested and not tensor.is_quantized
        )  # fmt: skip

    def _sums(self, given: list[Any]) -> Any:
        """Of the bits of tensors, where they are."""
        torch, sums = self._torch, []
        for each in given:
            real = torch.view_as_real(each) if each.is_complex() else each
            bits = real.detach().contiguous().view(-1)
            if bits.dtype is not torch.bool:
                bits = bits.view(getattr(torch, f"int{8 * bits.element_size()}"))
            some = bits[:: max(1, bits.numel() // WEIGHTED)].long()
            weights = torch.arange(1, len(some) + 1, device=some.device)
            sums += [bits.sum(dtype=torch.int64), (some * weights).sum()]
        return torch.stack(sums)

    def _made(self, key: Any, given: list[Any], call: Any) -> Any:
        """What was made of equal tensors, or is now."""
        torch = self._torch
        place = key, tuple(self._sums(given).tolist())
        own, kept = self._kept.pop(place, (None, None))
        if own is not None and all(map(torch.equal, own, given)):
            self._kept[place] = own, kept  # the newest
            self._returned += 1
            if self._returned & (self._returned - 1):
                return _copy_of(kept)
            made = call()
            if not has_same_bits(made, kept):
                self._is_on = False
                self.end("a model gives something else for equal tensors")
            return made
        made, has_drawn = called_once(torch, call)
        held = None if has_drawn else _copy_of(made)
        if held is not None and 8 * bytes_of(made) < free_bytes_of_gpu(torch):
            if len(self._kept) >= MOST_INPUTS:
                del self._kept[next(iter(self._kept))]
            self._kept[place] = [each.clone() for each in given], held
        return made


def _copy_of(made: Any) -> Any:
    """The same in tensors of its own; None of what holds anything else."""
    if hasattr(made, "data_ptr"):
        return None if made.requires_grad else made.clone()
    if type(made) in (tuple, list):
        copies = [_copy_of(each) for each in made]
        return None if any(each is None for each in copies) else type(made)(copies)
    if isinstance(made, dict) and not any(value is None for value in made.values()):
        copies = [_copy_of(each) for each in made.values()]
        if any(each is None for each in copies):
            return None
        new = copy.copy(made)
        for place, name in enumerate(made):
            new[name] = copies[place]
        return new
    return None
