"""One configuration: model, optimizer and data, and its steps by two clocks."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..declaration import Row
from ..devices import is_out_of_memory, release_memory, synchronize
from ..ranges import Range
from ..timing import measure_in_graph
from .model import Decoder, LayerRanges, no_ranges
from .shapes import Shape
from .timeline import MemoryTimeline

FORWARD, LOSS, BACKWARD, OPTIMIZER = "FORWARD", "LOSS", "BACKWARD", "OPTIMIZER"
OPTIMIZER_STEP, OPTIMIZER_ZERO = "OPTIMIZER.step", "OPTIMIZER.zero_grad"
PHASES = (FORWARD, LOSS, BACKWARD, OPTIMIZER)

WEIGHT_COPIES = "weight copies (autocast)"
WORKSPACES = "libraries' workspaces"

_MOMENTUM = 0.9
# As in the seeds and llm.c.
_BETAS = (0.9, 0.95)


class Trainer:
    """Runs steps, and sums what they took until `reset`.

    `phases` and `layers` hold the host time by range; `span_ms` the time between each phase's CUDA
    events, `whole_span_ms` between a step's first and last. `memory` is how much torch's allocated
    memory grew with the model and, by `first_step`, with each part of it, autocast's copies of the
    weights apart from the activations; `timeline` has those from
    layer to layer in it. `loss` is that of the newest step.
    """

    def __init__(
        self,
        shape: Shape,
        batch: int,
        length: int,
        *,
        mode: str,
        naive: bool,
        checkpoint: int,
        compiled: bool,
        optimizer: str,
        lr: float,
        autocast: torch.dtype | None,
        device: torch.device,
        seed: int,
        accumulate: int = 1,
    ) -> None:
        """`batch` is of one pass; a step has `accumulate` of them before its update."""
        self.device = device
        self.mode = mode
        self.layers = LayerRanges()
        self.phases = {name: Range(name) for name in (*PHASES, OPTIMIZER_STEP, OPTIMIZER_ZERO)}
        self.span_ms: dict[str, float] = {}
        self.whole_span_ms = 0.0
        self.loss = float("nan")
        self.memory: dict[str, int] = {}
        self.timeline: list[Row] = []
        self._phase_ended: Callable[[str], None] | None = None
        self._step = Range("step")
        self._autocast = autocast
        before = self._allocated()
        _load_libraries(device, autocast)
        self.memory[WORKSPACES] = self._allocated() - before
        before = self._allocated()
        with device:
            model = Decoder(
                shape,
                length,
                naive=naive,
                checkpoint_every=checkpoint,
                ranges=no_ranges if compiled else self.layers,
            )
        model.initialise(seed)
        self._model = model
        self._forward = cast(
            Callable[[Tensor], Tensor], torch.compile(model) if compiled else model
        )
        self.memory["model"] = self._allocated() - before
        self._optimizer = _optimizer(model, optimizer, lr) if mode == "full" else None
        self._scaler = (
            torch.amp.GradScaler(device.type)
            if autocast is torch.float16 and mode != "fwd"
            else None
        )
        random = torch.Generator().manual_seed(seed)
        sequences = accumulate * batch, length + 1
        text = torch.randint(shape.vocabulary, sequences, generator=random).to(device)
        self._batches = [
            (part[:, :-1].contiguous(), part[:, 1:].flatten()) for part in torch.split(text, batch)
        ]

    def step(self, *, counted: bool = True) -> int:
        """Run one step; returns its wall time in ns, including the wait for the device. Without
        `counted`, in a warm-up, it is in no range `step`.
        """
        events = _Events(self.device)
        started_ns = time.perf_counter_ns()
        with self._step if counted else nullcontext():
            loss = self._do(events)
            synchronize(self.device)
        wall_ns = time.perf_counter_ns() - started_ns
        for name, span_ms in events.spans_ms().items():
            self.span_ms[name] = self.span_ms.get(name, 0.0) + span_ms
        self.whole_span_ms += events.whole_ms()
        self.loss = loss.item()
        return wall_ns

    def first_step(self, *, counted: bool = True) -> int:
        """Like `step`, and measures what each part allocates."""
        grown: dict[str, int] = {}
        tensors: dict[str, int] = {}
        base = self._allocated()
        # Hooks would split a compiled model.
        blocks = () if self._forward is not self._model else self._model.blocks
        copies = _WeightCopies(self._model)
        timeline = MemoryTimeline(
            self._model, blocks, self._optimizer, self._allocated, lambda: copies.held_bytes
        )

        def ended(phase: str) -> None:
            grown.setdefault(phase, self._allocated() - base)
            timeline.note()
            held = timeline.rows[-1]
            if phase == BACKWARD:
                tensors["gradients"] = int(held["gradients_bytes"] or 0)
            elif phase == OPTIMIZER:
                tensors["optimizer"] = int(held["optimizer_bytes"] or 0)

        self._phase_ended = ended
        with copies if self._autocast is not None else nullcontext(), timeline:
            wall_ns = self.step(counted=counted)
        self._phase_ended = None
        self.timeline = timeline.rows
        if self._autocast is not None and FORWARD in grown:
            self.memory[WEIGHT_COPIES] = copies.bytes
            grown[FORWARD] -= copies.bytes
        if FORWARD in grown:
            self.memory["activations"] = grown[FORWARD]
        self.memory |= tensors
        # What no tensor of the step holds at its end, besides the workspaces made before it.
        self.memory[WORKSPACES] += self._allocated() - base - tensors.get("optimizer", 0)
        return wall_ns

    def graph_ms(self) -> float | None:
        """GPU milliseconds of a step that is one CUDA graph: what it takes where the GPU waits for
        no launch. None on the CPU, for a compiled model or an optimizer of many launches, and
        where the graph finds no memory beside the model's. Steps must have run before.
        """
        fused = self._optimizer is None or self._optimizer.defaults.get("fused")
        if self.device.type != "cuda" or not fused or self._forward is not self._model:
            return None
        for group in self._optimizer.param_groups if self._optimizer is not None else ():
            if "capturable" in group:
                group["capturable"] = True
        release_memory(self.device)
        try:
            return measure_in_graph(
                lambda: self._do(_Events(torch.device("cpu"))), self.device, 1e9
            )
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None

    def reset(self) -> None:
        """Set all times and counts to zero, at the end of the warm-up."""
        self.span_ms = {}
        self.whole_span_ms = 0.0
        self.layers.reset()
        for span in (*self.phases.values(), self._step):
            span.reset()

    @property
    def step_cpu_ms(self) -> float:
        """The host time in the phases so far, summed over all steps."""
        return sum(self.phases[name].total_ms for name in PHASES)

    def _do(self, events: _Events) -> Tensor:
        whole = torch.zeros((), device=self.device)
        for tokens, targets in self._batches:
            whole += self._pass(tokens, targets, events)
        if self._optimizer is not None:
            with self._phase(OPTIMIZER, events):
                self._update(self._optimizer)
        else:
            self._model.zero_grad(set_to_none=True)
        return whole

    def _pass(self, tokens: Tensor, targets: Tensor, events: _Events) -> Tensor:
        """Forward and backward of one batch; its part of the step's mean loss."""
        self.layers.count(True)
        with self._phase(FORWARD, events), self._autocasting():
            logits = self._forward(tokens)
        self.layers.count(False)
        with self._phase(LOSS, events), self._autocasting():
            loss = F.cross_entropy(logits.flatten(0, 1).float(), targets) / len(self._batches)
        del logits
        if self.mode != "fwd":
            with self._phase(BACKWARD, events):
                scaled = loss if self._scaler is None else self._scaler.scale(loss)
                torch.autograd.backward(scaled)
        return loss.detach()

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        with self.phases[OPTIMIZER_STEP]:
            if self._scaler is None:
                optimizer.step()
            else:
                self._scaler.step(optimizer)
                self._scaler.update()
        with self.phases[OPTIMIZER_ZERO]:
            optimizer.zero_grad(set_to_none=True)

    @contextmanager
    def _phase(self, name: str, events: _Events) -> Iterator[None]:
        events.mark()
        with self.phases[name]:
            yield
        events.mark(name)
        if self._phase_ended is not None:
            self._phase_ended(name)

    def _autocasting(self) -> AbstractContextManager[object]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self._autocast)

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0


