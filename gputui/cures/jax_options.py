"""What a program of JAX has its compiled functions do beside their work: compute activations again,
and call Python for what they print."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import ANY, EXACT, ROUNDING, Redirected, idle

if TYPE_CHECKING:
    from collections.abc import Callable


class _InTraces(Redirected):
    """What takes effect as a function is traced, and stays in what is compiled of it."""

    library = "jax"
    in_one_run = False
    is_certain = True
    longer_s = 10.0
    forecast = None

    def useless(self, _jax: Any) -> str | None:
        return None if self._calls else f"it calls no {self.places(_jax)[0][1]} of JAX"


class JaxRematOff(_InTraces):
    """Activations of JAX's functions are kept instead of computed again (jax.checkpoint, flax's
    remat)."""

    name = "jax_remat_off"
    title = "activations of JAX's functions are kept, none is computed again"
    answers = (ANY, "recomputation")
    result = ROUNDING  # what is fused is another
    change = "no jax.checkpoint (remat), or of fewer layers: it needs more memory"

    def places(self, jax: Any) -> tuple[tuple[Any, str], ...]:
        return (jax, "checkpoint"), (jax, "remat")

    def instead(self, _function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """The function as it is."""
        function = args[0] if args else kwargs.get("fun", kwargs.get("f"))
        return None if function is None else lambda: function


class JaxDebugOff(_InTraces):
    """No call back to Python from within what is compiled (jax.debug.print, jax.debug.callback),
    which has the GPU wait for it."""

    name = "jax_debug_off"
    title = "jax.debug.print() and jax.debug.callback() do nothing"
    answers = (ANY, "idle.host", "idle.sync", "idle.wait", "idle.launch")
    result = EXACT
    change = "no jax.debug.print or jax.debug.callback in what is compiled"

    def places(self, jax: Any) -> tuple[tuple[Any, str], ...]:
        debug = getattr(jax, "debug", None)
        return (debug, "print"), (debug, "callback")

    def instead(self, _function: Any, _args: Any, _kwargs: Any) -> Callable[[], Any] | None:
        is_own = str(sys._getframe(2).f_globals.get("__name__")).startswith("jax.")
        return None if is_own else idle
