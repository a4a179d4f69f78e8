"""What shows a leaf's cause: the line of the program or the phase, the steps that have it, what is
copied back, or what takes most of it; and which leaves have one cause together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from gputui.model import units
from gputui.model.leaves import CAUSES, COPIES, LEAF_OF_KEY, LEAVES, Leaf, is_kernel, leaf_of_kernel
from gputui.model.naming import short_name, xla_range
from gputui.report.explain.advice import (
    CONVOLVES,
    FEW_SIZES,
    IN_ATTENTION,
    REDUCE_FIRST,
    SAVE,
    TUNES,
    caches_nothing,
    copies_back,
    is_of_plans,
    reading_advice,
)
from gputui.report.explain.analysis import Analysis
from gputui.report.explain.finding import Finding, Gain, gain_of
from gputui.report.explain.gains import freed_at_one_line
from gputui.report.explain.habits import others_percent, threads_compute
from gputui.report.explain.launches import embeddings, read_loop
from gputui.report.explain.leaves import waits_among_launches
from gputui.report.explain.lines import (
    AT_A_LINE,
    MOSTLY,
    CalledLine,
    LikeliestLine,
    beside,
    called_in,
    called_lines,
    launched_at,
    line_shares,
)
from gputui.report.explain.time_tree import TimeTree, in_words
from gputui.report.phase_tree import phase_path
from gputui.report.phases import main_step, phase_rows
from gputui.report.statistics import api_rows, kernel_name
from gputui.state import Run, Session


def evidence(analysis: Analysis, tree: TimeTree, leaf: Leaf) -> tuple[str, ...]:
    """What stands beside the finding that a leaf is."""
    calls = _calls(analysis, leaf)
    if leaf is Leaf.ATTENTION_UNFUSED:
        lines = called_lines(analysis.run, ("attention.weights",))
        its = _seen_launched(analysis, _is_softmax) or _among_layers(analysis)
        return (f"It is called at {lines[0].where}" if lines else its,)
    if leaf not in AT_A_LINE:
        of_leaf = calls or not is_kernel(leaf)
        own = Leaf.ELEMENTWISE if leaf is Leaf.ELEMENTWISE_CHAIN else leaf
        its = "" if of_leaf else _seen_launched(analysis, lambda name: leaf_of_kernel(name) is own)
        return calls or tuple(filter(None, (its,)))
    if calls and leaf is not Leaf.LAUNCH:
        return calls
    if leaf is Leaf.LAUNCH:
        called = embeddings_called(analysis)
        if analysis.run.launches_block:
            return tuple(filter(None, (BLOCKING, _size(analysis, tree))))
        size, eager = _size(analysis, tree), outside_jit(analysis)
        reads = _calls(analysis, Leaf.SYNC)[:1] if waits_among_launches(
            analysis.run, analysis.all_steps) else ()  # fmt: skip
        said = (size, eager, called, where(analysis, leaf), *reads, _longest(analysis, tree))
        return tuple(filter(None, said))
    place = where(analysis, leaf) or _in_one_phase(analysis.run, leaf)
    other = _beside(analysis, tree) if leaf is Leaf.WAIT else None
    paths = [line.path for line in analysis.run.lines.values()]
    waits = [line for line in analysis.lines(leaf)[:1] if _WAITS.match(line.inside)]
    if leaf is Leaf.INPUT and waits and any(map(_LOADER.search, paths)):
        other = "What makes the batches runs in the loader's workers, whose lines are not recorded"
    if leaf is Leaf.INPUT and (made := called_lines(analysis.run, ("loader.samples",))):
        workers = max(line.tensor_bytes for line in made)
        whose = f"{workers} workers" if workers else "the loop's own process: it has no workers"
        made.sort(key=lambda line: not line.where.endswith("__"))  # the data set's own first
        where_made = " and ".join(line.where for line in made[:MOST_CALLS])
        other = f"Its samples are made in {where_made}, in {whose}"
    if leaf is Leaf.ALLOCATION and caches_nothing(analysis):
        other = "Where the variable is set was not recorded: before the first tensor on the GPU"
    allocated = _allocated(analysis) if leaf is Leaf.ALLOCATION else None
    size = _size(analysis, tree) if leaf is Leaf.SYNC else None
    return tuple(filter(None, (size, place, allocated, other)))


_ALLOCATES = re.compile(r"cuda(Malloc|Free)|cuMem(Alloc|Free|Create|Map|Unmap|Release)")


def _allocated(analysis: Analysis) -> str | None:
    """How often a step allocates and frees: a pool that is emptied does as often as one that is
    off, so that the number is of the arrays that it makes."""
    rows = [row for row in api_rows(analysis.run) if _ALLOCATES.match(row.name)]
    each = [(row.name, row.instances / max(1, analysis.all_steps)) for row in rows[:MOST_CALLS]]
    calls = [f"{name} {times:,.0f} ×" for name, times in each if times >= 1.0]
    return f"{' and '.join(calls)} a step" if calls else None


BLOCKING = (
    "CUDA_LAUNCH_BLOCKING is in the program's environment: which line or shell set it was not "
    "recorded"
)

EAGER = 20
"""Compiled modules of XLA a step from which they are operators that nothing compiled together: 490
in a training whose optimizer is outside of jax.jit, 1 to 3 where a step is jitted."""


def outside_jit(analysis: Analysis) -> str | None:
    """Which operators of JAX run one by one."""
    calls = Counter[str]()
    for node in analysis.run.ranges.values():
        name = node.definition.name
        if name.startswith("XlaModule"):
            calls[xla_range(name) or name] += node.cpu.count
    if calls.total() < EAGER * max(1, analysis.all_steps):
        return None
    names = " and ".join(name.removeprefix("jit_") for name, _ in calls.most_common(MOST_CALLS))
    return f"Operators of JAX such as {names} run one by one, outside of jax.jit"


def embeddings_called(analysis: Analysis) -> str | None:
    """The line that looks up embeddings, where their number is the cause."""
    if embeddings(analysis) is None:
        return None
    place = called_in(analysis.run, "embedding")
    return f"Embeddings are looked up at {place}" if place else None


_LOADER = re.compile(r"torch/utils/data/_utils/|multiprocessing/(connection|queues)")
"""What a program is seen in that waits for worker processes."""
_WAITS = re.compile(r"(wait|poll|select|_?recv\w*|get|_try_get_data|_poll) \(")

UNSEEN = "Its line was not recorded: kernels of a busy GPU are launched long before"
_LAYERS = re.compile(r"forward|att(entio)?n|block|layer|__call__")
MOST_LAYERS = 3


def _is_softmax(name: str) -> bool:
    return "softmax" in name.lower()


def _seen_launched(analysis: Analysis, wanted: Callable[[str], bool]) -> str:
    """Where kernels with such names were seen launched, as a sentence."""
    names = analysis.kernel_names
    numbers = {number for number in names if wanted(names[number].name)}
    place = launched_at(analysis.run, numbers)
    return f"Its kernels were seen launched at {place}" if place else ""


def _among_layers(analysis: Analysis) -> str:
    """The lines of functions with names of layers that launch, where they are few: attention is at
    one of them."""
    lines = [line for line in analysis.lines(Leaf.LAUNCH) if _LAYERS.search(line.caller)]
    if not 0 < len(lines) <= MOST_LAYERS:
        return UNSEEN
    which = ", the lines of layers that launch; at which was not recorded" if lines[1:] else ""
    return f"Likely at {' or '.join(line.where for line in lines)}{which}"


LONGEST, EACH_STEP = 0.3, 20
"""Part of the kernels' time and launches a step from which a kernel says what the launches are
for: 12,000 sorts for 112 embeddings were named nowhere."""


def _longest(analysis: Analysis, tree: TimeTree) -> str | None:
    """The kernel that takes most, where it is launched again and again and no matrix product."""
    names, times, counts = analysis.kernel_names, Counter[str](), Counter[str]()
    for number, (count, ns) in analysis.kernel_sums.items():
        if number in names and leaf_of_kernel(names[number].name) is Leaf.OTHER:
            name = short_name(names[number].name)
            times[name] += ns
            counts[name] += count
    whole_ns = sum(ns for _, ns in analysis.kernel_sums.values())
    name, ns = times.most_common(1)[0] if times else ("", 0)
    each = counts[name] / max(1, analysis.all_steps)
    if not whole_ns or not tree.steps or ns < LONGEST * whole_ns or each < EACH_STEP:
        return None
    return f"{name} takes {100 * ns / whole_ns:.0f} % of the kernels' time, {each:,.0f} × a step"


_FORTH = ("to", "cuda", "cupy.asarray", "cupy.array", "jax.device_put")
_BACK = ("to", "cpu", "numpy", "tolist", "get", "cupy.asnumpy", "jax.device_get")
_READS = (
    "item", "float", "int", "bool", "cpu", "numpy", "tolist", "get", "cupy.asnumpy",
    "torch.cuda.synchronize", "jax.device_get", "jax.block_until_ready",
)  # fmt: skip
MOST_CALLS = 2
OF_COPIES = 0.1
"""Part of the bytes that are copied from or to the host from which a line's calls explain it."""


