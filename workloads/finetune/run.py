"""Trains all weights and LoRA's, on padded and on packed rows, and compares their steps."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import nvtx
import torch
import torch.nn.functional as F

from ..declaration import FigureValue, Outcome, Value
from ..devices import peak_memory, set_precision
from ..formulas import score_matrix_bytes
from ..report import Report
from ..rows import Cells
from ..runner import Runner
from ..train.model import Decoder
from ..train.shapes import SHAPES
from . import FINETUNE
from .documents import NO_TARGET, batch, draw, packed
from .lora import add_to, added_parameters, state_bytes

FORWARD, BACKWARD, OPTIMIZER = map(nvtx.annotate, ("FORWARD", "BACKWARD", "OPTIMIZER"))

_LEARNING_RATE = 1e-3
# Score matrices of a layer that the backward pass needs or that stand beside them, at least.
_SCORES_KEPT = 4


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """A row for each way to train and to fill rows. Raises CannotRun for a missing device or
    precision, and for what cannot fit.
    """
    run = Runner(FINETUNE, given, report)
    shape, place, room = SHAPES[str(run.values["size"])], run.place, run["ctx"]
    set_precision(str(run.values["precision"]), place.device)
    documents = draw(run["documents"], room, shape.vocabulary, run["seed"])
    alone = [[number] for number in range(len(documents))]
    filled = {"padded": alone, "packed": packed([len(words) for words in documents], room)}
    scores = score_matrix_bytes(len(alone), shape.heads, room, 4)
    place.refuse_unless_fits(
        state_bytes(shape.parameters, shape.parameters) + _SCORES_KEPT * shape.layers * scores,
        "weights, gradients, optimizer and scores", "use a smaller size, ctx or documents",
    )  # fmt: skip
    rows = run.rows(2 * len(filled))
    report.say(
        f"finetune: {run.values['size']} ({shape}), {len(documents)} documents of "
        f"{sum(map(len, documents))} tokens, on {place.name}"
    )
    with run:
        for trained, how in run.until_stopped(product(("all", "lora"), filled)):
            with rows.row(f"{trained} {how}", trained=trained, rows=how) as cells:
                _measure(run, documents, filled[how], cells)
    figures = {(row["trained"], row["rows"]): row for row in rows.measured}

    def ratio(name: str, numerator: tuple[str, str], denominator: tuple[str, str]) -> float | None:
        above = figures.get(numerator, {}).get(name)
        below = figures.get(denominator, {}).get(name)
        if isinstance(above, float | int) and isinstance(below, float | int):
            return above / below
        return None

    whole, lora = ("all", "packed"), ("lora", "packed")
    state = ratio("state_bytes", lora, whole)
    results: dict[str, FigureValue] = {
        "padding_percent": 100 * (1 - sum(map(len, documents)) / (len(alone) * room)),
        "packing_speedup": ratio("tokens_per_s", whole, ("all", "padded")),
        "lora_speedup": ratio("tokens_per_s", lora, whole),
        "lora_state_percent": None if state is None else 100 * state,
    }
    return run.outcome(results, {"finetune": rows.rows}, rows.why_none())


def _measure(
    run: Runner, documents: list[list[int]], filled: list[list[int]], cells: Cells
) -> None:
    shape, device, room = SHAPES[str(run.values["size"])], run.place.device, run["ctx"]
    tokens, targets, hidden = (part.to(device) for part in batch(documents, filled, room))
    with device:
        model = Decoder(shape, room, naive=True)
        model.initialise(run["seed"])
        if cells["trained"] == "lora":
            add_to(model, run["rank"])
    model.mask = hidden
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=_LEARNING_RATE, fused=True)
    shortened = run.values["precision"] == "bf16"
    losses: list[torch.Tensor] = []

    def update() -> None:
        with FORWARD, torch.autocast(device.type, torch.bfloat16, enabled=shortened):
            logits = model(tokens).flatten(0, 1).float()
            loss = F.cross_entropy(logits, targets.flatten(), ignore_index=NO_TARGET)
        with BACKWARD:
            torch.autograd.backward(loss)
        with OPTIMIZER:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())

    times = run.timed(update, "steps")
    words = sum(map(len, documents))
    extra = added_parameters(shape, run["rank"]) if cells["trained"] == "lora" else 0
    cells |= {
        "sequences": len(filled),
        "padding_percent": 100 * (1 - words / (len(filled) * room)),
        "trained_parameters": sum(parameter.numel() for parameter in trained),
        "state_bytes": state_bytes(shape.parameters + extra, extra or shape.parameters),
        "wall_ms": times.wall_ms,
        "tokens_per_s": words / (times.wall_ms / 1e3),
        "first_loss": losses[0].item(),
        "final_loss": losses[-1].item(),
        "peak_memory_allocated_bytes": peak_memory(device)[0]["peak_memory_allocated_bytes"],
    }
