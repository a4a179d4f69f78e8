"""What JAX compiled in a run before shortens the start of the next one, and nothing else: a step
that compiles is to take what it takes. GPUTUI_COMPILED names the folder, where that is so
(gputui.trial.runs.compiled_once).

If anything fails here, the program goes on. Python 3.8 and later; nothing of gputui is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any

MOST_HITS = 8
"""What a program compiles again in one run it compiles anew after so many times. Equal functions
of a start are some, too."""


def compile_anew() -> None:
    """From now on JAX neither takes anything from the folder nor puts anything there."""
    config: Any = getattr(sys.modules.get("jax"), "config", None)
    place = os.environ.get("GPUTUI_COMPILED")
    if place and getattr(config, "jax_compilation_cache_dir", None) == place:
        with contextlib.suppress(Exception):  # another version
            cache = importlib.import_module("jax.experimental.compilation_cache.compilation_cache")
            config.update("jax_enable_compilation_cache", False)
            cache.reset_cache()


def count_hits(jax: Any) -> None:
    """In the run that fills the folder, given the module: what it takes from there it has compiled
    itself before, so after MOST_HITS of them it compiles anew. A function that was given to
    jax.jit in each step would else look as if it were compiled once."""
    if os.environ.get("GPUTUI_COMPILED"):
        hits: list[str] = []

        def noted(event: str, **_words: Any) -> None:
            if event == "/jax/compilation_cache/cache_hits":
                hits.append(event)
                if len(hits) == MOST_HITS:
                    compile_anew()

        jax.monitoring.register_event_listener(noted)