def _calls(analysis: Analysis, leaf: Leaf) -> tuple[str, ...]:
    """Which calls at which lines of the program copy, wait or give memory back."""
    run = analysis.run
    if leaf in (Leaf.COPY_PAGEABLE, Leaf.COPY_PINNED):
        lines = _copying(run, "pageable" if leaf is Leaf.COPY_PAGEABLE else "pinned")
    elif leaf is Leaf.SYNC:
        lines = [line for line in called_lines(run, _READS) if line.is_of_gpu or not line.shape]
        lines.sort(key=lambda line: -line.calls)
    elif leaf is Leaf.ALLOCATION:
        # Pinning memory in each step has the GPU wait for allocations, too.
        lines = called_lines(run, ("torch.cuda.empty_cache", "pin_memory"))
    else:
        return ()
    steps = analysis.all_steps
    return tuple(
        line.in_words(analysis.steps_of_one_kind)
        for line in lines[:MOST_CALLS]
        if 2 * line.calls >= min(steps, LEAST_SEEN)
    )


def _copying(run: Run, kind: str) -> list[CalledLine]:
    """The lines that may make a kind of copies, those of most bytes first."""
    rows = [row for row in run.memory_operations.values() if "Host" in row.operation]
    own = [row for row in rows if kind in (row.source_kind, row.destination_kind)]
    left = dict.fromkeys((True, False), 0)
    for row in own or rows:
        left["Device-to-Host" in row.operation] += row.size.total
    least = OF_COPIES * sum(left.values())
    calls = called_lines(run, {*_FORTH, *_BACK})
    lines: list[CalledLine] = []
    # .to() last: of a tensor on the GPU it may change the format there, and copy nothing.
    for line in sorted(calls, key=lambda line: line.call == "to"):
        is_back = line.is_of_gpu
        if line.call in (_BACK if is_back else _FORTH) and (
            least <= line.tensor_bytes <= EXPLAINED * left[is_back]
        ):
            left[is_back] -= line.tensor_bytes
            lines.append(line)
    return sorted(lines, key=lambda line: -line.tensor_bytes)