class _WeightCopies(torch.autograd.graph.saved_tensors_hooks):
    """Counts the copies of weights that autocast keeps for the backward pass: `bytes`, and those of
    them that it keeps now."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(self._saved, lambda tensor: tensor)
        self._weights = {parameter.data_ptr() for parameter in model.parameters()}
        self._held: dict[int, int] = {}
        """Of each copy that was kept, by its address: how many still keep it."""
        self.bytes = self.held_bytes = 0

    def _saved(self, tensor: Tensor) -> Tensor:
        node = tensor.grad_fn
        # A product keeps the transposed view of a conversion of a parameter.
        while node is not None and node.name() in ("TBackward0", "TransposeBackward0"):
            node = node.next_functions[0][0]
        if node is not None and node.name() == "ToCopyBackward0":
            variable = getattr(node.next_functions[0][0], "variable", None)
            storage = tensor.untyped_storage()
            is_weight = variable is not None and variable.data_ptr() in self._weights
            if is_weight:
                place, size = storage.data_ptr(), storage.nbytes()
                self.bytes += size if place not in self._held else 0
                self.held_bytes += size if not self._held.get(place) else 0
                self._held[place] = self._held.get(place, 0) + 1
                weakref.finalize(tensor, self._dropped, place, size)
        return tensor

    def _dropped(self, place: int, size: int) -> None:
        self._held[place] -= 1
        self.held_bytes -= size if not self._held[place] else 0


class _Events:
    """CUDA events around the phases of one step; does nothing on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[tuple[str | None, torch.cuda.Event]] = []

    def mark(self, name: str | None = None) -> None:
        """Record an event: the end of phase `name`, or the beginning of one."""
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append((name, event))

    def spans_ms(self) -> dict[str, float]:
        """By phase, once the device has finished."""
        spans: dict[str, float] = {}
        for (_, before), (name, after) in pairwise(self._marks):
            if name is not None:
                spans[name] = spans.get(name, 0.0) + before.elapsed_time(after)
        return spans

    def whole_ms(self) -> float:
        """From the first event to the last."""
        return self._marks[0][1].elapsed_time(self._marks[-1][1]) if self._marks else 0.0


def _load_libraries(device: torch.device, autocast: torch.dtype | None) -> None:
    """Let cuBLAS allocate its workspaces, which would count as the model's first activations: those
    of the backward pass's thread, too."""
    if device.type == "cuda":
        for dtype in (torch.float32, autocast or torch.float32):
            square = torch.ones(16, 16, device=device, dtype=dtype, requires_grad=True)
            F.linear(square, square, square[0])
            torch.autograd.grad(F.linear(square, square).sum(), square)


def _optimizer(model: nn.Module, how: str, lr: float) -> torch.optim.Optimizer:
    """AdamW, `how` being fused, foreach or loop, or fused SGD with momentum or without."""
    if how in ("sgd", "momentum"):
        momentum = _MOMENTUM if how == "momentum" else 0.0
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, fused=True)
    return torch.optim.AdamW(
        model.parameters(),
        lr=lr,
        betas=_BETAS,
        weight_decay=0.0,
        fused=how == "fused",
        foreach=how == "foreach",
    )
