"""Settings for debugging that make each step slow, as the hook saw them set: a pool of memory that
is off, results that are looked through for NaN, calls that are not compiled.
"""

from __future__ import annotations

from collections.abc import Iterator

from gputui.model.leaves import LEAVES, Leaf
from gputui.report.explain.analysis import Analysis, RunRule
from gputui.report.explain.finding import Finding, gain_of
from gputui.report.explain.habits import ANOMALY
from gputui.report.explain.lines import is_set
from gputui.report.explain.verdict import SPEAKS

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


RULES = (RunRule(15, slow_settings),)