EXPLAINED = 1.5
"""How many times the bytes that are left to explain a line may have that is said to copy them."""

LEAST_SEEN = 20
"""Calls that are not set-up, of runs of more steps."""


def _beside(analysis: Analysis, tree: TimeTree) -> str | None:
    """What another thread does while the launching one sleeps."""
    if (other := beside(analysis.run, tree.leaves)) is None:
        if not threads_compute(analysis):
            return None
        return f"Meanwhile other threads take {others_percent(analysis):.0f} % of a core"
    did = "ran" if other.ran else "slept"
    return f"Meanwhile another thread {did} in {other.where}"


def _size(analysis: Analysis, tree: TimeTree) -> str | None:
    if not tree.steps:
        return None
    operations = tree.operations / tree.steps
    waits = waits_among_launches(analysis.run, analysis.all_steps)
    among = "" if waits is None else f", some {waits * operations:,.0f} waits for the GPU"
    plural = "" if round(operations) == 1 else "s"
    return f"{operations:,.0f} operation{plural} a step{among}"


ONE_PHASE = 0.8
"""Part of a leaf from which the phase that has it says what it is."""


def _in_one_phase(run: Run, leaf: Leaf) -> str | None:
    times = Counter[str]()
    for time in run.timing.range_leaves.values():
        if time.leaf == leaf:
            node = run.ranges.get(time.range)
            times[node.path if node is not None else ""] += time.ns
    name, ns = times.most_common(1)[0] if times else ("", 0)
    # A phase where no line is known: a server between requests was advised to look for a lock.
    if not name or ns < ONE_PHASE * times.total():
        return None
    return f"{100 * ns / times.total():.0f} % of it is in the phase {name}"


