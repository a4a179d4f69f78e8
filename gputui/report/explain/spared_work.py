"""Work that is done for nothing, again, or the long way: gradients that no optimizer uses, padding,
layers and functions that are given the very tensors that they had before, settings for debugging,
rows of zeros with a one in place of an index, differences of all pairs in place of a product.

By what the hook saw of calls and settings in the program, and by kernels' names; findings of their
own, whatever the verdict is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from gputui.model import units
from gputui.model.leaves import LEAVES, Leaf
from gputui.report.explain.analysis import Analysis, RunRule
from gputui.report.explain.finding import Finding, gain_of
from gputui.report.explain.habits import ANOMALY
from gputui.report.explain.kernels import launched
from gputui.report.explain.lines import called_lines, is_set, launched_share
from gputui.report.explain.time_tree import of_scope
from gputui.report.explain.verdict import SPEAKS

# Gradients that no optimizer uses.

UNUSED = 0.3
"""Part of the parameters that have a gradient from which gradients without an optimizer are a
finding."""

OF_BACKWARD = (0.25, 0.7)
"""Part of a step that goes with them at least and at most, for all parameters: where what is
trained lies before them, only the gradients of their weights, a third of the products; else all of
their backward pass (0.69 in `histology_probe`)."""

FREEZE_BACKBONE = (
    "torch.no_grad() around the part that is not trained, or requires_grad_(False) for its "
    "parameters: leaving them out of the optimizer keeps their backward pass"
)


def unused_gradients(analysis: Analysis) -> Iterator[Finding]:
    """Gradients of parameters that no optimizer has: their backward pass is for nothing."""
    tree, run = analysis.tree, analysis.run
    sizes = Counter[str]()
    for seen in run.line_calls.values():
        if seen.call in ("gradients.used", "gradients.unused"):
            sizes[seen.call] = max(sizes[seen.call], seen.tensor_bytes)
    whole = sizes.total()
    share = sizes["gradients.unused"] / whole if whole else 0.0
    if tree is None or share < UNUSED:
        return
    unused, used = (units.size(sizes[f"gradients.{kind}"]) for kind in ("unused", "used"))
    lines = called_lines(run, ("gradients.unused",))
    where = lines[0].where if lines else ""
    least, most = (part * share for part in OF_BACKWARD)
    yield Finding(
        cause="unused_gradients",
        view="timeline",
        word=f"unused gradients of {100 * share:.0f} % of the parameters",
        sentence=(
            f"Backward computes gradients for {unused} of parameters that no optimizer updates; "
            f"those that are updated have {used}."
        ),
        advice=FREEZE_BACKBONE,
        value=100 * share,
        threshold=100 * UNUSED,
        source="gradients of the module that no other calls, and the optimizers' parameters",
        recoverable=most,
        gains=gain_of(least, most),
        evidence=(f"The model is called at {where}",) if where else (),
        place=where,
        leads=True,
    )


# Padding of texts.

PADDED = 0.5
"""Part of the tokens that are copied to the GPU from which their padding is a finding. It rests on
three programs with such a fault, 0.78 to 0.93, and on no healthy one that copies texts."""

SELDOM = 0.1
"""Copies a step up to which texts are copied before the loop: prompts that all batches share."""

OF_TOKENS = 0.8
"""Part of what kernels take for padding that goes with it: 0.8 in `filings_rag_embed`, on which it
is fitted. Of three more programs whose padding was cut one gained 1.27 times and two nothing, for
lengths that change cost something: what is gained is not said."""

GROUP = (
    "pad to the longest text of a batch, of texts of like length (sorted or grouped by length), to "
    "one of a few lengths; or several texts in a row without padding (varlen attention)"
)


def padding(analysis: Analysis) -> Iterator[Finding]:
    """Texts that are mostly padding as they are copied to the GPU."""
    tree = analysis.tree
    tokens = called_lines(analysis.run, ("tokens.all",))[:1]
    padded = {
        line.where: line.tensor_bytes for line in called_lines(analysis.run, ("tokens.padding",))
    }
    place = tokens[0].where if tokens else ""
    share = padded.get(place, 0) / tokens[0].tensor_bytes if tokens else 0.0
    copies = [line for line in called_lines(analysis.run, ("to", "cuda")) if line.where == place]
    is_before = bool(copies) and sum(line.calls for line in copies) < SELDOM * analysis.all_steps
    if tree is None or share < PADDED or is_before:
        return
    yield Finding(
        cause="padding",
        view="kernels",
        word=f"padding {100 * share:.0f} % of tokens",
        sentence=f"{100 * share:.0f} % of the tokens that are copied to the GPU are padding.",
        advice=GROUP,
        value=100 * share,
        threshold=100 * PADDED,
        source="the first texts of a batch now and then, as the program copies it",
        recoverable=OF_TOKENS * share * tree.kernels_share,
        gain_unknown=f"up to {1 / (1 - share * tree.kernels_share):.1f}× if the GPU's work shrinks "
        "with the tokens, nothing if each new length costs launches and plans of its own",
        evidence=(f"They are copied at {place}",) if place else (),
        place=place,
        leads=True,
    )


# Layers that compute the same again.

COMPUTED_AGAIN = 0.15
"""Part of what layers compute from which computing it again is a finding."""

KEEP = (
    "compute it once for each of its inputs and keep it: the keys and values of cross-attention "
    "before the loop over tokens, an encoder's output before the loop over steps; for metrics what "
    "the pass for the loss gave"
)


def repeated_layers(analysis: Analysis) -> Iterator[Finding]:
    """Layers that are given the very tensors again, unchanged, that they were given before."""
    return _computed_again(
        analysis,
        ("layers.repeated", "layers.all", COMPUTED_AGAIN),
        cause="repeated_layers",
        word="layers compute the same again",
        sentence="{percent:.0f} % of what layers compute is of the very tensors that the same "
        "layer had had before, unchanged.",
        advice=KEEP,
        source="calls of torch's modules, some hundred at a time",
        called="They are called at",
    )


_OF_LAYERS = (Leaf.MATMUL, Leaf.MATMUL_SIMT, Leaf.MATMUL_UNALIGNED)


def _computed_again(
    analysis: Analysis,
    counts: tuple[str, str, float],
    *,
    cause: str,
    word: str,
    sentence: str,
    advice: str,
    source: str,
    called: str,
) -> Iterator[Finding]:
    """What is computed and need not be, as the hook counted it. `counts` are the names of its
    counts of that and of the whole, and the part from which it is a finding. None where products
    take little."""
    repeated, whole, threshold = counts
    tree, run = analysis.tree, analysis.run
    lines = called_lines(run, (repeated,))
    sizes = {line.where: line.tensor_bytes for line in called_lines(run, (whole,))}
    if tree is None or not lines or not sizes.get(lines[0].where):
        return
    place = lines[0].where
    part = min(1.0, lines[0].tensor_bytes / sizes[place])
    products = tree.share(sum(tree.leaves.get(leaf, 0) for leaf in _OF_LAYERS))
    if part < threshold or part * products < COMPUTED_AGAIN / 2:
        return
    # What lies around the products goes with them, as far as it is of these layers.
    least, most = 0.7 * part * products, part * tree.kernels_share
    yield Finding(
        cause=cause,
        view="kernels",
        word=word,
        sentence=sentence.format(percent=100 * part),
        advice=advice,
        value=100 * part,
        threshold=100 * threshold,
        source=source,
        recoverable=(least + most) / 2,
        gains=gain_of(least, most),
        evidence=(f"{called} {place}",),
        place=place,
        leads=True,
    )


# Rows of zeros with a one, in place of an index.

BY_INDEX = (
    "an index in place of one-hot rows: weight[index] (nn.Embedding) for a product with them, "
    "class numbers for cross_entropy, index_add_ or bincount for sums"
)
AROUND_ONE_HOT = (0.7, 1.5)
"""What goes with one-hot rows, in times of what their line launches: the product with them may be
of another line. It rests on no program yet."""


def one_hot(analysis: Analysis) -> Iterator[Finding]:
    """One-hot rows that take much of the GPU's time, with what is computed of them in that line."""
    tree, run = analysis.tree, analysis.run
    lines = called_lines(run, ("torch.nn.functional.one_hot",))
    shares = {line.where: launched_share(run, line.where) or 0.0 for line in lines}
    if tree is None or not shares:
        return
    place = max(shares, key=lambda where: shares[where])
    share = tree.kernels_share * shares[place]
    if share < AGAIN_SHARE:
        return
    least, most = (part * share for part in AROUND_ONE_HOT)
    yield Finding(
        cause="one_hot",
        view="kernels",
        word="one-hot rows",
        sentence=(
            f"one_hot() and what its line computes of it take {100 * share:.0f} % of the time: "
            "rows of zeros with a one in place of an index."
        ),
        advice=BY_INDEX,
        value=100 * share,
        threshold=100 * AGAIN_SHARE,
        source="calls of one_hot, and the lines at which launches were seen",
        recoverable=share,
        gains=gain_of(least, min(0.95, most)),
        evidence=(f"It is called at {place}",),
        place=place,
        leads=True,
        explains=("copies",),
    )


