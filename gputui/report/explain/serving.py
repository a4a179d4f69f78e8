"""A serving engine: the stages of its steps by the names of its ranges (prefill, decode, both at
once, and what its host does for them), each with a time tree, all of which add up to the GPUs'
time; and what its own metrics say beside them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gputui.model.leaves import CAUSES, LEAVES, Leaf, idle_sum, leaf_of_number
from gputui.model.naming import (
    BESIDE_PREFILL,
    STAGES,
    EngineRange,
    Stage,
    read_engine_range,
    stage_of_name,
)
from gputui.model.units import duration
from gputui.report.explain.analysis import (
    Analysis,
    MachineAnalysis,
    MachineRule,
    RunRule,
    computed_once,
)
from gputui.report.explain.finding import Finding, capital, gain_of
from gputui.state import Range, Run
from gputui.state.readings import Server

IDLE = 0.30
"""Share of a stage in which the GPU idles, from which it is bound by what it idles for
(TensorRT-LLM's own analysis of host overhead, perf-host-analysis: GPU idle over 0.30)."""

OF_TIME = 0.10
"""Share of the stages' time from which one is spoken of."""

COMPUTING: tuple[Stage, ...] = ("prefill", "decode", "mixed", "denoise")


@dataclass(slots=True)
class StageTime:
    """One stage. `leaves` are the GPUs' time in it; `host_ns` is the time inside its ranges on the
    threads that opened them, without the stages inside."""

    stage: Stage | None
    """None is what lies in no stage."""
    engines: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    requests: int = 0
    tokens: int = 0
    with_requests: int = 0
    with_tokens: int = 0
    """Steps whose names have these figures."""
    host_ns: int = 0
    longest_ns: int = 0
    leaves: dict[Leaf, int] = field(default_factory=dict)
    kernels: int = 0
    replayed: int = 0
    """Of the kernels, those of CUDA graphs."""

    @property
    def wall_ns(self) -> int:
        """Busy and idle time of the GPUs."""
        return sum(self.leaves.values())

    @property
    def idle_share(self) -> float:
        """0 to 1; 0 without any time."""
        return idle_sum(self.leaves) / self.wall_ns if self.wall_ns else 0.0

    @property
    def mean_ns(self) -> float | None:
        """Of a step, on the host; None without one."""
        return self.host_ns / self.steps if self.steps else None

    @property
    def spent_ns(self) -> int:
        """What its steps take: of the GPU, which the host may be far ahead of, where one ran
        them."""
        return self.wall_ns or self.host_ns

    @property
    def idle_cause(self) -> Leaf | None:
        """Why the GPU idled most."""
        idle = {leaf: ns for leaf, ns in self.leaves.items() if LEAVES[leaf].is_idle and ns}
        return max(idle, key=lambda leaf: idle[leaf]) if idle else None

    @property
    def verdict(self) -> str | None:
        """ "launch-bound: 62 % idle", or "healthy: 94 % busy"; None where no GPU did anything."""
        cause = self.idle_cause
        if not self.wall_ns:
            return None
        if self.idle_share < IDLE or cause is None:
            return f"healthy: {100 * (1 - self.idle_share):.0f} % busy"
        word = CAUSES[cause].word.lower() if cause in CAUSES else LEAVES[cause].label
        return f"{word}: {100 * self.idle_share:.0f} % idle"


@computed_once
def stages(analysis: Analysis) -> list[StageTime]:
    """The stages of a run, in their order, what lies in none last; none of a program whose ranges
    name no stage."""
    return stages_of(analysis.run)


def stages_of(run: Run) -> list[StageTime]:
    """As `stages`, of a run that has no analysis."""
    staged = _Stages(run)
    if not any(staged.stage_of.values()):
        return []
    times: dict[Stage | None, StageTime] = {}
    for number, node in run.ranges.items():
        stage = staged.stage_of[number]
        time = times.setdefault(stage, StageTime(stage))
        _add(time, node, staged.read_of[number], is_outermost=stage != staged.around(node))
        for child in node.children:
            if stage is not None and staged.stage_of.get(child) != stage:
                # A stage inside another one has its own time on the host.
                time.host_ns -= run.ranges[child].cpu.total
    for part in run.timing.range_leaves.values():
        stage = staged.stage_of.get(part.range)
        time = times.setdefault(stage, StageTime(stage))
        leaf = leaf_of_number(part.leaf)
        time.leaves[leaf] = time.leaves.get(leaf, 0) + part.ns
    return sorted(
        (time for time in times.values() if time.stage is not None or time.wall_ns),
        key=lambda time: len(STAGES) if time.stage is None else STAGES.index(time.stage),
    )


_BESIDE = {"mixed", "detokenize"}
"""Ranges that an engine has beside `decode` where each prompt comes while others are decoded."""


class _Stages:
    """The stage of each range: its own, else that of the nearest range around it with one."""

    def __init__(self, run: Run) -> None:
        names = {node.definition.name for node in run.ranges.values()}
        beside_prefill = "prefill" in names or ("decode" in names and not names.isdisjoint(_BESIDE))
        self.stage_of: dict[int, Stage | None] = {}
        self.read_of: dict[int, EngineRange | None] = {}
        for number, node in run.ranges.items():  # parents come before what is inside them
            name = node.definition.name
            self.read_of[number] = read_engine_range(name)
            own = stage_of_name(name, beside_prefill)
            self.stage_of[number] = own or self.stage_of.get(node.definition.parent)

    def around(self, node: Range) -> Stage | None:
        return self.stage_of.get(node.definition.parent)


def _add(time: StageTime, node: Range, read: EngineRange | None, *, is_outermost: bool) -> None:
    time.kernels += node.launched.kernels
    time.replayed += node.launched.replayed
    if read is not None and node.definition.name not in BESIDE_PREFILL:
        time.engines[read.engine] += node.cpu.count
    if time.stage is None or not is_outermost:
        return
    time.steps += node.cpu.count
    time.host_ns += node.cpu.total
    time.longest_ns = max(time.longest_ns, node.cpu.maximum or 0)
    figures = read.figures if read is not None else {}
    if "requests" in figures:
        time.with_requests += node.cpu.count
        time.requests += node.cpu.count * figures["requests"]
    if "tokens" in figures:
        time.with_tokens += node.cpu.count
        time.tokens += node.cpu.count * figures["tokens"]


def unlike_stages(analysis: Analysis) -> Iterator[Finding]:
    """A stage in which the GPU idles, beside others in which it does not."""
    of_gpu = [time for time in stages(analysis) if time.stage in COMPUTING and time.wall_ns]
    whole_ns = sum(time.wall_ns for time in of_gpu)
    large = [time for time in of_gpu if time.wall_ns >= OF_TIME * whole_ns]
    idling = [time for time in large if time.idle_share >= IDLE]
    others = [time for time in large if time not in idling]
    if not idling or not others:
        return
    worst = max(idling, key=lambda time: idle_sum(time.leaves))
    rest = "; ".join(f"{time.stage} is {time.verdict}" for time in others)
    cause = worst.idle_cause
    yield Finding(
        cause=f"stage.{worst.stage}",
        view="phases",
        word=f"{worst.stage} {worst.verdict}",
        sentence=f"{capital(str(worst.stage))} is {worst.verdict}; {rest}.",
        advice=CAUSES[cause].advice if cause in CAUSES else "look at what the GPU waits for in it",
        value=100 * worst.idle_share,
        threshold=100 * IDLE,
        source="idle time of the GPU by phase, as in TensorRT-LLM's perf-host-analysis",
    )


LONG = 4.0
"""Decode steps that a step with a prompt takes as long as, from which its requests stall others:
chunked prefill keeps steps alike (Agrawal et al., 2024, Sarathi-Serve)."""


def long_prompts(analysis: Analysis) -> Iterator[Finding]:
    """Steps with prompts that take many times as long as those without: whoever decodes waits."""
    by_stage = {time.stage: time for time in stages(analysis)}
    decode = by_stage.get("decode")
    with_prompt = [by_stage[stage] for stage in ("prefill", "mixed") if stage in by_stage]
    steps = sum(time.steps for time in with_prompt)
    if decode is None or not decode.steps or not steps or decode.spent_ns <= 0:
        return
    spent_ns = sum(time.spent_ns for time in with_prompt)
    # By the GPU's time, which the host may be far ahead of: on an H200 prompts of 6,000 tokens
    # stalled decoding for 190 ms a step, and the host's ranges said 39.
    times = spent_ns / steps / (decode.spent_ns / decode.steps)
    share = spent_ns / (spent_ns + decode.spent_ns)
    felt = _stalls(analysis)
    tokens = _prompt_tokens(analysis, with_prompt)
    is_on_cpu = not any(time.wall_ns for time in with_prompt)
    if tokens < LEAST_TOKENS if tokens is not None else is_on_cpu:
        return
    if times < LONG or share < OF_TIME or felt is False:
        return
    yield Finding(
        cause="long_prompts",
        view="phases",
        word="LONG PROMPTS",
        sentence=(
            f"A step with a prompt takes {times:.1f} times as long as one that only decodes, and "
            f"such steps are {100 * share:.0f} % of the time: requests that decode wait for them."
        ),
        advice=(
            "chunked prefill with a smaller budget of tokens a step (vLLM's and SGLang's "
            "max_num_batched_tokens and chunked_prefill_size), or prefill on other GPUs"
        ),
        value=times,
        threshold=LONG,
        recoverable=share * (1 - 1 / times),
        source="mean length of steps with and without prompts, gaps between tokens",
        leads=felt is True,
    )


LEAST_TOKENS = 256
"""Tokens of a step below which a smaller budget makes it no shorter: up to about 206 a GPU mostly
reads weights (an H200's tensor cores do so many operations for a byte of memory; a bf16 product has
one a token). On a CPU steps with prompts of 20 tokens took many times as long as a decode."""


def _prompt_tokens(analysis: Analysis, with_prompt: Sequence[StageTime]) -> float | None:
    """Tokens of a step with a prompt, mean: by the figures in the ranges' names, else by what the
    engine read of prompts; None where neither tells."""
    named = [time for time in with_prompt if time.with_tokens]
    if named:
        return sum(time.tokens for time in named) / sum(time.with_tokens for time in named)
    read = [server.sums.get("input_tokens") for server in analysis.session.servers.values()]
    steps = sum(time.steps for time in with_prompt)
    return sum(filter(None, read)) / steps if any(read) else None


STALL = 2.0
"""Times the mean gap between two tokens, from which the 99th percentile is a stall. Chosen."""

_LEAST_GAPS = 100


def _stalls(analysis: Analysis) -> bool | None:
    """Whether requests that decode feel it, by the engine's own gaps between tokens; None where it
    does not tell them."""
    is_felt: bool | None = None
    for server in analysis.session.servers.values():
        gaps = server.latencies.get("itl")
        slowest = gaps.quantile(0.99) if gaps is not None else None
        if gaps is None or slowest is None or gaps.count < _LEAST_GAPS:
            continue
        is_felt = bool(is_felt) or slowest.low_s >= STALL * (gaps.mean_s or 0.0)
    return is_felt


def slow_tokenizer(analysis: Analysis) -> Iterator[Finding]:
    """The GPU idles while the engine's loop turns tokens into text, or text into tokens."""
    every = stages(analysis)
    time = next((time for time in every if time.stage == "tokenizer"), None)
    staged_ns = sum(other.wall_ns for other in every if other.stage is not None)
    idle_ns = idle_sum(time.leaves) if time is not None else 0
    computes = any(other.stage in COMPUTING and other.wall_ns for other in every)
    if time is None or not computes or idle_ns < OF_TIME * staged_ns:
        return
    share = idle_ns / staged_ns
    yield Finding(
        cause="slow_tokenizer",
        view="phases",
        word="SLOW TOKENIZER",
        sentence=(
            f"The GPU idles {100 * share:.0f} % of the stages' time while tokens become text, or "
            "text becomes tokens."
        ),
        advice=(
            "a tokenizer in Rust (fast), detokenizing fewer tokens at once, or in a process of its "
            "own beside the engine's loop"
        ),
        value=100 * share,
        threshold=100 * OF_TIME,
        gains=gain_of(share),
        recoverable=share,
        source="idle time of the GPUs inside ranges of the tokenizer",
        leads=True,
        explains=("idle.host", "idle.launch", "idle.wait"),
    )


def graph_batches(analysis: Analysis) -> Iterator[Finding]:
    """Decode steps of large batches that launch their kernels one by one, where those of smaller
    batches replay CUDA graphs: the batch is beyond the captured sizes."""
    graphed: dict[int, bool] = {}
    counts: dict[int, int] = defaultdict(int)
    run = analysis.run
    for node in run.ranges.values():
        read = read_engine_range(node.definition.name)
        if read is None or read.stage != "decode" or "requests" not in read.figures:
            continue
        kernels, replayed = _launched_below(run.ranges, node)
        if kernels:
            size = read.figures["requests"]
            graphed[size] = graphed.get(size, False) or replayed >= kernels / 2
            counts[size] += node.cpu.count
    captured = [size for size, is_graph in graphed.items() if is_graph]
    if not captured:
        return
    beyond = [size for size in graphed if size > max(captured)]
    share = sum(counts[size] for size in beyond) / max(1, sum(counts.values()))
    if share < OF_TIME:
        return
    yield Finding(
        cause="graph_batches",
        view="phases",
        word="BATCH BEYOND GRAPHS",
        sentence=(
            f"{100 * share:.0f} % of the decode steps have more than {max(captured)} requests, and "
            "run without CUDA graphs; those with fewer replay them."
        ),
        advice=(
            "capture larger batches (vLLM's cudagraph_capture_sizes, SGLang's cuda_graph_max_bs)"
        ),
        value=100 * share,
        threshold=100 * OF_TIME,
        source="kernels of graphs, by the requests in a step's name",
    )


def _launched_below(ranges: Mapping[int, Range], node: Range) -> tuple[int, int]:
    """Kernels launched in a range and those inside it, and those of graphs among them."""
    kernels = replayed = 0
    pending = [node]
    while pending:
        each = pending.pop()
        kernels += each.launched.kernels
        replayed += each.launched.replayed
        pending += [ranges[child] for child in each.children]
    return kernels, replayed


# --- What an engine's own metrics say beside the time tree: requests that wait, a KV cache that is
# full, requests that are put back.

LEAST_READINGS = 3
"""Of a page of metrics, for a figure over time."""

PUT_BACK = 0.01
"""Preemptions for each request that was completed, from which they are a finding: each computes a
prompt again."""

FULL = 95.0
"""Percent of the KV cache from which it is full: the rest is held for requests that grow."""

WAITS = 0.5
"""Share of the readings' time in which requests wait, from which the queue is a finding."""


def put_back(analysis: MachineAnalysis) -> Iterator[Finding]:
    """Preemptions: the KV cache is too small for the requests in it."""
    for server in _read(analysis):
        preemptions = server.sums.get("preemptions", 0)
        completed = server.sums.get("requests_completed", 0)
        if not _puts_back(server):
            continue
        cache = server.gauges.get("kv_cache_percent")
        who = "A request was" if preemptions == 1 else f"{preemptions:,} requests were"
        full = f", and the KV cache was up to {cache.maximum:.0f} % full" if cache else ""
        # Where it is too small for those that run, it is what the others wait for.
        waiting, share = _waiting(server)
        queue = f" {waiting:.1f} requests wait for it in the mean." if waiting else ""
        yield Finding(
            cause="preemptions",
            word="KV CACHE FULL",
            sentence=(
                f"{who} put back for want of KV cache, beside "
                f"{completed:,} completed{full}: their prompts are computed again.{queue}"
            ),
            advice=_CACHE_ADVICE,
            value=preemptions / max(1, completed),
            threshold=PUT_BACK,
            recoverable=max(share, preemptions / (preemptions + completed)),
            source=f"{server.engine}'s metrics",
            leads=True,
            explains=("kv_cache_full",),
        )


_CACHE_ADVICE = (
    "more memory for the KV cache (vLLM's gpu_memory_utilization, SGLang's mem_fraction_static), "
    "an fp8 KV cache, a shorter max_model_len, fewer requests at once, or more GPUs"
)


def kv_cache_full(analysis: MachineAnalysis) -> Iterator[Finding]:
    """A KV cache that is full most of the time while requests wait."""
    for server in _read(analysis):
        cache = server.gauges.get("kv_cache_percent")
        if cache is None or cache.mean is None or cache.mean < FULL or not _waits(server):
            continue
        waiting, share = _waiting(server)
        yield Finding(
            cause="kv_cache_full",
            word="KV CACHE FULL",
            sentence=(
                f"The KV cache is {cache.mean:.0f} % full, and {waiting:.1f} requests wait for it "
                "in the mean."
            ),
            advice=_CACHE_ADVICE,
            value=cache.mean,
            threshold=FULL,
            recoverable=share,
            source=f"{server.engine}'s metrics",
            leads=True,
        )


def queue_beside_idle(analysis: Analysis) -> Iterator[Finding]:
    """Requests wait while the GPU idles and there is room for them: the host is too slow."""
    tree = analysis.tree
    if tree is None:
        return
    idle = tree.share(tree.idle_ns)
    for server in _read(analysis):
        cache = server.gauges.get("kv_cache_percent")
        is_full = _puts_back(server) or (cache is not None and cache.maximum >= FULL)
        if idle < IDLE or not _waits(server) or is_full:
            continue
        waiting = server.gauges["requests_waiting"]
        queue = server.latencies.get("queue")
        waited = queue.mean_s if queue is not None else None
        long = f", {duration(round(waited * 1e9))} each" if waited else ""
        yield Finding(
            cause="queue",
            word="REQUESTS WAIT",
            sentence=(
                f"{waiting.mean or 0:.1f} requests wait in the mean{long}, while the GPU idles "
                f"{100 * idle:.0f} % of the time: the engine's host work is what they wait for."
            ),
            advice=(
                "more cores for the engine's processes, CUDA graphs, several scheduler steps at "
                "once, or a larger batch (max_num_seqs)"
            ),
            value=100 * idle,
            threshold=100 * IDLE,
            source=f"{server.engine}'s metrics beside the time tree",
        )


AT_LIMIT = 0.66
"""Share of the readings with a queue that have as many running requests as any reading, from which
a limit of the batch holds them there: where memory or the host did, their number would vary. Of a
vLLM with 8 places and 45 waiting requests, 70 to 100 % had 8."""

LEAST_QUEUED = 5
"""Readings with a queue, for that share."""


def batch_limit(analysis: MachineAnalysis) -> Iterator[Finding]:
    """Requests wait while there is room in the KV cache, and never more run at once: the engine's
    own limit holds them back."""
    for server in _read(analysis):
        running, cache = (
            server.gauges.get(name) for name in ("requests_running", "kv_cache_percent")
        )
        queued = [sample for _, sample in server.samples.history if sample.requests_waiting]
        has_room = cache is None or cache.maximum < ROOM
        if running is None or not running.maximum or not has_room or not _waits(server):
            continue
        at_limit = sum(sample.requests_running == running.maximum for sample in queued)
        if len(queued) < LEAST_QUEUED or at_limit < AT_LIMIT * len(queued):
            continue
        room = f", and the KV cache is at most {cache.maximum:.0f} % full" if cache else ""
        yield Finding(
            cause="batch_limit",
            word="BATCH LIMIT",
            sentence=(
                f"{_waiting(server)[0]:.1f} requests wait in the mean, while never more than "
                f"{running.maximum:.0f} run at once{room}: the engine admits no more."
            ),
            advice=(
                "a larger batch (vLLM's max_num_seqs, SGLang's max_running_requests, llama.cpp's "
                "--parallel), or another engine beside it"
            ),
            value=100 * at_limit / len(queued),
            threshold=100 * AT_LIMIT,
            source=f"{server.engine}'s metrics",
        )


ROOM = 80.0
"""Percent of the KV cache up to which there is room for further requests. Chosen."""


def unasked(analysis: MachineAnalysis) -> str | None:
    """That nobody asked the servers for anything, as a sentence; None where somebody did, or none
    was read."""
    servers = [*_read(analysis)]
    if not servers or any(
        server.busy_seconds or server.sums.get("output_tokens") for server in servers
    ):
        return None
    seconds = max(server.seconds for server in servers)
    return f"No request came within {duration(round(1e9 * seconds))}: the GPU gets no work."


def _read(analysis: MachineAnalysis) -> Iterator[Server]:
    for server in analysis.session.servers.values():
        if server.readings >= LEAST_READINGS:
            yield server


def _puts_back(server: Server) -> bool:
    preemptions = server.sums.get("preemptions", 0)
    return preemptions > 0 and preemptions >= PUT_BACK * server.sums.get("requests_completed", 0)


def _waiting(server: Server) -> tuple[float, float]:
    """How many requests wait in the mean, and their share of all that are there."""
    waiting, running = (
        (gauge.mean or 0.0) if (gauge := server.gauges.get(name)) is not None else 0.0
        for name in ("requests_waiting", "requests_running")
    )
    there = waiting + running
    return waiting, waiting / there if there else 0.0


def _waits(server: Server) -> bool:
    return bool(
        server.seconds
        and "requests_waiting" in server.gauges
        and server.stuck_seconds >= WAITS * server.seconds
    )


RULES = (
    RunRule(14, slow_tokenizer),
    RunRule(14, long_prompts),
    RunRule(15, unlike_stages),
    RunRule(15, graph_batches),
    MachineRule(17, put_back),
    MachineRule(17, kv_cache_full),
    MachineRule(18, batch_limit),
    RunRule(17, queue_beside_idle),
)
