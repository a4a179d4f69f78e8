"""Findings of single kernels by their own counters, where these were sampled: one that holds the
GPU alone and uses little of it, and one that computes in FP64.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from gputui.model.leaves import LEAVES, Leaf
from gputui.model.units import percent
from gputui.report.explain.advice import library
from gputui.report.explain.analysis import Analysis, RunRule
from gputui.report.explain.finding import Finding, gain_of
from gputui.report.explain.kernels import LEAST_SAMPLES, TO_FP32, few_blocks, named
from gputui.report.explain.time_tree import TimeTree, of_scope
from gputui.report.roofline import Roof, kernel_roofs

SPEAKS = 0.10
"""Share of the time that a cure must free, as for a leaf."""

ALONE = 80.0
"""Percent of a kernel's time in which nothing else runs from which what it leaves idle is lost."""

IDLE = 25.0
"""Percent of the peak of the unit that it uses most below which a kernel uses little of the GPU."""

FEW = 50.0
"""Percent of the SMs' cycles with a warp below which a kernel has too few blocks."""

MOST_OF_IT = 0.6
"""Part of what SMs without blocks cost from which it is one kernel's, which then is named: the
longest one may be a product that fills them."""

FEW_WARPS = 15.0
"""Occupancy in percent below which waits for memory cannot be hidden by other warps."""

_DOUBLES = re.compile(r"<double|lambda\(double")
"""In names of kernels of doubles: an addition of them is a percent of the FP64 pipes' cycles."""

FP64 = 5.0
"""Percent of the cycles of the FP64 pipes from which a kernel computes in FP64: 22 in an exp of
doubles, which the memory binds, under 0.1 in 16 kernels without (H200)."""

REREAD = 3.0
"""Bytes asked of the L2 cache over those that the memory moves from which a kernel that computes
little reads or writes out of order: 4.9 in a copy that transposes, 1.2 to 1.9 in six kernels that
go through memory in order (H200)."""

AT_L2 = 45.0
"""Percent of the L2 cache's rate from which that is what binds such a kernel."""

COMPUTES = {"tensor_active_percent": 5.0, "fma_issue_percent": 20.0, "issue_percent": 40.0}
"""From which a kernel computes: then it may well read from the cache again and again."""

_SCATTER = re.compile(
    r"scatter|index_?(add|put|func|reduce)|indexing_backward|grad_weight|embedding.*backward", re.I
)


def _scatters(name: str) -> bool:
    """Whether a kernel's name says that it adds or writes at indices. PyTorch's kernel of both has
    a template parameter that says whether it scatters."""
    return _SCATTER.search(name) is not None and "scatter_gather_internal_kernel<false" not in name


_SERIAL = (
    "a serial scatter",
    "without torch.use_deterministic_algorithms it is done with atomics, in parallel; or a sum by "
    "segment of sorted indices, or a one-hot matrix product where there are few indices",
)
_TOO_FEW = (
    "too few blocks for the card",
    "a larger grid: a block for each part of the data, a split of the long dimension, or several "
    "such calls at once (a batch, torch.vmap, streams)",
)
_WAITS = (
    "few warps, which wait",
    "more warps an SM: fewer registers or less shared memory a block, several elements a thread",
)
_SCATTERED = (
    "all its warps wait",
    "memory read and written in order: neighbouring threads at neighbouring addresses "
    "(.contiguous() once, not in the loop), indices sorted; a fused kernel (torch.compile)",
)


