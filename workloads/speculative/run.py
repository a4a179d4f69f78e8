"""Decodes with growing numbers of proposals and compares time and text with plain decoding."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..declaration import FigureValue, Outcome, Value
from ..devices import set_precision
from ..inference.shapes import SHAPES
from ..report import Report
from ..rows import Cells
from ..runner import Runner
from . import SPECULATIVE
from .decoder import Decoder, models


def expected_tokens_per_pass(acceptance: float, ahead: int) -> float:
    """The mean of a pass if each of `ahead` proposals is accepted with the same chance (Leviathan
    et al., 2023, equation 1).
    """
    if acceptance >= 1:
        return ahead + 1
    return float((1 - acceptance ** (ahead + 1)) / (1 - acceptance))


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """A row for each number of proposals. Raises DoesNotFit for a draft that is no smaller than the
    target and for what exceeds the context, CannotRun for a missing device, precision or memory.
    """
    run = Runner(SPECULATIVE, given, report)
    shape, place = SHAPES[str(run.values["size"])], run.place
    prompt, tokens, batch, ahead = (run[name] for name in ("prompt", "tokens", "batch", "ahead"))
    precision = set_precision(str(run.values["precision"]), place.device)
    counts = [0, *(2**power for power in range(ahead.bit_length()))]
    rows = run.rows(len(counts))
    report.say(
        f"speculative: {run.values['size']} ({shape}), its first {run['draft']} layers ahead"
    )
    texts: list[list[int]] = []
    seen = kept = 0
    with run, torch.inference_mode():
        target, draft = models(
            shape,
            run["draft"],
            float(run.values["later"]),
            prompt + tokens + ahead,
            precision.dtype,
            place.device,
            run["seed"],
        )
        generator = torch.Generator().manual_seed(run["seed"])
        prompts = torch.randint(shape.vocabulary, (batch, prompt), generator=generator).tolist()
        # Libraries and kernels are loaded in a round that does not count.
        warm_up = Decoder(target, draft, prompts, min(tokens, 2 * ahead), ahead)
        warm_up.run(lambda: False, counted=False)
        run.begin()
        for count in run.until_stopped(counts):
            with rows.row(f"{count} ahead", ahead=count) as cells:
                decoder = Decoder(target, draft, prompts, tokens, count)
                decoder.run(lambda: run.is_stopped)
                run.count_steps(decoder.passes, decoder.decode_ns / 1e6 / max(1, decoder.passes))
                _figures(decoder, batch * (tokens - 1), count, cells)
                texts = texts or decoder.texts
                cells["same_percent"] = _same_percent(texts, decoder.texts)
                seen, kept = seen + decoder.proposed, kept + decoder.accepted
    measured = rows.measured
    plain = next((row["tpot_ms"] for row in measured if row["ahead"] == 0), None)
    best: float | None = None
    for row in measured:
        if isinstance(plain, float) and isinstance(this := row["tpot_ms"], float):
            row["speedup"] = plain / this
            best = this if best is None else min(best, this)
    results: dict[str, FigureValue] = {
        "plain_tpot_ms": plain,
        "best_tpot_ms": best,
        "best_speedup": plain / best if best and isinstance(plain, float) else None,
        "acceptance_percent": 100 * kept / seen if seen else None,
    }
    return run.outcome(results, {"speculative": rows.rows}, rows.why_none())


def _figures(decoder: Decoder, tokens: int, ahead: int, cells: Cells) -> None:
    acceptance = decoder.accepted / decoder.proposed if decoder.proposed else None
    written = sum(len(text) - 1 for text in decoder.texts)
    cells |= {
        "passes": decoder.passes,
        "acceptance_percent": None if acceptance is None else 100 * acceptance,
        "tokens_per_pass": written / max(1, decoder.passes) / len(decoder.texts),
        "expected_tokens_per_pass": expected_tokens_per_pass(acceptance or 0.0, ahead),
        "draft_ms": decoder.draft_ns / 1e6 / decoder.drafts if decoder.drafts else None,
        "verify_ms": decoder.verify_ns / 1e6 / max(1, decoder.passes),
        "tpot_ms": decoder.decode_ns / 1e6 / max(1, written // len(decoder.texts)),
    }
    if written < tokens:
        cells["status"] = "stopped"


def _same_percent(first: list[list[int]], second: list[list[int]]) -> float:
    """Tokens that are alike up to the first that is not, of each sequence."""
    alike = whole = 0
    for left, right in zip(first, second, strict=True):
        whole += len(left)
        for token, other in zip(left, right, strict=False):
            if token != other:
                break
            alike += 1
    return 100 * alike / max(1, whole)
