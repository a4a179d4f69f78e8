"""Which kernels compute: determinism, attention and what it keeps, convolutions' layout and
algorithms, lengths of FFTs."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from . import (
    ANY,
    COMPILING_S,
    ROUNDING,
    CannotApply,
    Cure,
    Redirected,
    before_first_calls,
    combined,
    instances,
    replaced,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo


MULTIPLE = 64
"""Dimensions of such numbers are aligned for tensor cores in every type (NVIDIA, "Matrix
Multiplication Background", 2.2)."""

LEAST_PADDED = 1 << 20
"""Elements of a weight that is padded at least."""


class PaddedProducts(Cure):
    """Weights of linear layers padded with zeros for their products, which gives the same numbers:
    what a vocabulary of 50,257 rows costs beside one of 50,304."""

    name = "padded_products"
    title = f"linear layers compute with dimensions padded to a multiple of {MULTIPLE}"
    answers = ("busy.matmul_unaligned",)
    result = ROUNDING
    change = "a vocabulary, or width, of math.ceil(n / 64) * 64, of which n are used"

    def apply(self, torch: Any) -> Undo:
        linear, functional = torch.nn.Linear.forward, torch.nn.functional

        @functools.wraps(linear)
        def padded(self: Any, x: Any) -> Any:
            rows, columns = self.weight.shape
            more_rows, more_columns = -rows % MULTIPLE, -columns % MULTIPLE
            if rows * columns < LEAST_PADDED or not (rows % 8 or columns % 8):
                return linear(self, x)
            weight = functional.pad(self.weight, (0, more_columns, 0, more_rows))
            bias = None if self.bias is None else functional.pad(self.bias, (0, more_rows))
            if more_columns:
                x = functional.pad(x, (0, more_columns))
            return functional.linear(x, weight, bias)[..., :rows]

        return replaced((torch.nn.Linear, "forward", padded))


class DeterministicOff(Cure):
    """Deterministic algorithms off, which add up in order what others add up at once."""

    name = "deterministic_off"
    title = "algorithms need not give the same bits each time"
    answers = (ANY, "serial_scatter")
    result = ROUNDING
    is_certain = True
    change = "torch.use_deterministic_algorithms(False), torch.backends.cudnn.deterministic = False"
    advice = "use_deterministic_algorithms"

    def apply(self, torch: Any) -> Undo:
        cudnn = torch.backends.cudnn
        was_on = torch.are_deterministic_algorithms_enabled()
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        of_cudnn = cudnn.deterministic
        if not was_on and not of_cudnn:
            raise CannotApply("deterministic algorithms are not asked for")
        torch.use_deterministic_algorithms(False)
        cudnn.deterministic = False

        def undo() -> None:
            torch.use_deterministic_algorithms(was_on, warn_only=warns)
            cudnn.deterministic = of_cudnn

        return undo


_FUSED = ("sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")


class Sdpa(Cure):
    """Fused attention in models of Hugging Face transformers."""

    name = "sdpa"
    title = "models of transformers use scaled_dot_product_attention"
    answers = ("busy.attention_unfused",)
    result = ROUNDING
    change = 'from_pretrained(..., attn_implementation="sdpa")'
    library = "transformers.modeling_utils"
    in_one_run = False
    advice = "scaled_dot_product_attention"

    def apply(self, modeling: Any) -> Undo:
        model = modeling.PreTrainedModel
        init = model.__init__
        if not hasattr(model, "_supports_sdpa"):
            raise CannotApply("this transformers has no SDPA")

        @functools.wraps(init)
        def changed(self_: Any, config: Any, *args: Any, **kwargs: Any) -> None:
            if getattr(type(self_), "_supports_sdpa", False) and (
                getattr(config, "_attn_implementation", None) not in _FUSED
            ):
                self.seen_from(sys._getframe(1))
                config._attn_implementation = "sdpa"
            init(self_, config, *args, **kwargs)

        return replaced((model, "__init__", changed))

    def useless(self, modeling: Any) -> str | None:
        made = instances(modeling.PreTrainedModel)
        if made is None:
            return None
        ways = {getattr(model.config, "_attn_implementation", None) for model in made}
        if made and not ways <= {*_FUSED}:
            return None
        return f"attention is {', '.join(map(str, ways))}" if made else "it makes no such model"


_SDP = ("flash_sdp", "mem_efficient_sdp")


class FusedSdpa(Redirected):
    """scaled_dot_product_attention by its fused kernels, where the program turned them off, for the
    process or around a call (sdpa_kernel)."""

    name = "fused_sdpa"
    title = "scaled_dot_product_attention may use its fused kernels"
    answers = (ANY, "busy.attention_unfused", "attention_fp32")
    result = ROUNDING
    is_certain = True
    change = "no enable_flash_sdp(False), no sdpa_kernel(SDPBackend.MATH)"
    forecast = None

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        self._backend = torch.nn.attention.SDPBackend
        return ((torch.nn.attention, "sdpa_kernel"),)

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        given = args[0] if args and isinstance(args[0], (list, tuple)) else args[:1]
        fused = [self._backend.FLASH_ATTENTION, self._backend.EFFICIENT_ATTENTION]
        if {*fused} & {*given}:
            return None
        return functools.partial(function, [*given, *fused], *args[1:], **kwargs)

    def apply(self, torch: Any) -> Undo:
        cuda = torch.backends.cuda
        off = [name for name in _SDP if not getattr(cuda, f"{name}_enabled")()]
        self._calls += len(off)
        undo = super().apply(torch)
        for name in off:
            getattr(cuda, f"enable_{name}")(True)
        return combined(
            undo, *(functools.partial(getattr(cuda, f"enable_{name}"), False) for name in off)
        )


class CausalMask(Redirected):
    """scaled_dot_product_attention told that it is causal, where it is given a mask that says so:
    fused kernels read no mask then, and leave half of the work out."""

    name = "causal_mask"
    title = "attention takes is_causal=True in place of a triangular mask"
    answers = (ANY, "causal_mask")
    result = ROUNDING
    is_certain = True
    change = "F.scaled_dot_product_attention(q, k, v, is_causal=True), without attn_mask"

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        self._torch = torch
        self._seen: dict[Any, tuple[Any, bool]] = {}
        return ((torch.nn.functional, "scaled_dot_product_attention"),)

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        torch = self._torch
        if torch.compiler.is_compiling():
            return None
        mask = args[_MASK] if len(args) > _MASK else kwargs.get("attn_mask")
        if mask is None or len(args) > _MASK + 1 or kwargs.get("is_causal") or len(args) < 2:
            return None
        lengths = args[0].shape[-2], args[1].shape[-2]
        if type(mask) is not torch.Tensor or mask.is_inference() or mask.requires_grad:
            return None
        if tuple(mask.shape[-2:]) != lengths or lengths[0] != lengths[1] or lengths[0] < 2:
            return None
        # A mask is often a part of a larger one, which is another tensor each time.
        key = mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, mask._version
        if key not in self._seen:
            is_recorded = mask.is_cuda and torch.cuda.is_current_stream_capturing()
            if is_recorded or len(self._seen) >= MOST_MASKS:
                return None
            self._seen[key] = mask, self._is_causal(mask)  # kept: its memory is no other's then
        if not self._seen[key][1]:
            return None
        given = {**kwargs, "attn_mask": None, "is_causal": True}
        return functools.partial(function, *args[:_MASK], **given)

    def _is_causal(self, mask: Any) -> bool:
        """Whether it lets through what is not later, and nothing else, for all that it is for."""
        torch = self._torch
        let = mask if mask.dtype is torch.bool else mask == 0
        is_barred = let | (mask <= BARRED) if mask.dtype is not torch.bool else let | ~let
        causal = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()
        return bool((let == causal).all() and is_barred.all())


_MASK = 3
"""The place of the mask among the arguments of attention."""
BARRED = -1e4
"""What is added to a score that shall not count, or less."""
MOST_MASKS = 64
"""A program that makes a mask of its own for each call is left as it is after so many."""


class AttentionWeightsOff(Redirected):
    """torch.nn.MultiheadAttention without the weights that it returns by default, for which it
    computes all scores instead of calling its fused kernel. A program that uses them fails."""

    name = "attention_weights_off"
    title = "MultiheadAttention returns no weights"
    answers = ("busy.attention_unfused", "attention_fp32")
    result = ROUNDING
    is_certain = True
    change = "self.attention(q, k, v, need_weights=False)"

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        return ((torch.nn.MultiheadAttention, "forward"),)

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        if len(args) > _NEED_WEIGHTS or kwargs.get("need_weights", True) is False:
            return None
        return functools.partial(function, *args, **{**kwargs, "need_weights": False})


_NEED_WEIGHTS = 5
"""Its place among the arguments of MultiheadAttention.forward, after self."""


class CudnnAttentionOff(Cure):
    """No attention of cuDNN, which makes a plan for each new length."""

    name = "cudnn_attention_off"
    title = "attention is not cuDNN's, which plans anew for each length"
    answers = ("cudnn_plans", "idle.host", "idle.cuda", "idle.compile")
    result = ROUNDING
    change = "torch.backends.cuda.enable_cudnn_sdp(False)"
    advice = r"enable_cudnn_sdp\(False\)"

    def apply(self, torch: Any) -> Undo:
        cuda = torch.backends.cuda
        if not hasattr(cuda, "cudnn_sdp_enabled") or not cuda.cudnn_sdp_enabled():
            raise CannotApply("torch does not use cuDNN's attention")
        cuda.enable_cudnn_sdp(False)
        return functools.partial(cuda.enable_cudnn_sdp, True)


class KvCache(Cure):
    """A KV cache for a generate() that was told to use none, and so computes the whole sequence
    anew for each token. A block of steps may end before the texts do that were begun without
    it."""

    name = "kv_cache"
    title = "generate() keeps keys and values of the tokens before"
    answers = (ANY, "steps_grow")
    result = ROUNDING
    is_certain = True
    change = "model.generate(..., use_cache=True), or in its GenerationConfig"
    library = "transformers.generation.utils"
    in_one_run = False
    advice = "use_cache"

    def apply(self, utils: Any) -> Undo:
        generate = utils.GenerationMixin.generate

        @functools.wraps(generate)
        def cached(self_: Any, *args: Any, **kwargs: Any) -> Any:
            self.seen_from(sys._getframe(1))
            return generate(self_, *args, **{**kwargs, "use_cache": True})

        return replaced((utils.GenerationMixin, "generate", cached))

    def useless(self, utils: Any) -> str | None:
        # A step is a token, in generate().
        codes = {
            getattr(function, "__code__", None) for function in vars(utils.GenerationMixin).values()
        }
        frame: Any = sys._getframe()
        while frame is not None:
            config = frame.f_locals.get("generation_config") if frame.f_code in codes else None
            if getattr(config, "use_cache", None) is False:
                return None
            frame = frame.f_back
        return "no generate() without a KV cache in its steps"


class StaticCache(Cure):
    """A KV cache of a fixed size in transformers' generate, which then compiles its forward
    pass."""

    name = "static_cache"
    title = "generate() has a KV cache of a fixed size"
    answers = ("idle.launch", "idle.host")
    result = ROUNDING
    change = 'model.generate(..., cache_implementation="static")'
    library = "transformers.generation.utils"
    in_one_run = False
    longer_s = COMPILING_S
    forecast = None

    def apply(self, utils: Any) -> Undo:
        generate = utils.GenerationMixin.generate

        @functools.wraps(generate)
        def changed(self_: Any, *args: Any, **kwargs: Any) -> Any:
            self.seen_from(sys._getframe(1))
            kwargs.update(use_cache=True, cache_implementation="static")
            return generate(self_, *args, **kwargs)

        return replaced((utils.GenerationMixin, "generate", changed))


class ChannelsLast(Cure):
    """Images and convolutions with their channels last, as tensor cores take them."""

    name = "channels_last"
    title = "convolutions and their input have channels last"
    answers = ("layout", "slow_kernels", "busy.matmul_simt")
    result = ROUNDING
    change = "model = model.to(memory_format=torch.channels_last), the same for its input"
    in_one_run = False
    advice = "channels_last"

    def apply(self, torch: Any) -> Undo:
        last = torch.channels_last
        hooks: list[Any] = []

        def is_image(value: Any) -> bool:
            is_tensor = isinstance(value, torch.Tensor)
            return is_tensor and value.dim() == 4 and value.is_floating_point()

        def converted(value: Any) -> Any:
            return value.contiguous(memory_format=last) if is_image(value) else value

        def before(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return tuple(map(converted, args)), {name: converted(kwargs[name]) for name in kwargs}

        def change(module: Any) -> None:
            if any(isinstance(part, torch.nn.Conv2d) for part in module.modules()):
                module.to(memory_format=last)
                hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))

        def remove() -> None:
            for hook in hooks:
                hook.remove()

        return combined(before_first_calls(torch, change), remove)

    def useless(self, torch: Any) -> str | None:
        return "there are no convolutions" if instances(torch.nn.Conv2d) == [] else None


