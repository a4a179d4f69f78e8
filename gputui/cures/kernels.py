"""Which kernels compute: products of padded sizes, determinism, attention, convolutions' layout and
algorithms, keys that heads share."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from . import (
    ANY,
    ROUNDING,
    CannotApply,
    Cure,
    Redirected,
    before_first_calls,
    combined,
    instances,
    replaced,
)
from .copies import LEAST_BYTES
from .later import Value, as_given, class_of_later

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
        def padded(self: Any, input: Any) -> Any:
            rows, columns = self.weight.shape
            more_rows, more_columns = -rows % MULTIPLE, -columns % MULTIPLE
            if rows * columns < LEAST_PADDED or not (rows % 8 or columns % 8):
                return linear(self, input)
            weight = functional.pad(self.weight, (0, more_columns, 0, more_rows))
            bias = None if self.bias is None else functional.pad(self.bias, (0, more_rows))
            if more_columns:
                input = functional.pad(input, (0, more_columns))
            return functional.linear(input, weight, bias)[..., :rows]

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
    """scaled_dot_product_attention told that it is causal, or given no mask, where its mask says
    so: flash kernels take none, and leave out half of the work of a causal one. Masks that a line
    makes anew for each call are looked at on the GPU from the ninth on, without a wait, and where
    one of a block was another, the cure ends."""

    name = "causal_mask"
    title = (
        "attention takes is_causal=True in place of a triangular mask, none in place of an open one"
    )
    answers = (ANY, "causal_mask")
    result = ROUNDING
    is_certain = True
    change = (
        "F.scaled_dot_product_attention(q, k, v, is_causal=True), without attn_mask; none where it "
        "bars nothing"
    )

    def __init__(self, target: str = "") -> None:
        super().__init__(target)
        self._seen: dict[Any, tuple[Any, str]] = {}
        """Masks, which are held, and what they are: their memory is no other's then."""
        self._lines: dict[Any, _Masks] = {}
        self._triangles: dict[Any, Any] = {}
        self._differs: Any = None

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        self._torch = torch
        return ((torch.nn.functional, "scaled_dot_product_attention"),)

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        torch = self._torch
        words = {**dict(zip(_OF_ATTENTION, args)), **kwargs}  # noqa: B905
        mask = words.get("attn_mask")
        if (
            mask is None or words.get("is_causal") or torch.compiler.is_compiling()
            or type(mask) is not torch.Tensor or mask.requires_grad or mask.dim() < 2
        ):  # fmt: skip
            return None
        kind = self._kind_of(mask, words["query"].shape[-2], words["key"].shape[-2])
        if not kind:
            return None
        given = {**words, "attn_mask": None, "is_causal": kind == CAUSAL}
        return functools.partial(function, **given)

    def _kind_of(self, mask: Any, queries: int, keys: int) -> str:
        """CAUSAL, OPEN, or nothing of another."""
        is_square = queries == keys == mask.shape[-2] == mask.shape[-1] and queries > 1
        # A mask is often a part of a larger one, which is another tensor each time.
        key: Any = mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, queries, keys
        if not mask.is_inference():
            key = *key, mask._version
            if key in self._seen:
                return self._seen[key][1]
        caller = sys._getframe(3)
        line = self._lines.setdefault(
            (caller.f_code, caller.f_lineno, mask.shape, mask.dtype, is_square), _Masks()
        )
        if line.is_left or (mask.is_cuda and self._torch.cuda.is_current_stream_capturing()):
            return ""
        mask = mask[tuple(0 if not each else slice(None) for each in mask.stride()[:-2])]
        if line.count < LOOKED_AT:
            kinds = [CAUSAL, OPEN] if is_square else [OPEN]
            kind = next((each for each in kinds if not bool(self._is_other(mask, each))), "")
            line.is_left = not kind or line.kind not in ("", kind)
            line.kind, line.count = kind, line.count + 1
            if not mask.is_inference():
                self._seen[key] = mask, kind
        elif self._is_on:
            is_other = self._is_other(mask, line.kind)
            self._differs = is_other if self._differs is None else self._differs | is_other
        return line.kind

    def _is_other(self, mask: Any, kind: str) -> Any:
        """Whether it lets through anything else than such a mask, as a tensor."""
        torch = self._torch
        is_bool = mask.dtype is torch.bool
        let = mask if is_bool else mask == 0
        if kind == OPEN:
            return ~let.all()
        key = mask.shape[-1], mask.device
        if key not in self._triangles:
            square = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device)
            self._triangles[key] = square.tril()
        causal = self._triangles[key]
        is_other = let ^ causal
        return (is_other if is_bool else is_other | ((mask > BARRED) & ~causal)).any()

    def look(self) -> None:
        """Whether masks of a line went on to be what the first were."""
        if self._differs is not None and bool(self._differs):
            self.end("a line gives attention another mask after a while")
        self._differs = None