def where(analysis: Analysis, leaf: Leaf | None = None) -> str | None:
    """At which line of the program the CPU was, or at which two, for one leaf if there is one; None
    where too little was seen, or it was all over the program."""
    likeliest = analysis.lines(leaf)
    if leaf is Leaf.LAUNCH:  # what a line calls is read where the GPU idles
        inside = {
            line.where: line.inside for line in analysis.lines() if "compil" not in line.inside
        }
        likeliest = [line._replace(inside=inside.get(line.where, "")) for line in likeliest]
    lines = [line for line in likeliest[:2] if line.seen >= NAMED * line.samples]
    if not lines:
        return _in_function(likeliest)
    first, *others = [
        (f"{100 * line.seen / line.samples:.0f} %", _line_in_words(line)) for line in lines
    ]
    text = f"In {first[0]} of {lines[0].samples} samples the program was at {first[1]}"
    if not others and _is_backward(lines[0]):
        # Nobody can change that line: what it goes back through is launched elsewhere.
        forward = [line.where for line in likeliest[1:] if not _is_backward(line)][:MOST_CALLS]
        return f"{text}; forward at {' and '.join(forward)}" if forward else text
    return text + "".join(f"; in {share} at {place}" for share, place in others)


def _is_backward(line: LikeliestLine) -> bool:
    return line.inside.startswith("_engine_run_backward")


def _in_function(lines: list[LikeliestLine]) -> str | None:
    """In which function of the program the CPU was, where it was at no one line of it."""
    if not lines:
        return None
    counts = Counter[tuple[str, str]]()
    for line in lines:
        counts[line.caller, line.file] += line.seen
    [((function, file), seen)] = counts.most_common(1)
    samples = lines[0].samples
    if function == "<module>" or seen < MOSTLY * samples:
        return None
    share = f"{100 * seen / samples:.0f} %"
    own = [line.number for line in lines if (line.caller, line.file) == (function, file)]
    places = " and ".join(f"{file}:{number}" for number in own[:MOST_CALLS])
    return (
        f"In {share} of {samples} samples the program was in {function}, at lines such as {places}"
    )


def _line_in_words(line: LikeliestLine) -> str:
    inside = line.inside.replace("_engine_run_backward (", "the backward pass (")
    return f"{line.where}, mostly in {inside}" if inside else line.where


NAMED = 1 / 3
"""Share of the readings from which a line is named, of the two most frequent ones."""


def place_of(analysis: Analysis, leaf: Leaf) -> str:
    """The line that a leaf is at, as a rule; empty where there is none."""
    lines = analysis.lines(leaf) if leaf in AT_A_LINE else []
    back = {line.where for line in analysis.lines() if leaf is Leaf.LAUNCH and _is_backward(line)}
    forward = [line for line in lines if line.where not in back]
    if not forward:
        return ""
    samples = forward[0].samples - sum(line.seen for line in lines if line.where in back)
    return _place(forward[0]) if forward[0].seen >= MOSTLY * samples else ""


def _place(line: LikeliestLine) -> str:
    where = line.where.removesuffix(" <module>")
    return f"{where}, in {line.function}" if line.inside else where


ONE_LINE = 0.9
"""Share of the readings at one line from which what the CPU is at outside CUDA is one cause."""

_AT_ONE_LINE = (Leaf.HOST, Leaf.INPUT, Leaf.WAIT)
_COPIES = LEAVES[Leaf.COPY_PAGEABLE].key
_COMPILING = LEAVES[Leaf.COMPILE].key