# What one call makes again of the same tensor.

AGAIN_SHARE = 0.1
"""Share of the GPU's time from which lines that compute the same again are a finding. It rests on
no program with such a fault yet."""

BEFORE_THE_LOOP = (
    "compute it once, before the loop, and keep it; again only where what it is made of changes"
)


def computed_before(analysis: Analysis) -> Iterator[Finding]:
    """Functions of one tensor (an inverse, a transform, a cast) that are given the very same one,
    unchanged, each time. What replays of CUDA graphs write is not seen."""
    tree, run = analysis.tree, analysis.run
    if tree is None or any("GraphLaunch" in call.name for call in run.api.values()):
        return
    calls = {seen.call for seen in run.line_calls.values() if seen.call.startswith("again.")}
    shares: dict[str, float] = {}
    functions: dict[str, str] = {}
    for line in called_lines(run, calls):
        shares[line.where] = launched_share(run, line.where) or 0.0
        functions.setdefault(line.where, line.call.removeprefix("again."))
    share = tree.kernels_share * sum(shares.values())
    if share < AGAIN_SHARE:
        return
    place = max(shares, key=lambda where: shares[where])
    yield Finding(
        cause="computed_before",
        view="kernels",
        word="the same is computed again",
        sentence=(
            f"{functions[place]}() is given the very same tensor each time, unchanged: "
            f"{100 * share:.0f} % of the time goes to lines that compute the same again."
        ),
        advice=BEFORE_THE_LOOP,
        value=100 * share,
        threshold=100 * AGAIN_SHARE,
        source="calls of functions of one tensor, and the lines at which launches were seen",
        recoverable=share,
        gains=gain_of(0.6 * share, share),
        evidence=tuple(
            f"At {where}, {100 * its:.0f} % of the GPU's time"
            for where, its in sorted(shares.items(), key=lambda pair: -pair[1])[:3]
            if its
        ),
        place=place,
        leads=True,
    )


