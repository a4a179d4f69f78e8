"""Modules that are given equal tensors again, which the program has made anew."""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any

from . import ANY, EXACT, PLAIN, CannotApply, Cure, combined, replaced
from .copies import free_bytes_of_gpu
from .data import bytes_of
from .results_kept import has_hooks, has_same_bits, random_states
from .writes import counting_fused_steps, writes_of

if TYPE_CHECKING:
    from . import Undo

MOST_LOOKED = 64
"""Calls of modules that are looked at before anything is switched."""
LEAST_AGAIN, LEAST_SHARE = 3, 0.2
"""Of them those that are given what another was, in number and of all."""
MOST_GIVEN = 256
"""Different inputs that are kept;"""
MOST_INPUT_BYTES = 1 << 28
"""and the size of one, which is compared with what is kept."""
SAMPLED = 4096


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
    _looks = True
    """Whether calls are looked at, or made out of what is kept."""

    def prepare(self, torch: Any) -> None:
        self._torch = torch
        self._looked: list[tuple[Any, Any]] | None = []
        """Of calls what tells their input from others, and its sums, on the GPU."""
        self._kept: dict[Any, tuple[list[Any], Any]] = {}
        call, main, inside = torch.nn.Module.__call__, threading.get_ident(), [False]

        @functools.wraps(call)
        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                not self._looks or inside[0] or module.training or not module._modules
                or torch.is_grad_enabled() or torch.compiler.is_compiling()
                or threading.get_ident() != main
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

        replaced((torch.nn.Module, "__call__", called))

    def apply(self, _torch: Any) -> Undo:
        if self._looked is not None:
            seen, again = set(), 0
            for key, sums in self._looked:
                place = key, tuple(sums.tolist())
                again += place in seen
                seen.add(place)
            count, self._looked, self._looks = len(self._looked), None, False
            self._has_equal = again >= max(LEAST_AGAIN, LEAST_SHARE * count)
        if not self._has_equal:
            raise CannotApply("no model is given equal tensors again")
        self._is_on = self._looks = True

        def off() -> None:
            self._is_on = self._looks = False
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
        modes = torch.is_autocast_enabled("cuda"), torch.is_inference_mode_enabled()
        # By a reference: another module may have the number of one that is gone. It is hashed while
        # there is something to hash.
        itself = weakref.ref(module)
        hash(itself)
        weights = [(id(each), writes_of(each)) for each in owned]
        key = (itself, *words, *kwargs, *weights, *modes)
        return key, given

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
            some = bits[:: max(1, bits.numel() // SAMPLED)].long()
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
        before = random_states(torch)
        made = call()
        is_drawn = not all(map(torch.equal, before, random_states(torch)))
        held = None if is_drawn else _copy_of(made)
        if held is not None and 8 * bytes_of(made) < free_bytes_of_gpu(torch):
            if len(self._kept) >= MOST_GIVEN:
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
