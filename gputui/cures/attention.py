"""Attention, and the caches of what it has seen in generation."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import ANY, ROUNDING, CannotApply, Cure
from .changing import instances, replaced

if TYPE_CHECKING:
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


class FusedSdpa(Cure):
    """scaled_dot_product_attention by its fused kernels, where the program turned them off, for the
    process or around a call (sdpa_kernel)."""

    name = "fused_sdpa"
    title = "scaled_dot_product_attention may use its fused kernels"
    answers = (ANY, "busy.attention_unfused", "attention_fp32")
    result = ROUNDING
    change = "no enable_flash_sdp(False), no sdpa_kernel(SDPBackend.MATH)"
    forecast = None

    _is_on = _was_entered = _is_prepared = False

    def prepare(self, torch: Any) -> None:
        if self._is_prepared or not hasattr(torch.nn.attention, "sdpa_kernel"):
            return
        self._is_prepared = True
        attention = torch.nn.attention
        kernel, backend = attention.sdpa_kernel, attention.SDPBackend

        @functools.wraps(kernel)
        def sdpa_kernel(backends: Any, *args: Any, **kwargs: Any) -> Any:
            given = backends if isinstance(backends, (list, tuple)) else [backends]
            if not {backend.FLASH_ATTENTION, backend.EFFICIENT_ATTENTION} & {*given}:
                self._was_entered = True
                if self._is_on:
                    backends = [*given, backend.FLASH_ATTENTION, backend.EFFICIENT_ATTENTION]
            return kernel(backends, *args, **kwargs)

        replaced((attention, "sdpa_kernel", sdpa_kernel))

    def apply(self, torch: Any) -> Undo:
        self.prepare(torch)
        cuda = torch.backends.cuda
        off = [name for name in _SDP if not getattr(cuda, f"{name}_enabled")()]
        if not off and not self._was_entered:
            raise CannotApply("its fused kernels are on")
        for name in off:
            getattr(cuda, f"enable_{name}")(True)
        self._is_on = True

        def undo() -> None:
            self._is_on = False
            for name in off:
                getattr(cuda, f"enable_{name}")(False)

        return undo


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


class KvCache(Cure):
    """A KV cache for a generate() that was told to use none, and so computes the whole sequence
    anew for each token."""

    name = "kv_cache"
    title = "generate() keeps keys and values of the tokens before"
    answers = (ANY, "steps_grow")
    result = ROUNDING
    change = "model.generate(..., use_cache=True)"
    library = "transformers.generation.utils"
    advice = "use_cache"

    _is_on = _was_without = _is_prepared = False

    def prepare(self, utils: Any) -> None:
        if self._is_prepared:
            return
        self._is_prepared = True
        generate = utils.GenerationMixin.generate

        @functools.wraps(generate)
        def cached(model: Any, *args: Any, **kwargs: Any) -> Any:
            usual = getattr(getattr(model, "generation_config", None), "use_cache", True)
            if kwargs.get("use_cache", usual) is False:
                self._was_without = True
                if self._is_on:
                    kwargs["use_cache"] = True
            return generate(model, *args, **kwargs)

        replaced((utils.GenerationMixin, "generate", cached))

    def apply(self, utils: Any) -> Undo:
        self.prepare(utils)
        if not self._was_without:
            raise CannotApply("generate(use_cache=False) was not called until now")
        self._is_on = True
        return functools.partial(setattr, self, "_is_on", False)


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
