"""Work that is done for nothing, or again: gradients that no optimizer uses, padding, layers and
functions that are given the very tensors that they had before, rows of zeros with a one in place of
an index.

By what the hook saw of calls in the program; findings of their own, whatever the verdict is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from gputui.model import units
from gputui.model.leaves import Leaf
from gputui.report.explain.analysis import Analysis, RunRule
from gputui.report.explain.finding import Finding, gain_of
from gputui.report.explain.lines import called_lines, launched_share

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
    again = _computed_again(analysis, "layers.repeated", "layers.all", COMPUTED_AGAIN)
    if again is None:
        return
    place, part, least, most = again
    yield Finding(
        cause="repeated_layers",
        view="kernels",
        word="layers compute the same again",
        sentence=(
            f"{100 * part:.0f} % of what layers compute is of the very tensors that the same layer "
            "had had before, unchanged."
        ),
        advice=KEEP,
        value=100 * part,
        threshold=100 * COMPUTED_AGAIN,
        source="calls of torch's modules, some hundred at a time",
        recoverable=(least + most) / 2,
        gains=gain_of(least, most),
        evidence=(f"They are called at {place}",),
        place=place,
        leads=True,
    )


_OF_LAYERS = (Leaf.MATMUL, Leaf.MATMUL_SIMT, Leaf.MATMUL_UNALIGNED)


def _computed_again(
    analysis: Analysis, repeated: str, whole: str, threshold: float
) -> tuple[str, float, float, float] | None:
    """Where the hook saw most that need not be computed, by its counts of that and of the whole;
    which part it is, and which part of the time goes with it, at least and at most. None under the
    threshold, or where products take little."""
    tree, run = analysis.tree, analysis.run
    lines = called_lines(run, (repeated,))
    sizes = {line.where: line.tensor_bytes for line in called_lines(run, (whole,))}
    if tree is None or not lines or not sizes.get(lines[0].where):
        return None
    place = lines[0].where
    part = min(1.0, lines[0].tensor_bytes / sizes[place])
    products = tree.share(sum(tree.leaves.get(leaf, 0) for leaf in _OF_LAYERS))
    if part < threshold or part * products < COMPUTED_AGAIN / 2:
        return None
    # What lies around the products goes with them, as far as it is of these layers.
    return place, part, 0.7 * part * products, part * tree.kernels_share


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
    again = _computed_again(analysis, "beginning.shared", "beginning.all", SHARED)
    if again is None:
        return
    place, part, least, most = again
    yield Finding(
        cause="shared_beginning",
        view="kernels",
        word="all texts begin alike",
        sentence=(
            f"{100 * part:.0f} % of the tokens that the model computes are a beginning that all "
            "texts share, in each batch anew."
        ),
        advice=ONCE,
        value=100 * part,
        threshold=100 * SHARED,
        source="the first texts that an embedding is given, now and then",
        recoverable=(least + most) / 2,
        gains=gain_of(least, most),
        evidence=(f"The model is called at {place}",),
        place=place,
        leads=True,
    )


RULES = (
    RunRule(15, unused_gradients),
    RunRule(15, padding),
    RunRule(15, repeated_layers),
    RunRule(15, shared_beginning),
    RunRule(15, computed_before),
    RunRule(15, one_hot),
    RunRule(15, propagated_again),
)