class CudnnOn(Cure):
    """cuDNN where the program turned it off."""

    name = "cudnn_on"
    title = "convolutions and RNNs are cuDNN's"
    answers = (ANY, "slow_kernels", "without_cudnn")
    result = ROUNDING
    is_certain = True
    change = "no torch.backends.cudnn.enabled = False"
    forecast = None

    def apply(self, torch: Any) -> Undo:
        cudnn = torch.backends.cudnn
        if cudnn.enabled or not cudnn.is_available():
            raise CannotApply("torch.backends.cudnn.enabled is on, or there is no cuDNN")
        cudnn.enabled = True
        return functools.partial(setattr, cudnn, "enabled", False)


class CudnnBenchmark(Cure):
    """cuDNN tries its algorithms for each new shape, and keeps the fastest."""

    name = "cudnn_benchmark"
    title = "cuDNN chooses algorithms by trying them"
    answers = (ANY, "slow_kernels", "busy.matmul_simt")
    result = ROUNDING
    change = "torch.backends.cudnn.benchmark = True, where shapes stay the same"
    forecast = None

    _is_known = False
    """Whether there are convolutions, which takes long to look for."""

    def apply(self, torch: Any) -> Undo:
        cudnn = torch.backends.cudnn
        if cudnn.benchmark:
            raise CannotApply("torch.backends.cudnn.benchmark is on")
        kinds = torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d
        if not self._is_known and instances(*kinds) == []:
            raise CannotApply("there are no convolutions")
        self._is_known = True
        cudnn.benchmark = True
        return functools.partial(setattr, cudnn, "benchmark", False)