def idle_kernels(analysis: Analysis) -> Iterator[Finding]:
    """The kernel with the most time among those that leave the GPU idle."""
    for roof, share, kernel in _counted(analysis):
        use = _use(roof)
        if use is None or use[0] >= IDLE or (roof.alone_percent or 0.0) < ALONE:
            continue
        free = share * (1.0 - use[0] / 100)
        if free < SPEAKS:
            continue
        tree = analysis.tree
        assert tree is not None
        kind, advice = _kind(roof, kernel)
        idle_share = share * (1.0 - (roof.sm_active_percent or 0.0) / 100)
        is_what_few_blocks_means = _scatters(kernel) or any(
            idle_share >= MOST_OF_IT * few.recoverable for few in few_blocks(analysis)
        )
        yield Finding(
            cause="idle_kernel",
            view="kernels",
            word="kernel leaves GPU idle",
            sentence=(
                f"{roof.scope} takes {of_scope(tree, share)} and uses "
                f"{percent(roof.memory_peak_percent or 0.0)} of the memory's rate and "
                f"{percent(roof.tensor_active_percent or 0.0)} of the tensor pipes, on "
                f"{percent(roof.sm_active_percent or 0.0)} of the SMs: {kind}."
            ),
            advice=advice,
            value=use[0],
            threshold=IDLE,
            source="the kernel's sampled counters (--counters): its most used unit, of its peak",
            share_percent=100 * share,
            step_ns=tree.a_step(share * tree.wall_ns),
            recoverable=free,
            gain_unknown="how fast such a kernel can be depends on what it computes",
            evidence=(
                f"Its most used unit: {use[1]}, {percent(use[0])} of the peak",
                f"Warps: {percent(roof.occupancy_percent)} of those that SMs can hold"
                if roof.occupancy_percent is not None
                else "Warps were not counted",
            ),
            kernel=kernel,
            leads=True,
            explains=("few_blocks",) if is_what_few_blocks_means else (),
        )
        return


def out_of_order(analysis: Analysis) -> Iterator[Finding]:
    """The kernel with the most time among those that ask the L2 cache for several times what the
    memory moves, and do nothing else."""
    for roof, share, kernel in _counted(analysis):
        peak, moved, asked = roof.peak_bytes_per_s, roof.memory_bytes_per_s, roof.l2_bytes_per_s
        if not peak or not moved or not asked or (roof.alone_percent or 0.0) < ALONE:
            continue
        figures = {name: getattr(roof, name) for name in COMPUTES}
        if any(value is None or value >= COMPUTES[name] for name, value in figures.items()):
            continue
        times, of_l2 = asked / moved, 100 * asked / (L2_OVER_MEMORY * peak)
        free = share * (1.0 - _IN_ORDER / times)
        if times < REREAD or of_l2 < AT_L2 or free < SPEAKS:
            continue
        tree = analysis.tree
        assert tree is not None
        yield Finding(
            cause="out_of_order",
            view="kernels",
            word="memory out of order",
            sentence=(
                f"{roof.scope} takes {of_scope(tree, share)} and asks the L2 cache for "
                f"{times:.1f} times the bytes that the memory moves: neighbouring threads are not "
                "at neighbouring addresses."
            ),
            advice=(
                "the layout that the next kernel takes, without .t(), permute() or strides and "
                ".contiguous() in the loop; torch.compile, which transposes in tiles"
            ),
            value=times,
            threshold=REREAD,
            source="bytes of the L2 cache over those of the memory, sampled (--counters)",
            share_percent=100 * share,
            step_ns=tree.a_step(share * tree.wall_ns),
            recoverable=free,
            gain_unknown="how much of it another layout spares depends on the next kernel",
            evidence=(
                f"L2 cache {of_l2:.0f} % of its rate, memory "
                f"{percent(roof.memory_peak_percent or 0.0)}",
            ),
            kernel=kernel,
            leads=True,
            explains=(
                (LEAVES[Leaf.ATTENTION_UNFUSED].key,) if _is_most_of_attention(tree, share) else ()
            ),
        )
        return


_BY_ELEMENTS = (Leaf.ELEMENTWISE, Leaf.ELEMENTWISE_CHAIN, Leaf.COPY_DEVICE, Leaf.OTHER)


def _is_most_of_attention(tree: TimeTree, share: float) -> bool:
    """Whether a kernel of this share of the time is surely half of what seems to be attention by
    hand: a softmax between two products that was none, with two transposing copies, was four fifths
    copies (H200)."""
    elsewhere = sum(tree.share(tree.leaves.get(leaf, 0)) for leaf in _BY_ELEMENTS)
    attention = tree.share(tree.leaves.get(Leaf.ATTENTION_UNFUSED, 0))
    return share - elsewhere >= attention / 2 > 0