def each_cause_once(analysis: Analysis, tree: TimeTree, findings: list[Finding]) -> list[Finding]:
    """Findings, the largest first, without those that one before stands for: saving a model
    computes, reads and waits at one line; logits are copied back and worked on at one; what
    compiles waits for threads and processes that do."""
    compiling = [Leaf.COMPILE] if findings and findings[0].cause == _COMPILING else []
    findings = _read_in_a_loop(analysis, tree, findings)
    line = next(iter(analysis.lines()), None)
    copied = [Leaf.COPY_PAGEABLE] if any(finding.cause == _COPIES for finding in findings) else []
    gathered = line is not None and _copies_what_it_gathers(analysis, line)
    if compiling or not (gathered or copies_back(analysis.run, tree)):
        copied = []
    keys = {LEAVES[leaf].key: leaf for leaf in (*_AT_ONE_LINE, *copied, *compiling)}
    together = [finding for finding in findings if finding.cause in keys]
    if len(together) < 2 or line is None or line.seen < ONE_LINE * line.samples:
        return findings
    first = together[0]
    others = {
        leaf: tree.share(tree.leaves.get(leaf, 0))
        for key, leaf in keys.items()
        if key != first.cause
    }
    shown = where(analysis) or ""
    is_shown = any(line.where in text for text in first.evidence)
    sentences = first.evidence if is_shown else (shown, *first.evidence)
    leaves = [leaf for leaf in keys.values() if tree.leaves.get(leaf)]
    leaves.sort(key=lambda leaf: -tree.leaves[leaf])
    named = ", ".join(
        f"{LEAVES[leaf].label} {part:.0f} %"
        for leaf in leaves
        if (part := 100 * tree.share(tree.leaves[leaf])) >= 0.5
    )
    ns = sum(tree.leaves[leaf] for leaf in leaves)
    scope, time = in_words(tree, leaves)
    share = f"{100 * tree.share(ns):.0f} % of {scope}"
    what = f"The GPU idles {share} while the program is at one line"
    if copied:
        what = f"One line of the program takes {share}"
    # What is not copied back takes no time at all.
    spared = tree.share(ns) if copied else first.recoverable + sum(others.values())
    recoverable = min(spared, 0.999)
    is_saved = any(finding.advice == SAVE for finding in together)
    # What a library's function saves is copied back, too: a checkpoint was told to take its argmax
    # on the GPU.
    if copied and not is_saved:
        advice = GATHER_THERE if gathered else REDUCE_FIRST
    else:
        advice = SAVE if is_saved else first.advice
    return _in_one(
        tree,
        findings,
        together,
        leaves,
        ns,
        recoverable,
        sentence=f"{what}{time} ({named}).",
        gains=gain_of(GATHERED * recoverable, recoverable)
        if gathered and copied
        else freed_at_one_line(analysis, tree, recoverable),
        alone=0.0 if copied else first.alone,
        advice=advice,
        evidence=sentences,
        place=_place(line),
    )


def _in_one(
    tree: TimeTree,
    findings: list[Finding],
    together: list[Finding],
    leaves: Iterable[Leaf],
    ns: int,
    recoverable: float,
    **changed: object,
) -> list[Finding]:
    """`findings`, the largest first, with one in place of those `together`: the first of them, as
    `changed`, which covers `leaves`, takes `ns` and spares `recoverable`, 0 to 1 of the time."""
    first = together[0]
    whole = replace(
        first,
        value=100 * recoverable,
        share_percent=100 * tree.share(ns),
        step_ns=tree.a_step(ns),
        recoverable=recoverable,
        gain_unknown="",
        covers=tuple(key for leaf in leaves if (key := LEAVES[leaf].key) != first.cause),
        **changed,
    )
    rest = (finding for finding in findings if finding not in together)
    return sorted([whole, *rest], key=lambda finding: -finding.recoverable)


ALL_AT_ONCE = (
    "one operation for all values in place of the loop in {function} (masks, torch.where, batched "
    "functions as those of torchvision.ops); else "
)


