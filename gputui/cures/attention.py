"""Attention, and the caches of what it has seen in generation."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import ANY, ROUNDING, CannotApply, Cure
from .changing import Redirected, combined, instances, replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo

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
        def changed(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
            if getattr(type(self), "_supports_sdpa", False) and (
                getattr(config, "_attn_implementation", None) not in _FUSED
            ):
                config._attn_implementation = "sdpa"
            init(self, config, *args, **kwargs)

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


class CudnnAttentionOff(Cure):
    """No attention of cuDNN, which makes a plan for each new length."""

    name = "cudnn_attention_off"
    title = "attention is not cuDNN's, which plans anew for each length"
    answers = ("idle.host", "idle.cuda", "idle.compile")
    result = ROUNDING
    change = "torch.backends.cuda.enable_cudnn_sdp(False)"
    advice = "enable_cudnn_sdp"

    def apply(self, torch: Any) -> Undo:
        cuda = torch.backends.cuda
        if not hasattr(cuda, "cudnn_sdp_enabled") or not cuda.cudnn_sdp_enabled():
            raise CannotApply("torch does not use cuDNN's attention")
        cuda.enable_cudnn_sdp(False)
        return functools.partial(cuda.enable_cudnn_sdp, True)


class KvCache(Redirected):
    """A KV cache for a generate() that was told to use none, and so computes the whole sequence
    anew for each token."""

    name = "kv_cache"
    title = "generate() keeps keys and values of the tokens before"
    answers = (ANY, "steps_grow")
    result = ROUNDING
    change = "model.generate(..., use_cache=True)"
    library = "transformers.generation.utils"
    advice = "use_cache"

    def places(self, utils: Any) -> tuple[tuple[Any, str], ...]:
        return ((utils.GenerationMixin, "generate"),)

    def instead(self, function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        usual = getattr(getattr(args[0], "generation_config", None), "use_cache", True)
        if kwargs.get("use_cache", usual) is not False:
            return None
        return functools.partial(function, *args, **{**kwargs, "use_cache": True})


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
    forecast = None

    def apply(self, utils: Any) -> Undo:
        generate = utils.GenerationMixin.generate

        @functools.wraps(generate)
        def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs.update(use_cache=True, cache_implementation="static")
            return generate(self, *args, **kwargs)

        return replaced((utils.GenerationMixin, "generate", changed))