class _Masks:
    """Of one line, shape and type: how many were looked at, and what all of them were."""

    count, kind, is_left = 0, "", False


CAUSAL, OPEN = "causal", "open"
LOOKED_AT = 8
"""Masks of a line that are looked at, each with a wait, before they are taken for alike."""
_OF_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
BARRED = -1e4
"""What is added to a score that shall not count, or less."""


class AttentionWeightsOff(Redirected):
    """torch.nn.MultiheadAttention without the weights that it returns by default, for which it
    computes all scores instead of calling its fused kernel. Where the program reads them after all,
    they are computed, and the cure ends."""

    name = "attention_weights_off"
    title = "MultiheadAttention returns no weights"
    answers = ("busy.attention_unfused", "attention_fp32")
    result = ROUNDING
    is_certain = True
    change = "self.attention(q, k, v, need_weights=False)"

    _later: Any = None

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        self._torch = torch
        return ((torch.nn.MultiheadAttention, "forward"),)

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        if len(args) > _NEED_WEIGHTS or kwargs.get("need_weights", True) is False:
            return None
        return functools.partial(self._attend, function, args, kwargs)

    def _attend(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """What it gives, with weights that are computed when something is asked of them."""
        torch = self._torch
        made, _ = function(*args, **{**kwargs, "need_weights": False})
        if torch.compiler.is_compiling():
            return made, None
        module, *given = args
        given += [kwargs[name] for name in ("query", "key", "value") if name in kwargs]
        query, key = given[:2]
        if self._later is None:
            self._later = class_of_later(torch, self, lambda *_: NotImplemented)

        def read() -> Any:
            self.end("attention weights are read")
            return function(*args, **kwargs)[1]

        across = 0 if query.dim() == 2 or not module.batch_first else 1
        shape = [query.shape[across], key.shape[across]]
        if not kwargs.get("average_attn_weights", True):
            shape.insert(0, module.num_heads)
        if query.dim() == 3:
            shape.insert(0, query.shape[1 - across])
        value = Value(torch, self, read, as_given(*given[:3], *module.parameters()))
        return made, self._later(shape, made.dtype, made.device, value)


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
            convolutions = [m for m in module.modules() if isinstance(m, torch.nn.Conv2d)]
            for each in convolutions:  # a model may have a to() of its own, as timm's tasks
                each.to(memory_format=last)
            if convolutions:
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


class HeadsShared(Redirected):
    """Keys and values that are repeated for the heads of a query (repeat_interleave, expand and
    reshape) reach scaled_dot_product_attention as they are, with enable_gqa=True, where it is given
    no mask. Anything else that is asked of them has the repeated ones."""

    name = "heads_shared"
    title = "attention takes keys and values that heads share as they are, not repeated"
    answers = (ANY, "copies")
    result = ROUNDING
    is_certain = True
    change = "F.scaled_dot_product_attention(q, k, v, enable_gqa=True), without repeating k and v"
    advice = "enable_gqa"
    forecast = None

    unused = "no attention without a mask takes keys and values that are repeated"
    _calls_on = 0
    spared = 0
    """How often attention took what was not repeated."""
    _kind: Any = None

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        self._torch, tensor = torch, torch.Tensor
        return (
            (torch, "repeat_interleave"), (tensor, "repeat_interleave"), (tensor, "reshape")
        )  # fmt: skip

    def apply(self, torch: Any) -> Undo:
        self._kind = self._kind or class_of_later(torch, self, self._attend)
        return super().apply(torch)

    def look(self) -> None:
        """How often it was of use, once there was something to repeat."""
        if self._calls_on:
            self.used = self.spared

    def is_worth(self, source: Any) -> bool:
        """Whether what is repeated is on a GPU, and large."""
        return bool(source.is_cuda) and source.numel() * source.element_size() >= LEAST_BYTES

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        source: Any = args[0] if args else None
        if getattr(source, "ndim", 0) not in (4, 5) or type(source) is not self._torch.Tensor:
            return None
        is_repeat = function.__name__ == "repeat_interleave"
        if is_repeat != (source.ndim == 4):
            return None
        shared, dim = self._repeated(args, kwargs) if is_repeat else self._spread(source)
        if shared is None or not self.is_worth(shared) or self._torch.compiler.is_compiling():
            return None
        if not is_repeat:
            whole = self._torch.empty(source.shape, device="meta")
            shape = getattr(whole, function.__name__)(*args[1:], **kwargs).shape
            heads = source.shape[1] * source.shape[2]
            if tuple(shape) != (len(source), heads, *source.shape[3:]):
                return None

        def later() -> Any:
            self._calls_on += 1
            make = functools.partial(function, *args, **kwargs)
            times = args[1] if is_repeat else source.shape[2]
            return self._made(shared, times, dim, make)

        return later

    def _repeated(self, args: Any, kwargs: Any) -> tuple[Any, int]:
        dim = kwargs.get("dim", args[2] if len(args) == 3 else None)
        is_of_heads = type(dim) is int and dim % 4 in (1, 2) and set(kwargs) <= {"dim"}
        if len(args) < 2 or type(args[1]) is not int or args[1] < 2 or not is_of_heads:
            return None, 0
        return args[0], dim % 4

    def _spread(self, source: Any) -> tuple[Any, int]:
        """Of keys that were expanded for each head."""
        is_spread = source.shape[2] > 1 and source.stride(2) == 0
        return (source[:, :, 0] if is_spread else None), 1

    def _made(self, shared: Any, times: int, dim: int, make: Callable[[], Any]) -> Any:
        torch = self._torch
        shape = [*shared.shape]
        shape[dim] *= times
        has_graph = shared.requires_grad and torch.is_grad_enabled()
        value = Value(torch, self, make, as_given(shared))
        made = self._kind(shape, shared.dtype, shared.device, value, has_graph)
        made.shared, made.times, made.head_dim = shared, times, dim
        return made

    def _attend(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Attention of what is shared; NotImplemented of what needs it repeated."""
        name = getattr(function, "__name__", "")
        first: Any = args[0] if args else None
        if type(first) is self._kind:
            return self._moved(name, first, args, kwargs)
        if name != "scaled_dot_product_attention":
            return NotImplemented
        words: dict[str, Any] = {**dict(zip(_OF_ATTENTION, args)), **kwargs}  # noqa: B905
        key: Any = words.get("key")
        value: Any = words.get("value")
        if (
            type(key) is not self._kind or type(value) is not self._kind
            or key.value.tensor is not None or value.value.tensor is not None
            or key.head_dim != 1 or value.head_dim != 1 or key.times != value.times
            or words.get("attn_mask") is not None or words.get("enable_gqa")
            or words["query"].shape[1] != key.shape[1]
        ):  # fmt: skip
            return NotImplemented
        key.value.check()
        value.value.check()
        self.spared += 1
        words.update(key=key.shared, value=value.shared, enable_gqa=True)
        return function(**words)

    def _moved(self, name: str, rows: Any, args: Any, kwargs: Any) -> Any:
        """What is repeated, with positions and heads in each other's place, or as it is."""
        if name == "contiguous" and len(args) == 1 and not kwargs:
            return rows
        is_turn = name == "transpose" and not kwargs and sorted(n % 4 for n in args[1:]) == [1, 2]
        if not is_turn or rows.value.tensor is not None:
            return NotImplemented
        shared, value = rows.shared.transpose(1, 2), rows.value
        return self._made(
            shared, rows.times, 3 - rows.head_dim, lambda: value.now().transpose(1, 2)
        )