_GATHERS = re.compile(r"index_elementwise|gather|index_?select|\btake_", re.I)
_COPIES = re.compile(r"direct_copy|copy_kernel|Memcpy|\bcopy_", re.I)
# PyTorch's kernels by elements of operands that are not in order in memory.
_IN_STRIDES = re.compile(r"\belementwise_kernel<\d+, \d+, .*_nocast", re.I)
_ELEMENT = re.compile(r"OpaqueType<(\d+)>")
_PER_BLOCK = re.compile(r"elementwise_kernel<(\d+), (\d+)")

L2_KEEPS_BYTES = 50e6
"""What a launch writes and the memory need not see: the L2 cache of an H100."""

BEYOND_NEED = 2.0
"""Times what a gather or copy needs to read for what it writes, from which it reads out of order: a
gather of 4 bytes at random reads 10 times as much, of which 3 are needed (H200)."""

FAST_READS = 10.0
"""Percent of the memory's rate from which such reads bind; below it is a kernel that waits."""


def reads_beyond_need(analysis: Analysis) -> Iterator[Finding]:
    """The gather or copy, or kernel of operands out of order, with the most time that reads far
    more than what it writes needs: the memory moves 32 bytes or more for each element, and its
    neighbours are not used."""
    for roof, share, kernel in _counted(analysis):
        count, ns = analysis.kernel_sums[roof.kernel]
        read, written = roof.read_bytes_per_s, roof.written_bytes_per_s
        needed, word = _needed_reads(kernel)
        if not needed or read is None or written is None or (roof.alone_percent or 0.0) < ALONE:
            continue
        launch_s = ns / max(1, count) / 1e9
        most_written = min(
            written * launch_s + L2_KEEPS_BYTES, _most_written(analysis, roof.kernel, kernel)
        )
        ratio = read * launch_s / most_written
        free = share * (1.0 - needed / max(ratio, needed))
        binds = roof.peak_bytes_per_s and 100 * read / roof.peak_bytes_per_s >= FAST_READS
        if ratio < BEYOND_NEED * needed or free < SPEAKS or not binds:
            continue
        tree = analysis.tree
        assert tree is not None
        chain = tree.share(tree.leaves.get(Leaf.ELEMENTWISE_CHAIN, 0))
        yield Finding(
            cause="uncoalesced",
            view="kernels",
            word=word,
            sentence=(
                f"{roof.scope} takes {of_scope(tree, share)} and reads at least {ratio:.1f} times "
                f"what it writes, where {needed:.0f} are enough: neighbouring threads read far "
                "from each other, and the memory moves 32 bytes or more for each element."
            ),
            advice=_SORTED if _GATHERS.search(kernel) else _LIES_TOGETHER,
            value=ratio,
            threshold=BEYOND_NEED * needed,
            source="bytes read and written by the memory, sampled (--counters)",
            share_percent=100 * share,
            step_ns=tree.a_step(share * tree.wall_ns),
            recoverable=free,
            gain_unknown="how much of it another order spares depends on what else reads it",
            evidence=(f"Memory {percent(roof.memory_peak_percent or 0.0)} of its rate",),
            kernel=kernel,
            leads=True,
            explains=(LEAVES[Leaf.ELEMENTWISE_CHAIN].key,) if share >= chain / 2 else (),
        )
        return


_SORTED = (
    "sorted indices, or whole rows whose elements are neighbours (index_select on the first "
    "dimension); a table that is kept in the layout in which it is read"
)
_LIES_TOGETHER = (
    "arrays in which what is read together lies together: the axis that x[..., i] picks from as "
    "the first one, or .contiguous() once"
)