def _read_in_a_loop(analysis: Analysis, tree: TimeTree, findings: list[Finding]) -> list[Finding]:
    """With one finding for the waits and the launches of a function that reads values one by
    one."""
    leaves = (Leaf.SYNC, Leaf.LAUNCH)
    keys = {LEAVES[leaf].key for leaf in leaves}
    together = [finding for finding in findings if finding.cause in keys]
    loop = read_loop(analysis)
    if not together or loop is None or not together[0].gains:
        return findings
    share_by_leaf = {Leaf.LAUNCH: loop.launches, Leaf.SYNC: loop.waits}
    ns = round(sum(part * tree.leaves.get(leaf, 0) for leaf, part in share_by_leaf.items()))
    scope, _ = in_words(tree, [])
    share = tree.share(ns)
    return _in_one(
        tree,
        findings,
        together,
        leaves,
        ns,
        share,
        sentence=(
            f"{loop.function} ({loop.file}) goes through values one by one: its waits and launches "
            f"take {100 * share:.0f} % of {scope}."
        ),
        advice=ALL_AT_ONCE.format(function=loop.function)
        + (reading_advice(analysis) or CAUSES[Leaf.SYNC].advice),
        evidence=tuple(dict.fromkeys(text for each in together for text in each.evidence)),
    )


GATHERED = 0.95
"""Part of the time at the line that goes at least: the GPU gathers as much in a hundredth of it,
and what is launched after it stays as it is. One program, 7.3 to 9.6 times as fast (an H200)."""

GATHER_THERE = (
    "keep on the GPU what is indexed at that line, and index and compute it there (x[ids]), where "
    "memory has room; else gather into pinned memory for the next step, in a loader's workers"
)


def _copies_what_it_gathers(analysis: Analysis, line: LikeliestLine) -> bool:
    """Whether a line that takes the CPU, in no function of Python, also copies most to the GPU."""
    copies = _copying(analysis.run, "pageable")[:1]
    return not line.inside and any(
        copy.where == line.where and not copy.is_of_gpu for copy in copies
    )


CUDNN_PLANS = "cudnn_plans"

NEW_LENGTHS = 0.3
"""Part of the looks at attention that find sizes which it had not had, from which cuDNN has to plan
them: each of them in programs of ragged batches or growing texts."""

OTHER_KERNELS = 2.0
"""Of cuDNN's attention, what PyTorch's other kernels may take: without the plans `score_pairs`, the
one program that was timed, is 1.6 times as fast, where 2.0 would be all that it plans."""


_CONVOLVES_OR_BACK = re.compile(rf"{CONVOLVES.pattern}|^_engine_run_backward")


def planned_by_cudnn(analysis: Analysis, tree: TimeTree, finding: Finding) -> Finding:
    """Of the CPU's own code what it is, where cuDNN plans attention or convolutions for sizes that
    it had not had; the finding itself elsewhere."""
    if finding.cause != LEAVES[Leaf.HOST].key:
        return finding
    of_attention = is_of_plans(finding.advice)
    lines = analysis.lines(Leaf.HOST)[:1]
    looked = called_lines(analysis.run, ("attention.lengths",)) if of_attention else []
    sizes = next((line for line in looked if lines and line.where == lines[0].where), None)
    if of_attention and sizes is not None:
        is_planned = sizes.tensor_bytes >= NEW_LENGTHS * sizes.calls
    elif finding.advice.startswith(FEW_SIZES):
        its = [line for line in analysis.lines(Leaf.HOST) if _CONVOLVES_OR_BACK.search(line.inside)]
        is_planned = bool(lines) and sum(line.seen for line in its) >= MOSTLY * lines[0].samples
    else:
        is_planned = finding.advice in (IN_ATTENTION, TUNES)
    if not is_planned:
        return finding
    what = "attention" if of_attention else "convolutions"
    # Other kernels than cuDNN's take longer.
    spared = OTHER_KERNELS * tree.share(tree.leaves.get(Leaf.ATTENTION, 0)) if of_attention else 0.0
    return replace(
        finding,
        cause=CUDNN_PLANS,
        covers=(finding.cause,),
        model="attention" if of_attention else "",
        advice=IN_ATTENTION if of_attention else finding.advice,
        word=f"cuDNN PLANS {what.upper()}",
        sentence=finding.sentence.replace(
            "the CPU runs the program's own code",
            f"cuDNN plans {what} for sizes that it had not had",
        ),
        gains=tuple(
            Gain(max(1.0, 1.0 / (1.0 / gain.low + spared)), gain.high, gain.cure)
            for gain in finding.gains
        ),
        evidence=(
            *finding.evidence,
            *(
                (f"Of {sizes.calls:,} looks at attention {sizes.tensor_bytes:,} found new sizes",)
                if sizes is not None
                else ()
            ),
        ),
    )