# Graph convolutions that propagate the same features again.

_PROPAGATES = re.compile(r"gather|scatter|index_?add|index_?select|segment_|spmm", re.I)
WITH_EDGES = (0.9, 1.5)
"""What goes with it, in times of the kernels that gather and scatter: messages are scaled, too. 1.4
in `sgc_papers`, the one program that it rests on."""

PROPAGATE_ONCE = (
    "cached=True of the graph convolution: its features and edges are the same each time, and what "
    "it propagates of them does not depend on its weights"
)


def propagated_again(analysis: Analysis) -> Iterator[Finding]:
    """Convolutions of a graph that are given the same features and edges each time."""
    tree = analysis.tree
    lines = called_lines(analysis.run, ("layers.uncached",))
    if tree is None or not lines:
        return
    _, part = analysis.part_of_kernels(lambda name: _PROPAGATES.search(name) is not None)
    share = tree.kernels_share * part
    if share < AGAIN_SHARE:
        return
    least, most = (part * share for part in WITH_EDGES)
    yield Finding(
        cause="propagated_again",
        view="kernels",
        word="the same is propagated again",
        sentence=(
            "A graph convolution is given the very same features and edges each time: "
            f"{100 * share:.0f} % of the time gathers and scatters them."
        ),
        advice=PROPAGATE_ONCE,
        value=100 * share,
        threshold=100 * AGAIN_SHARE,
        source="what graph convolutions are given that have an option `cached`",
        recoverable=share,
        gains=gain_of(least, min(0.95, most)),
        evidence=(f"It is called at {lines[0].where}",),
        place=lines[0].where,
        leads=True,
    )


# A beginning that all texts share.

SHARED = 0.5
"""Part of the tokens that a model is given from which a beginning that all texts share is a
finding: 0.94 in `triage_fewshot`, the one program that it rests on."""

ONCE = (
    "compute the beginning that all texts share (a prompt, its examples) once and keep its keys "
    "and values (past_key_values, cropped after each batch); or an engine that caches prefixes"
)


def shared_beginning(analysis: Analysis) -> Iterator[Finding]:
    """Texts that begin alike, in a batch and from batch to batch, and are computed whole."""
    # The rest of a text still attends to all of it, and launches as many kernels.
    return _computed_again(
        analysis,
        ("beginning.shared", "beginning.all", SHARED),
        cause="shared_beginning",
        word="all texts begin alike",
        sentence="{percent:.0f} % of the tokens that the model computes are a beginning that all "
        "texts share, in each batch anew.",
        advice=ONCE,
        source="the first texts that an embedding is given, now and then",
        called="The model is called at",
    )


# What is meant for debugging, and left on.