def _needed_reads(name: str) -> tuple[float, str]:
    """Bytes to read for each that is written, at most, by a kernel's name: 0 of one that may well
    need more, as a sum. Indices have 8 bytes; elements that the name does not tell, 2. A copy may
    convert doubles to halves, a sum of two have operands in FP32."""
    if _scatters(name):
        return 0.0, ""
    if _GATHERS.search(name):
        element = _ELEMENT.search(name)
        size = max(1, int(element[1])) if element is not None else 2
        return (8 + size) / size, "uncoalesced gather"
    is_by_elements = _COPIES.search(name) or _IN_STRIDES.search(name)
    return (4.0, "strided reads") if is_by_elements else (0.0, "")


def _most_written(analysis: Analysis, kernel: int, name: str) -> float:
    """Bytes that a launch writes at most: PyTorch's names of kernels by elements have the threads
    of a block, the elements of a thread, and the bytes of one. A gather of 17 MB at random that
    took a third of each step was none of 50 (H200)."""
    block, element = _PER_BLOCK.search(name), _ELEMENT.search(name)
    shapes = analysis.session.launch_shapes.values()
    blocks = [math.prod(shape.grid) for shape in shapes if shape.kernel == kernel]
    if block is None or element is None or not blocks:
        return math.inf
    return float(max(blocks) * int(block[1]) * int(block[2]) * int(element[1]))


_IN_ORDER = 1.5
"""Bytes of the L2 cache over the memory's in copies and sums that go through memory in order."""


def in_fp64(analysis: Analysis) -> Iterator[Finding]:
    """Kernels that keep the FP64 pipes at work, together."""
    counted = [*_counted(analysis)]
    rows = [row for row in counted if (row[0].fp64_active_percent or 0.0) >= FP64]
    of_doubles = [row for row in counted if row not in rows and _DOUBLES.search(row[2])]
    share = sum(row[1] for row in (*rows, *of_doubles))
    # FP32 has twice the rate of FP64 and half its bytes on the cards that have most of it.
    free = share / 2
    tree = analysis.tree
    if not rows or tree is None or free < SPEAKS:
        return
    roof, _, kernel = max(rows, key=lambda row: row[1])
    yield Finding(
        cause="fp64",
        view="kernels",
        word="computes in FP64",
        sentence=(
            f"Kernels in FP64 take {of_scope(tree, share)}; in {roof.scope} the FP64 pipes are "
            f"active in {percent(roof.fp64_active_percent or 0.0)} of its cycles."
        ),
        advice=(
            "float32 (or bf16 for products) where double precision is not needed: a NumPy array or "
            "a Python float made a tensor is float64"
        ),
        value=100 * free,
        threshold=100 * SPEAKS,
        source="active cycles of the FP64 pipes, sampled (--counters)",
        share_percent=100 * share,
        step_ns=tree.a_step(share * tree.wall_ns),
        recoverable=free,
        gains=gain_of(free, share * 0.95),
        evidence=tuple(
            f"{row.scope}: FP64 pipes {percent(row.fp64_active_percent or 0.0)}"
            for row, _, _ in rows[:3]
        ),
        kernel=kernel,
        leads=True,
        explains=(LEAVES[Leaf.ELEMENTWISE_CHAIN].key,),  # of which half are bytes of float64
    )


AT_WORK = 1.0
"""Percent of all cycles of the FP64 pipes, by the GPU's own counters in the steps, from which
kernels compute in FP64: 1.6 to 13.8 in three programs that do, most of it additions of doubles that
memory binds, up to 0.3 in 160 recordings of others (H100, H200)."""

UNTYPED_GONE = (0.1, 0.5)
"""Part of the time of kernels whose names have no type that goes at least and at most: how many of
them compute in FP64 is not known. Of those half of the bytes go."""

TYPED = re.compile(
    r"\bfloat[24]?\b|half|b?float16|bf16|float32|tf32|f16|f32|s16816|s1688|h884|nvjet|ArrayIfL"
    r"|\b(int|long|char|bool)\b",
    re.I,
)


