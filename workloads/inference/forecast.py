"""What a run needs, and which values do not go together: without torch, before anything is made."""

from __future__ import annotations

from collections.abc import Mapping

from ..declaration import Forecast, Value
from ..errors import DoesNotFit
from ..parameters import ELEMENT_BYTES
from ..peaks import Peak
from .memory import Footprint, decode_step_bytes, forward_flops
from .shapes import SHAPES, Shape


def refuse_what_does_not_fit(values: Mapping[str, Value], shape: Shape) -> None:
    """Raise DoesNotFit if prompt and answer are longer than the model's context, for a text without
    a model to tokenize it, and for graphs where there are none.
    """
    prompt, tokens = int(values["prompt"]), int(values["tokens"])
    if prompt + tokens > shape.context:
        raise DoesNotFit(
            f"prompt + tokens = {prompt} + {tokens} = {prompt + tokens} is more than the context "
            f"of {shape.context}",
            "tokens",
            "prompt",
        )
    if values["text"] and not values["model"]:
        raise DoesNotFit("text: needs a tokenizer; name a model folder", "text", "model")
    if values["graphs"] and values["device"] == "cpu":
        raise DoesNotFit("graphs: CUDA graphs need a GPU", "graphs", "device")
    if values["graphs"] and shape.experts:
        raise DoesNotFit(
            "graphs: a mixture of experts asks the host how many tokens each has", "graphs", "size"
        )
    if values["graphs"] and values["compile"]:
        raise DoesNotFit("graphs and compile: choose one of them", "graphs", "compile")


def forecast(values: Mapping[str, Value], peak: Peak | None) -> Forecast:
    """Of a declared size; the shape of a folder's model is known once it is read."""
    if values["model"]:
        return Forecast()
    shape = SHAPES[str(values["size"])]
    refuse_what_does_not_fit(values, shape)
    batch, prompt, tokens = (int(values[name]) for name in ("batch", "prompt", "tokens"))
    precision = str(values["precision"])
    element_bytes = ELEMENT_BYTES[precision]
    naive = values["attention"] == "naive"
    footprint = Footprint.estimate(shape, batch, prompt, tokens, element_bytes, naive=naive)
    flops_per_s = peak.flops_per_s(precision) if peak is not None else None
    if peak is None or not flops_per_s or not peak.bytes_per_s:
        return Forecast(memory_bytes=footprint.total_bytes)
    rounds = int(values["warmup"])
    step_bytes = decode_step_bytes(shape, batch, prompt + tokens / 2, element_bytes)
    prefill_s = forward_flops(shape, batch, prompt) / flops_per_s
    decode_s = step_bytes / peak.bytes_per_s
    return Forecast(
        memory_bytes=footprint.total_bytes,
        seconds=(1 + rounds) * prefill_s + (tokens - 1 + rounds) * decode_s,
    )