def evidence_once(findings: list[Finding]) -> list[Finding]:
    """The findings without evidence that one before has: where a step computes and where it waits
    are read from the same samples."""
    printed: set[str] = set()
    distinct = []
    for finding in findings:
        lines = tuple(line for line in finding.evidence if line not in printed)
        printed.update(lines)
        distinct.append(replace(finding, evidence=lines))
    return distinct


# What takes most of a cause that no line is known of.


def idle_phases(run: Run) -> list[tuple[str, float]]:
    """(path, part of all idle time), the largest first."""
    idle_by_path: dict[str, int] = {}
    for node, idle_ns in run.timing.idle_by_range().items():
        path = run.ranges[node].path if node in run.ranges else "outside every phase"
        idle_by_path[path] = idle_by_path.get(path, 0) + idle_ns
    whole = sum(idle_by_path.values())
    if not whole or set(idle_by_path) == {"outside every phase"}:
        return []
    return sorted(
        ((path, ns / whole) for path, ns in idle_by_path.items()), key=lambda share: -share[1]
    )


_CALLS_OF_LEAF = {
    Leaf.SYNC: re.compile("Synchronize|^cu(da)?Memcpy(?!.*Async)"),
    Leaf.ALLOCATION: re.compile("Malloc|Free"),
}
"""Calls in which the CPU is meanwhile."""


def largest_part(
    session: Session, run: Run, finding: Finding, names: Mapping[str, str] | None = None
) -> str:
    """What takes most of a cause whose line is not known: a kernel, a copy or a call, with its
    phase; of other idle time the phase alone. Empty where neither is known."""
    leaf = LEAF_OF_KEY.get(finding.cause)
    if leaf is None or finding.place or ".py" in "".join(finding.evidence):
        return ""
    if leaf in COPIES:
        timed = [(copy.operation.strip("[]").removeprefix("CUDA "), copy.phase, copy.time)
                 for copy in run.memory_operations.values()
                 if ("Host" in copy.operation) == (leaf is not Leaf.COPY_DEVICE)]  # fmt: skip
    elif calls := _CALLS_OF_LEAF.get(leaf):
        timed = [(call.name, call.range, call.time) for call in run.api.values()
                 if calls.search(call.name)]  # fmt: skip
    elif LEAVES[leaf].is_idle:
        step = main_step(run, phase_rows(run))
        inside = [(path, part) for path, part in idle_phases(run)
                  if step is not None and path.startswith(f"{step.path}/")]  # fmt: skip
        if inside:
            (path, part), whole = inside[0], sum(part for _, part in inside) or 1.0
            return (
                f"{path}, {units.percent(100 * part / whole)} of the idle time in phases of a step"
            )
        lines = line_shares(run, leaf=leaf)[:1] if leaf in AT_A_LINE else []
        shares = [(row.where, units.percent(100 * row.seen / row.samples)) for row in lines]
        return "".join(
            f"{where}, in {share} of the samples: no line has most" for where, share in shares
        )
    else:
        own = Leaf.ELEMENTWISE if leaf is Leaf.ELEMENTWISE_CHAIN else leaf
        named = [(kernel_name(session, row.kernel), row) for row in run.kernels.values()]
        timed = [(name, row.phase, row.time) for name, row in named if leaf_of_kernel(name) is own]
    took: Counter[str] = Counter()
    times: Counter[str] = Counter()
    by_phase: Counter[tuple[str, str]] = Counter()
    for name, phase, row in timed:
        took[name] += row.total
        times[name] += row.count
        by_phase[name, phase_path(run, phase) or ""] += row.total
    if not took:
        return ""
    [(name, total_ns)] = took.most_common(1)
    path = next(path for (whose, path), _ in by_phase.most_common() if whose == name)
    shown = (names or {}).get(name) or short_name(name)
    each = f"{shown}: {units.count(times[name])} × {units.duration(total_ns / max(1, times[name]))}"
    return f"{each}, in {path}" if path else each
