"""A GGUF file answers a prompt by llama.cpp, through llama-cpp-python: the phases and figures of a
model of PyTorch's, as far as llama.cpp shows them.

llama.cpp launches its kernels itself: of a step one sees `eval`, the whole network, and `sample`.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import nvtx

from ..ceilings import NOT_MEASURED
from ..declaration import FigureValue
from ..devices import free_bytes
from ..errors import CannotRun
from ..peaks import share_percent
from ..place import Place
from .generation import SAMPLE, STEP
from .gguf import GgufFile, read_gguf
from .results import ONE_TOKEN, Latency
from .settings import Settings

EVAL = nvtx.annotate("eval")

_CONTEXT_STEP = 256
"""Positions of a KV cache are a multiple of it (`llama_context` of llama-context.cpp)."""

_MOST_BATCH = 2048
"""Tokens of a prompt that llama.cpp takes at a time, its default: a longer prompt is several."""


class GgufGenerator:
    """Writes up to `settings.tokens` tokens after a prompt, greedily, as `generation.Generator`
    does: on the GPU if the place is one, else on the CPU. `settings` has the prompt's real length.

    Raises CannotRun, in one line: without llama-cpp-python, for what is no whole GGUF file, for
    settings that are PyTorch's alone, for more than the model's context or the memory that is free.
    """

    def __init__(self, settings: Settings, place: Place) -> None:
        self._path = str(Path(settings.model).expanduser())
        self.file = read_gguf(Path(self._path))
        for name, is_torch in (
            ("batch", settings.batch > 1),
            ("attention", settings.attention != "auto"),
            ("compile", settings.compile),
            ("graphs", settings.graphs),
            ("snapshot", settings.snapshot),
        ):
            if is_torch:
                raise CannotRun(
                    f"{name}: a GGUF file is run by llama.cpp, which has none; leave it"
                )
        self._library = _llama_cpp(self.file)
        self._place = place
        if place.on_gpu and not self._library.llama_supports_gpu_offload():
            raise CannotRun(
                "device: llama-cpp-python was built without CUDA; use --device cpu, or build it "
                "with CMAKE_ARGS=-DGGML_CUDA=on"
            )
        self._prompt = self._read_prompt(settings)
        self.settings = replace(settings, prompt=len(self._prompt))
        positions = len(self._prompt) + settings.tokens
        if self.file.context and positions > self.file.context:
            raise CannotRun(
                f"prompt + tokens = {positions} is more than the context of {self.file.context}"
            )
        self._positions = -(-positions // _CONTEXT_STEP) * _CONTEXT_STEP
        needed, free = self.weight_bytes + (self.kv_cache_bytes or 0), free_bytes(place.device)
        if needed > free:
            raise CannotRun(
                f"needs {needed / 2**30:.1f} GiB of weights and KV cache; {place.device} has "
                f"{free / 2**30:.1f} GiB free; take a smaller quantization"
            )
        self._llama: Any = None
        self._tokens: list[int] = []
        self.started_ns = 0
        self.arrived_ns: list[int] = []

    @property
    def weight_bytes(self) -> int:
        return self.file.bytes_by_type.total()

    @property
    def kv_cache_bytes(self) -> int | None:
        """Of all positions, in fp16; None where the file does not say its heads."""
        each = self.file.kv_bytes_per_token
        return None if each is None else each * self._positions

    @property
    def precision(self) -> str:
        """The type of most weights, by ggml's name."""
        return f"{self.file.bytes_by_type.most_common(1)[0][0]} (GGUF)"

    def load(self) -> None:
        """Put weights and an empty KV cache on the device. Raises CannotRun."""
        size = min(max(len(self._prompt), 32), _MOST_BATCH)
        self._llama = self._open(
            n_gpu_layers=-1 if self._place.on_gpu else 0,
            main_gpu=self._place.device.index or 0,
            n_ctx=self._positions,
            n_batch=size,
            n_ubatch=size,
        )

    def prefill(self, *, counted: bool = True) -> None:
        """Process the prompt, which gives the first token. Discards earlier output. Without
        `counted`, in a warm-up, it is in no range `step`."""
        self._llama.reset()
        self._tokens, self.arrived_ns = [], []
        self.started_ns = time.perf_counter_ns()
        self._step(self._prompt, counted)

    def decode_step(self, *, counted: bool = True) -> None:
        """The token after the newest one; `counted` as in `prefill`."""
        self._step(self._tokens[-1:], counted)

    def text(self) -> str | None:
        """The answer; None without a text to answer."""
        if not self.settings.text:
            return None
        answer: bytes = self._llama.detokenize(self._tokens)
        return answer.decode("utf-8", "replace")

    def derived(self, latency: Latency) -> tuple[dict[str, FigureValue], dict[str, str]]:
        """The figures that need more than times, and the reasons for those that are None."""
        prompt, written = self.settings.prompt, latency.output_tokens
        figures: dict[str, FigureValue] = {
            "input_tokens_per_s": prompt / (latency.ttft_ms / 1e3),
            "total_tokens_per_s": (prompt + written) / (latency.latency_ms / 1e3),
            "tokens_per_step": 1,
        }
        own_memory = "llama.cpp allocates its memory itself"
        why = {
            "prefill_mfu_percent": "the operations of a GGUF file's model are not counted",
            "prefill_ceiling_percent": "the operations of a GGUF file's model are not counted",
            "peak_memory_allocated_bytes": own_memory,
            "peak_memory_reserved_bytes": own_memory,
        }
        read = (
            "model_bytes_per_step",
            "model_bandwidth_bytes_per_s",
            "mbu_percent",
            "mbu_ceiling_percent",
        )
        if latency.itl_p50_ms is None:
            why |= dict.fromkeys(("tpot_ms", "itl_p50_ms", "itl_p99_ms", *read), ONE_TOKEN)
        elif self.file.kv_bytes_per_token is None:
            why |= dict.fromkeys(read, "the file does not say its heads")
        else:
            # Decode step i of n - 1 attends to prompt + i positions: prompt + n / 2 on average.
            cache = self.file.kv_bytes_per_token * (prompt + written / 2)
            step_bytes = self.file.multiplied_bytes + cache
            rate = step_bytes / (latency.itl_p50_ms / 1e3)
            figures["model_bytes_per_step"] = round(step_bytes)
            figures["model_bandwidth_bytes_per_s"] = rate
            figures["mbu_percent"] = share_percent(rate, self._place.bytes_per_s)
            figures["mbu_ceiling_percent"] = share_percent(rate, self._place.ceiling_bytes_per_s)
            if figures["mbu_percent"] is None:
                why["mbu_percent"] = self._place.why_no_peak
            if figures["mbu_ceiling_percent"] is None:
                why["mbu_ceiling_percent"] = NOT_MEASURED
        return figures | dict.fromkeys(why), why

    def _read_prompt(self, settings: Settings) -> list[int]:
        """The tokens of the text, or as many drawn at random as were asked for."""
        words = self._open(vocab_only=True)
        if settings.text:
            tokens: list[int] = words.tokenize(settings.text.encode())
            if not tokens:
                raise CannotRun("text: the tokenizer gives no tokens that the model knows")
            return tokens
        drawn = np.random.default_rng(settings.seed).integers(words.n_vocab(), size=settings.prompt)
        return [int(token) for token in drawn]

    def _open(self, **options: Any) -> Any:
        try:
            return self._library.Llama(self._path, verbose=False, **options)
        except (ValueError, RuntimeError, OSError) as error:
            line = " ".join(str(error).split())[:200]
            raise CannotRun(f"model: llama.cpp cannot load it: {line}") from error

    def _step(self, tokens: list[int], counted: bool) -> None:
        with STEP if counted else nullcontext():
            with EVAL:
                self._llama.eval(tokens)
            with SAMPLE:
                self._tokens.append(int(self._llama.sample(temp=0.0)))
        self.arrived_ns.append(time.perf_counter_ns())


def _llama_cpp(file: GgufFile) -> Any:
    try:
        return import_module("llama_cpp")
    except ImportError as error:
        raise CannotRun(
            f"model: a GGUF file ({file.words}) is run by llama.cpp; pip install llama-cpp-python, "
            "or name a folder with a config.json"
        ) from error
