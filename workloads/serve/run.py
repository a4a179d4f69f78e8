"""Runs `serve`: the loop of an engine."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import nvtx
import torch

from ..declaration import FigureValue, Outcome, Value
from ..devices import out_of_memory_explained, peak_memory, set_precision, synchronize
from ..errors import CannotRun
from ..inference.llama import LlamaModel
from ..inference.memory import kv_cache_bytes, parameter_count
from ..inference.network import make_network
from ..inference.shapes import SHAPES, Shape
from ..report import Report
from ..runner import STEP, Runner
from . import SERVE
from .engine import Engine
from .requests import Request, draw, read_trace
from .results import Metrics, Step, latencies, request_rows, step_rows, throughput, timeline_rows
from .routes import AskedRequest, Routes, spend
from .scheduler import Piece, Scheduler, kind_of

LOAD = nvtx.annotate("load")
WAIT = nvtx.annotate("wait")
SCHEDULE = nvtx.annotate("schedule")
SAMPLE = nvtx.annotate("sample")
DETOKENIZE = nvtx.annotate("detokenize")
PASS = {kind: nvtx.annotate(kind) for kind in ("prefill", "decode", "mixed")}

_COLLECTS_EACH = 32
# So that a request to stop is soon seen.
_LONGEST_NAP_S = 0.05
_NO_TOKEN = "no request was answered before the run was stopped"
_ONE_TOKEN = "no completed request wrote a second token; a gap needs two"


def run(given: Mapping[str, Value], report: Report) -> Outcome:
    """Serve. `given` are values of the declared parameters, already parsed.

    Refuses before it allocates: CannotRun for a missing device, precision or memory, for a trace
    that cannot be read, and for requests longer than all pages.
    """
    run = Runner(SERVE, given, report)
    place, values = run.place, run.values
    shape = SHAPES[str(values["size"])]
    requests = _requests(run, shape)
    chosen = set_precision(str(values["precision"]), place.device)
    pages = _pages(run, shape, requests, chosen.dtype.itemsize)
    scheduler = Scheduler(
        pages, run["page"], run["sequences"], run["budget"], chunked=bool(values["chunked"])
    )
    weight_bytes = parameter_count(shape) * chosen.dtype.itemsize
    figures_so_far: dict[str, FigureValue] = {
        "effective_precision": chosen.effective,
        "parameter_count": parameter_count(shape),
        "weight_bytes": weight_bytes,
        "kv_cache_bytes": kv_cache_bytes(shape, 1, pages * run["page"], chosen.dtype.itemsize),
        "kv_pages": pages,
    }
    report.metrics({"device_name": place.name, **figures_so_far})
    count = f"up to {run['requests']}" if values["arrivals"] == "http" else len(requests)
    report.say(
        f"serve: {count} requests, {values['arrivals']}, to {values['size']} ({shape}) in "
        f"{chosen.effective} on {place.name}, {pages} pages of {run['page']}"
    )
    with run, out_of_memory_explained(), torch.inference_mode():
        report.progress("load", 0, 1, "model")
        with LOAD:
            model = make_network(
                shape,
                chosen.dtype,
                place.device,
                seed=run["seed"],
                positions=_positions(run, shape, requests, pages),
                attention="auto",
                compiled=False,
            )
            assert isinstance(model, LlamaModel)
            engine = Engine(model, pages, run["page"])
            _warm_up(engine, run)
            synchronize(place.device)
        report.progress("load", 1, 1, "model")
        run.begin()
        loop = _Loop(engine, scheduler, requests, run)
        if values["arrivals"] == "http":
            with loop.listening(_positions(run, shape, requests, pages)):
                steps = loop.serve()
        else:
            steps = loop.serve()
    return _outcome(run, loop.requests, steps, scheduler, figures_so_far)


def _requests(run: Runner, shape: Shape) -> list[Request]:
    values = run.values
    if values["arrivals"] == "http":
        return []
    if values["arrivals"] == "trace":
        return read_trace(
            str(values["trace"]), run["requests"], shape.context, shape.vocabulary, run["seed"]
        )
    return draw(
        run["requests"],
        str(values["arrivals"]),
        float(values["rate"]),
        run["prompt"],
        run["output"],
        str(values["lengths"]),
        shape.context,
        shape.vocabulary,
        run["seed"],
    )


def _pages(run: Runner, shape: Shape, requests: Sequence[Request], element_bytes: int) -> int:
    """How many pages there are. Raises CannotRun if they do not fit, or a request not in them."""
    page = run["page"]
    longest = max((-(-request.most_positions // page) for request in requests), default=0)
    mean = -(-2 * (run["prompt"] + run["output"]) // page)
    pages = run["pages"] or max(longest, run["sequences"] * mean)
    if pages < longest:
        raise CannotRun(
            f"pages: the longest request needs {longest} pages of {page}, there are {pages}; "
            "use more pages or shorter requests"
        )
    weights = parameter_count(shape) * element_bytes
    cache = kv_cache_bytes(shape, 1, pages * page, element_bytes)
    widest = run["budget"] * (8 * shape.width + 4 * shape.inner) * element_bytes
    run.place.refuse_unless_fits(
        weights + cache + widest,
        f"weights {weights / 2**30:.1f} + KV cache {cache / 2**30:.1f} + a step",
        "use a smaller size, fewer pages or a smaller budget",
    )
    return pages


def _positions(run: Runner, shape: Shape, requests: Sequence[Request], pages: int) -> int:
    """The most positions of a request: of those that come over HTTP what the cache holds."""
    if requests:
        return max(request.prompt + request.output for request in requests)
    return min(shape.context, pages * run["page"])


def _warm_up(engine: Engine, run: Runner) -> None:
    """A prompt and a token, untimed, so that libraries load their kernels."""
    count = min(run["budget"], run["page"])
    request = Request(-1, 0, count, 2, [0] * count, pages=[0])
    engine.forward(engine.batch([Piece(request, 0, count)]))
    if count > 1:
        engine.forward(engine.batch([Piece(request, count - 1, 1)]))


class _Loop:
    """Steps until every request is answered, or a signal asks for the end."""

    def __init__(
        self, engine: Engine, scheduler: Scheduler, requests: Sequence[Request], run: Runner
    ) -> None:
        self.engine, self.scheduler, self.run = engine, scheduler, run
        self.requests, self.pending = list(requests), deque(requests)
        self._routes: Routes | None = None
        self._metrics: Metrics | None = None
        self.steps: list[Step] = []
        self._started_ns = time.perf_counter_ns()
        self._written = 0
        self._reported = (0, 0)
        self._held = [[number] for number in range(run["held_objects"])]

    def serve(self) -> list[Step]:
        """Answer them; the steps it took."""
        total, report = len(self.requests) or self.run["requests"], self.run.report
        if self._routes is None:
            self._started_ns = time.perf_counter_ns()
        report.progress("serve", 0, total, "requests")
        while not self.run.is_stopped:
            now_ns = self._now_ns()
            while self.pending and self.pending[0].arrival_ns <= now_ns:
                self.scheduler.add([self.pending.popleft()])
            answered = total - self._left(total)
            if self._routes is not None and answered < total:
                self._take_asked()
            if self.scheduler.running or self.scheduler.waiting:
                self._step()
            elif self.pending:
                self._wait(self.pending[0].arrival_ns - now_ns)
            elif self._routes is None or answered >= total:
                break
            report.progress("serve", total - self._left(total), total, "requests")
            self._tell()
        return self.steps

    def _left(self, total: int) -> int:
        """Requests that are not answered; of those that come over HTTP, of all that are wanted."""
        left = len(self.pending) + len(self.scheduler.waiting) + len(self.scheduler.running)
        return left if self._routes is None else total - len(self.requests) + left

    @contextmanager
    def listening(self, most_positions: int) -> Iterator[None]:
        """Take requests over HTTP, and show metrics there. Raises CannotRun."""
        values = self.run.values
        self._metrics = Metrics(str(values["size"]))
        self._started_ns = time.perf_counter_ns()
        self._routes = Routes(
            self.run["port"],
            str(values["size"]),
            self._metrics,
            vocabulary=self.engine.model.shape.vocabulary,
            most_positions=most_positions,
            tokenizer_us=self.run["tokenizer_us"],
            now_ns=self._now_ns,
        )
        self.run.report.say(f"serve: http://127.0.0.1:{self._routes.port}/v1/completions")
        try:
            yield
        finally:
            self._routes.close()
            for request in (*self.scheduler.running, *self.scheduler.waiting):
                if isinstance(request, AskedRequest):
                    request.answer.put(None)

    def _take_asked(self) -> None:
        """What came over HTTP; waits for it where there is nothing else to do."""
        assert self._routes is not None
        scheduler = self.scheduler
        if scheduler.running or scheduler.waiting:
            came = self._routes.wait_for_requests(0.0)
        else:
            assert self._metrics is not None
            self._metrics.stand(0, 0, 100 * scheduler.used_pages / scheduler.pages)
            with WAIT:
                came = self._routes.wait_for_requests(_LONGEST_NAP_S)
        self.requests += came
        scheduler.add(came)

    def _now_ns(self) -> int:
        return time.perf_counter_ns() - self._started_ns

    @staticmethod
    def _wait(left_ns: int) -> None:
        with WAIT:
            time.sleep(min(left_ns / 1e9, _LONGEST_NAP_S))

    def _step(self) -> None:
        scheduler, engine = self.scheduler, self.engine
        begin_ns = self._now_ns()
        with STEP:
            with SCHEDULE:
                pieces = scheduler.plan()
                for request, _, _ in pieces:
                    if request.begun_ns is None:
                        request.begun_ns = begin_ns
                kind = kind_of(pieces)
                batch = engine.batch(pieces)
            with PASS[kind]:
                logits = engine.forward(batch)
            with SAMPLE:
                # Padding has weights too, but stands for no word.
                words = logits[:, : engine.model.shape.vocabulary].argmax(dim=-1)
            with DETOKENIZE:
                writing = [piece.request for piece in pieces if piece.writes]
                written = words.tolist()
                spend(self.run["tokenizer_us"] * len(written))
                for request, word in zip(writing, written, strict=True):
                    request.tokens.append(word)
                    request.written_ns.append(self._now_ns())
                    if isinstance(request, AskedRequest):
                        request.answer.put(word)
                        if request.is_done:
                            request.answer.put(None)
            if self._held and len(self.steps) % _COLLECTS_EACH == 0:
                gc.collect()
        self._written += len(writing)
        self.steps.append(
            Step(
                kind,
                begin_ns,
                self._now_ns(),
                sum(piece.length for piece in pieces),
                len(writing),
                len(scheduler.running),
                len(scheduler.waiting),
                100 * scheduler.used_pages / scheduler.pages,
            )
        )
        scheduler.done(pieces)
        if self._metrics is not None:
            self._metrics.count_step(self.steps[-1], scheduler.preemptions)

    def _tell(self) -> None:
        if not self.run.report.metrics_due or not self.steps:
            return
        step, (before_ns, before) = self.steps[-1], self._reported
        self._reported = step.end_ns, self._written
        figures: dict[str, FigureValue] = {
            "running": step.running,
            "waiting": step.waiting,
            "kv_used_percent": step.kv_percent,
        }
        if step.end_ns > before_ns:
            figures["tokens_per_s"] = 1e9 * (self._written - before) / (step.end_ns - before_ns)
        self.run.report.metrics(figures)


def _outcome(
    run: Runner,
    requests: Sequence[Request],
    steps: Sequence[Step],
    scheduler: Scheduler,
    figures_so_far: Mapping[str, FigureValue],
) -> Outcome:
    peaks, unavailable = peak_memory(run.place.device)
    done = [request for request in requests if request.is_done]
    for step in steps:
        run.count_steps(1, (step.end_ns - step.begin_ns) / 1e6)
    rates = throughput(requests, run["ttft_target"], run["tpot_target"])
    results: dict[str, FigureValue] = {
        **figures_so_far,
        **rates,
        **latencies(done),
        "steps": len(steps),
        "tokens_per_step": sum(step.written for step in steps) / len(steps) if steps else None,
        "preemptions": scheduler.preemptions,
        "peak_kv_percent": max((step.kv_percent for step in steps), default=None),
        "peak_waiting": max((step.waiting for step in steps), default=None),
        **peaks,
    }
    reasons = dict(unavailable)
    if done:
        gaps = [name for name in results if name.startswith(("tpot_", "itl_"))]
        reasons |= dict.fromkeys(gaps, _ONE_TOKEN)
    tables = {
        "serve_steps": step_rows(steps),
        "serve_timeline": timeline_rows(steps),
        "serve_requests": request_rows(requests),
    }
    return run.outcome(results, tables, _NO_TOKEN, reasons)