class CudnnBenchmarkOff(Cure):
    """cuDNN takes the algorithm that it expects to be fast, where sizes vary."""

    name = "cudnn_benchmark_off"
    title = "cuDNN does not try its algorithms for each new size"
    answers = ("cudnn_plans", "idle.host", "idle.cuda", "idle.alloc")
    result = ROUNDING
    tells_at_once = True
    change = "torch.backends.cudnn.benchmark = False, where sizes vary"
    advice = r"cudnn\.benchmark = False|cuDNN chooses"

    def apply(self, torch: Any) -> Undo:
        cudnn = torch.backends.cudnn
        if not cudnn.benchmark:
            raise CannotApply("torch.backends.cudnn.benchmark is off")
        cudnn.benchmark = False
        return functools.partial(setattr, cudnn, "benchmark", True)


class FftLengths(Cure):
    """Convolutions by transforms of a length with a large prime factor, at the next length without
    one. Which it is for: what is zero-padded to that length, and transformed back to it. Of a
    convolution, or a correlation, the longer result has as many zeros more, which are left out: it
    is looked whether they are there, and where they are not, the program is not given the result
    and fails."""

    name = "fft_lengths"
    title = "transforms of zero-padded signals have lengths of small prime factors"
    answers: ClassVar[tuple[str, ...]] = ("prime_fft",)
    result = ROUNDING
    change = "n = scipy.fft.next_fast_len(len(x) + len(kernel) - 1), and the result's first part"
    in_one_run = False
    advice = "next_fast_len"

    def apply(self, library: Any) -> Undo:
        self._library = library
        self._longer: dict[int, int] = {}
        """By length that of transforms in its place,"""
        self._padded: dict[int, set[int]] = {}
        """and those of what was padded to it."""
        self._gaps: dict[Any, int] = {}
        """By line and shape where zeros are;"""
        self._changing: set[Any] = set()
        """lines at which they are not always there."""
        self._looks: dict[Any, int] = {}
        places = [
            (owner, f"{inverse}{kind}{rank}", self._standing_in(owner, inverse, kind, rank))
            for owner in self.owners(library)
            for inverse in ("", "i") for kind in ("fft", "rfft") for rank in ("", "2", "n")
            if hasattr(owner, f"{inverse}{kind}{rank}")
        ]  # fmt: skip
        return replaced(*places)

    def owners(self, library: Any) -> tuple[Any, ...]:
        """The modules that have the transforms."""
        return (library.fft,)

    def joined(self, tensors: list[Any], axis: int) -> Any:
        """Arrays one after the other."""
        return self._library.cat(tensors, axis)

    def is_traced(self, _value: Any) -> bool:
        """Whether nothing can be asked of it: it is compiled."""
        return False

    def _standing_in(self, owner: Any, inverse: str, kind: str, rank: str) -> Any:
        real = getattr(owner, f"{inverse}{kind}{rank}")
        change = self._back if inverse else self._forth

        @functools.wraps(real)
        def called(
            x: Any, size: Any = None, axis: Any = None, norm: Any = None, **more: Any
        ) -> Any:
            frame = sys._getframe(1)
            self._line = frame.f_code, frame.f_lasti
            size = more.pop("n", more.pop("s", size))
            axis = more.pop("dim", more.pop("axes", more.pop("axis", axis)))
            given = {("s" if rank else "n"): size, "norm": norm, **more}
            if axis is not None:
                given[self.axis_word(rank)] = axis
            if size is None or norm not in (None, "backward") or not hasattr(x, "shape"):
                if inverse and x.shape[-1] in {half // 2 + 1 for half in self._longer.values()}:
                    raise RuntimeError("the length of a transform is not given")
                return real(x, **given)
            sizes = list(size) if rank else [size]
            usual = range(-len(sizes), 0)
            axes = list(usual if axis is None else axis if rank else [axis])
            return change(real, x, sizes, [place % len(x.shape) for place in axes], given, kind)

        return called

    def axis_word(self, _rank: str) -> str:
        """What the library calls axes."""
        return "dim"

    def _call(self, real: Any, x: Any, sizes: list[int], given: dict[str, Any]) -> Any:
        word = "s" if "s" in given else "n"
        return real(x, **{**given, word: tuple(sizes) if word == "s" else sizes[0]})

    def _forth(
        self, real: Any, x: Any, sizes: list[int], axes: list[int], given: Any, _kind: str
    ) -> Any:
        longer = list(sizes)
        for place, size in enumerate(sizes):
            axis = axes[place]
            if size > x.shape[axis] and _largest_factor(size) > OF_CUFFT:
                longer[place] = self._longer.setdefault(size, _fast_length(size))
                self._padded.setdefault(size, set()).add(x.shape[axis])
        return self._call(real, x, longer, given)

    def _back(
        self, real: Any, x: Any, sizes: list[int], axes: list[int], given: Any, kind: str
    ) -> Any:
        longer = list(sizes)
        for place, size in enumerate(sizes):
            axis = axes[place]
            wanted = self._longer.get(size)
            is_half = kind == "rfft" and place == len(sizes) - 1
            if wanted is not None and x.shape[axis] == (wanted // 2 + 1 if is_half else wanted):
                longer[place] = wanted
        made = self._call(real, x, longer, given)
        for place, size in enumerate(sizes):
            if longer[place] != size:
                made = self._without_gap(made, size, longer[place] - size, axes[place])
        return made

    def _without_gap(self, made: Any, size: int, gap: int, axis: int) -> Any:
        """A result without the zeros that the longer transform has given it."""

        def part(first: int | None, last: int | None) -> Any:
            return made[(slice(None),) * axis + (slice(first, last),)]

        def is_empty(place: int) -> Any:
            return abs(part(place, place + gap)).max() <= EMPTY * abs(made).max()

        if self.is_traced(made):
            return self._library.numpy.where(is_empty(size), part(None, size), float("nan"))
        key = self._line, made.shape, size, axis
        looks = self._looks[key] = self._looks.get(key, 0) + 1
        before = self._gaps.get(key)
        # At first, and then more and more rarely: each look waits.
        if looks <= LOOKED_AT or not looks & (looks - 1) or key in self._changing:
            # A convolution's zeros come last, a correlation's between lags forth and back.
            places = (*filter(None, [before]), size, *self._padded[size])
            place = next((each for each in places if bool(is_empty(each))), None)
            if place is None:
                raise RuntimeError("transforms of a convolution have no zeros where they should")
            if before not in (None, place):
                self._changing.add(key)
            self._gaps[key] = place
        place = self._gaps[key]
        if place == size:
            return part(None, size)
        return self.joined([part(None, place), part(place + gap, None)], axis)


OF_CUFFT = 127
"""Largest prime factor of lengths for which cuFFT has an algorithm of its own (cuFFT, "Accuracy and
Performance")."""
EMPTY = 1e-4
"""Of the largest value: what FP32 leaves of a zero."""
LOOKED_AT = 4


def _largest_factor(number: int) -> int:
    largest, factor = 1, 2
    while factor * factor <= number:
        if number % factor:
            factor += 1
        else:
            largest, number = factor, number // factor
    return max(largest, number)


def _fast_length(least: int) -> int:
    """The next even length of factors up to 7."""
    length = least + least % 2
    while _largest_factor(length) > 7:
        length += 2
    return length


class CupyFftLengths(FftLengths):
    """The same of CuPy's transforms, and of those that are called as SciPy's."""

    name = "cupy_fft_lengths"
    library = "cupy"

    def owners(self, library: Any) -> tuple[Any, ...]:
        """cupy.fft, and cupyx.scipy.fft, which the program may import later."""
        with contextlib.suppress(ImportError):
            return library.fft, importlib.import_module("cupyx.scipy.fft")
        return (library.fft,)

    def joined(self, tensors: list[Any], axis: int) -> Any:
        return self._library.concatenate(tensors, axis)

    def axis_word(self, rank: str) -> str:
        return "axes" if rank else "axis"


class JaxFftLengths(CupyFftLengths):
    """The same of JAX's transforms. Where they are compiled, a result whose zeros are not there is
    no number."""

    name = "jax_fft_lengths"
    library = "jax"

    def owners(self, library: Any) -> tuple[Any, ...]:
        return (library.numpy.fft,)

    def joined(self, tensors: list[Any], axis: int) -> Any:
        return self._library.numpy.concatenate(tensors, axis)

    def is_traced(self, value: Any) -> bool:
        return isinstance(value, self._library.core.Tracer)