def doubles_of_no_name(analysis: Analysis) -> Iterator[Finding]:
    """FP64 pipes at work where no kernel's name says what it computes in: XLA's fusions, a
    program's own kernels."""
    tree = analysis.tree
    if tree is None or any(finding.cause == "float64" for finding in named(analysis)):
        return
    if tree.share(tree.leaves.get(Leaf.MATMUL_SIMT, 0)) >= SPEAKS or any(in_fp64(analysis)):
        return
    active = [
        sample.fp64_active_percent
        for index in analysis.devices
        if (gpu := analysis.session.gpus.get(index)) is not None
        for moment_ns, sample in gpu.samples.history
        if tree.first_ns <= moment_ns <= tree.last_ns and sample.fp64_active_percent is not None
    ]
    if len(active) < LEAST_SAMPLES or (mean := sum(active) / len(active)) < AT_WORK:
        return
    _, typed = analysis.part_of_kernels(lambda name: TYPED.search(name) is not None)
    share = tree.kernels_share * (1.0 - typed)
    least, most = (part * share for part in UNTYPED_GONE)
    gain = (least + most) / 2
    if gain < SPEAKS:
        return
    yield Finding(
        cause="float64",
        view="kernels",
        word="FP64",
        sentence=(
            f"The FP64 pipes are at work in {percent(mean)} of the cycles; kernels whose names "
            f"have no type take {of_scope(tree, share)}."
        ),
        advice=(X64 if library(analysis) == "jax" else "") + TO_FP32,
        value=mean,
        threshold=AT_WORK,
        source="GPM FP64_UTIL in the steps",
        share_percent=100 * share,
        step_ns=tree.a_step(share * tree.wall_ns),
        recoverable=gain,
        gains=gain_of(least, most),
        leads=True,
        explains=(LEAVES[Leaf.ELEMENTWISE_CHAIN].key,),
    )


X64 = "jax_enable_x64 off, or dtype=jnp.float32 where arrays are made; else "


def _counted(analysis: Analysis) -> Iterator[tuple[Roof, float, str]]:
    """Each kernel with its counters, its share of the time and its name."""
    tree = analysis.tree
    if tree is None:
        return
    sums = analysis.kernel_sums
    whole_ns = sum(ns for _, ns in sums.values())
    for roof in kernel_roofs(analysis.session, analysis.run):
        if roof.kernel in sums and whole_ns:
            names = analysis.kernel_names
            name = names[roof.kernel].name if roof.kernel in names else roof.scope
            yield roof, tree.kernels_share * sums[roof.kernel][1] / whole_ns, name


def _use(roof: Roof) -> tuple[float, str] | None:
    """The unit that a kernel uses most, in percent of its peak; None where one of those that matter
    is not known."""
    shares = {
        "tensor pipes": roof.tensor_active_percent,
        "memory": roof.memory_peak_percent,
        "instructions": roof.issue_percent,
    }
    if roof.sm_active_percent is None or any(value is None for value in shares.values()):
        return None
    shares |= {"FP64 pipes": roof.fp64_active_percent, "FMA pipes": roof.fma_issue_percent}
    if roof.l2_bytes_per_s is not None and roof.peak_bytes_per_s:
        shares["L2 cache"] = 100 * roof.l2_bytes_per_s / (L2_OVER_MEMORY * roof.peak_bytes_per_s)
    return max((value or 0.0, unit) for unit, value in shares.items())


L2_OVER_MEMORY = 1.7
"""The L2 cache's rate over the memory's: 7.9 TB/s were seen on an H200 of 4.8."""


def _kind(roof: Roof, name: str) -> tuple[str, str]:
    """What kind of kernel leaves the GPU idle like that, and what to do."""
    if _scatters(name):
        return _SERIAL
    if (roof.sm_active_percent or 0.0) < FEW:
        return _TOO_FEW
    if roof.occupancy_percent is not None and roof.occupancy_percent < FEW_WARPS:
        return _WAITS
    if _GATHERS.search(name):
        return "an uncoalesced gather", _SCATTERED[1]
    return _SCATTERED


RULES = (
    RunRule(14, idle_kernels),
    RunRule(14, out_of_order),
    RunRule(14, reads_beyond_need),
    RunRule(14, in_fp64),
    RunRule(14, doubles_of_no_name),
)