_WAITING = (Leaf.HOST, Leaf.WAIT, Leaf.LAUNCH, Leaf.SYNC, Leaf.ALLOCATION, Leaf.CUDA)
_SLOW_SETTINGS = {
    "xla.platform": (
        "XLA's memory pool off",
        "XLA's memory pool is off: the driver allocates each buffer",
        "unset XLA_PYTHON_CLIENT_ALLOCATOR=platform, also where the program sets it itself: each "
        "buffer is allocated by the driver and given back; a part of the memory is "
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
    ),
    "jax.debug": (
        "JAX looks for NaN",
        "JAX reads back what each call gives and looks for NaN or infinity in it (jax_debug_nans)",
        'jax.config.update("jax_debug_nans", False), and jax_debug_infs',
    ),
    "jax.no.jit": (
        "jit is off",
        "jax.jit is off (jax_disable_jit): each operation is a call of its own",
        'jax.config.update("jax_disable_jit", False), and no JAX_DISABLE_JIT',
    ),
    "anomaly": ("anomaly mode", "Autograd's anomaly mode is on", ANOMALY),
}
"""By the name of the setting: a few words, what it does, what to set."""

OF_SETTING = (0.4, 1.0)
"""Part of the idle time that goes with such a setting, at least and at most: no program with its
recording is kept. One without XLA's pool became 4.3 times as fast with it (an H200)."""


def slow_settings(analysis: Analysis) -> Iterator[Finding]:
    """What is meant for debugging, as the hook saw it set."""
    tree = analysis.tree
    share = tree.share(sum(tree.leaves.get(leaf, 0) for leaf in _WAITING)) if tree else 0.0
    least, most = (part * share for part in OF_SETTING)
    name = next((name for name in _SLOW_SETTINGS if is_set(analysis.run, name)), None)
    if tree is None or name is None or (least + most) / 2 < SPEAKS:
        return
    word, sentence, advice = _SLOW_SETTINGS[name]
    yield Finding(
        cause="slow_setting",
        view="timeline",
        word=word,
        sentence=f"{sentence}: the GPU waits {100 * share:.0f} % of the time.",
        advice=advice,
        value=100 * share,
        threshold=100 * SPEAKS,
        source="looks at the library's settings, once a second",
        share_percent=100 * share,
        step_ns=tree.a_step(share * tree.wall_ns),
        recoverable=(least + most) / 2,
        gains=gain_of(least, most),
        covers=tuple(LEAVES[leaf].key for leaf in _WAITING),
        leads=True,
    )


# Differences of all pairs that are written out. PyTorch's kernels that broadcast are
# `elementwise_kernel` without `vectorized_`.
_DIFFERENCES = re.compile(
    r"(?<![a-z_])elementwise_kernel<.*CUDAFunctor_add<|^cupy_subtract__", re.S
)
_SQUARES = re.compile(
    r"pow_tensor_scalar|MulFunctor|AbsFunctor|^cupy_(power|square|multiply|absolute)__", re.S
)
_SUMS = re.compile(r"reduce_kernel<.*(sum_functor|NormTwoOps|NormOneOps)|^cupy_sum$", re.S)

OF_DISTANCES = 0.5
"""Share of the time in all of them from which distances are what a program computes."""

EACH_OF_DISTANCES = 0.1
"""Share of the time of the differences, and of the sums, at least. Of 160 recordings, of which none
is of distances, one has as much of both, and a chain of operations beside it (a lattice)."""

IN_A_PRODUCT = (0.7, 0.97)
"""Part that goes with a matrix product. It rests on no program yet."""

AS_PRODUCT = (
    'torch.cdist (compute_mode="use_mm_for_euclid_dist"), or |a|² + |b|² - 2 a·b as a matrix '
    "product: no tensor of pairs × features is written then; in parts where that does not do"
)


def pairwise(analysis: Analysis) -> Iterator[Finding]:
    """Differences that are broadcast, squared and summed, most of the time: each goes to memory,
    where a matrix product gives the sums alone."""
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
    if min(differences, sums) < EACH_OF_DISTANCES or share < OF_DISTANCES or chain > share / 2:
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
        threshold=100 * OF_DISTANCES,
        source="names of the kernels that subtract over two shapes, square and sum",
        share_percent=100 * share,
        step_ns=tree.a_step(share * tree.wall_ns),
        recoverable=(least + most) / 2,
        gains=gain_of(least, most),
        evidence=launched(analysis, numbers),
        leads=True,
        explains=("slow_kernels", "busy.elementwise_chain"),
    )


RULES = (
    RunRule(13, pairwise),
    RunRule(15, slow_settings),
    RunRule(15, unused_gradients),
    RunRule(15, padding),
    RunRule(15, repeated_layers),
    RunRule(15, shared_beginning),
    RunRule(15, computed_before),
    RunRule(15, one_hot),
    RunRule(15, propagated_again),
)
