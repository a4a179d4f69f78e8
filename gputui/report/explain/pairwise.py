"""Distances of all pairs that are written out: each difference of two vectors goes to memory, is
squared there and summed, where a matrix product gives the sums alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gputui.model.leaves import Leaf
from gputui.report.explain.analysis import Analysis, RunRule
from gputui.report.explain.finding import Finding, gain_of
from gputui.report.explain.kernels import launched
from gputui.report.explain.time_tree import of_scope

# PyTorch's kernels that broadcast are `elementwise_kernel` without `vectorized_`.
_DIFFERENCES = re.compile(
    r"(?<![a-z_])elementwise_kernel<.*CUDAFunctor_add<|^cupy_subtract__", re.S
)
_SQUARES = re.compile(
    r"pow_tensor_scalar|MulFunctor|AbsFunctor|^cupy_(power|square|multiply|absolute)__", re.S
)
_SUMS = re.compile(r"reduce_kernel<.*(sum_functor|NormTwoOps|NormOneOps)|^cupy_sum$", re.S)

MOST_OF_IT = 0.5
"""Share of the time in all of them from which distances are what a program computes."""

EACH = 0.1
"""Share of the time of the differences, and of the sums, at least. Of 160 recordings, of which none
is of distances, one has as much of both, and a chain of operations beside it (a lattice)."""

IN_A_PRODUCT = (0.7, 0.97)
"""Part that goes with a matrix product. It rests on no program yet."""

AS_PRODUCT = (
    'torch.cdist (compute_mode="use_mm_for_euclid_dist"), or |a|² + |b|² - 2 a·b as a matrix '
    "product: no tensor of pairs × features is written then; in parts where that does not do"
)


def pairwise(analysis: Analysis) -> Iterator[Finding]:
    """Differences that are broadcast, squared and summed, most of the time."""
    tree = analysis.tree
    if tree is None:
        return

    def share_of(kind: re.Pattern[str]) -> float:
        _, part = analysis.part_of_kernels(lambda name: kind.search(name) is not None)
        return tree.kernels_share * part

    differences, squares, sums = map(share_of, (_DIFFERENCES, _SQUARES, _SUMS))
    share = differences + squares + sums
    # A long chain of elementwise operations has a finding of its own.
    chain = tree.share(tree.leaves.get(Leaf.ELEMENTWISE_CHAIN, 0))
    if min(differences, sums) < EACH or share < MOST_OF_IT or chain > share / 2:
        return
    least, most = (part * share for part in IN_A_PRODUCT)
    names = analysis.kernel_names
    numbers = {n for n in names if _DIFFERENCES.search(names[n].name)}
    yield Finding(
        cause="pairwise",
        view="kernels",
        word="differences of all pairs",
        sentence=(
            "Differences that are broadcast, squared and summed, each of them through memory, take "
            f"{of_scope(tree, share)}."
        ),
        advice=AS_PRODUCT,
        value=100 * share,
        threshold=100 * MOST_OF_IT,
        source="names of the kernels that subtract over two shapes, square and sum",
        share_percent=100 * share,
        step_ns=tree.a_step(share * tree.wall_ns),
        recoverable=(least + most) / 2,
        gains=gain_of(least, most),
        evidence=launched(analysis, numbers),
        leads=True,
        explains=("slow_kernels", "busy.elementwise_chain"),
    )


RULES = (RunRule(13, pairwise),)
