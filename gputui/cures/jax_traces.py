"""What JAX compiles of a program: nothing of a step, for batches of another length each time, with
activations that are computed again, with calls of Python for what is printed."""

from __future__ import annotations

import copy
import functools
import math
import random
import sys
import types
from typing import TYPE_CHECKING, Any, ClassVar

from . import (
    ANY,
    COMPILING_S,
    EXACT,
    ROUNDING,
    CannotApply,
    Cure,
    Redirected,
    idle,
    instances,
    replaced,
)
from .computes_by import MOST_REACHED, computes_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo


MULTIPLE = 64
"""Columns of which batches have a multiple: some kinds of them in place of one for each length."""
LEAST_COLUMNS, LEAST_LENGTHS = 8, 3
"""Of a batch of texts, and how many lengths a function was given from which it is padded."""
CHECKED = 2
"""Calls of a function that are made both ways first."""
CLOSE = 0.02
"""Of the largest value, by how much both may differ: what bf16 rounds by, layer upon layer."""
NO_LABEL = -100


class JaxLengthsPadded(Cure):
    """Batches of texts that a jitted function is given get columns of zeros at their end, or of
    -100 where they have that, up to a multiple of 64. The first such calls are made both ways:
    where the function gives anything else, or an array as long as its texts, it is left alone."""

    name = "jax_lengths_padded"
    title = f"batches that jax.jit compiles for have lengths of a multiple of {MULTIPLE}"
    answers = ("idle.compile",)
    result = ROUNDING
    change = "texts padded to one of a few lengths, with a mask for what is padding"
    library = "jax"
    in_one_run = False
    is_certain = True
    longer_s = COMPILING_S / 4.0

    unused = "no function is given batches of several lengths, or what it gives depends on padding"
    _functions: list[_Lengths]

    def apply(self, jax: Any) -> Undo:
        real = jax.jit
        self._functions = []

        @functools.wraps(real)
        def jit(function: Any = None, **options: Any) -> Any:
            if function is None:
                return functools.partial(jit, **options)
            jitted = real(function, **options)
            if any("shardings" in name for name in options):
                return jitted
            padding = _Lengths(jax, self, jitted, any("donate" in name for name in options))
            self._functions.append(padding)

            @functools.wraps(function)
            def called(*args: Any, **kwargs: Any) -> Any:
                return padding.call(args, kwargs)

            for name in _OF_JITTED:
                if hasattr(jitted, name):
                    setattr(called, name, getattr(jitted, name))
            return called

        return replaced((jax, "jit", jit))

    def look(self) -> None:
        """How often batches were padded, where there were some of several lengths."""
        several = [each for each in self._functions if len(each.lengths) >= LEAST_LENGTHS]
        if several:
            self.used = sum(each.padded for each in several if not each.is_off)

    def useless(self, jax: Any) -> str | None:
        """Whether no function of the program's own was compiled for several shapes."""
        kind = type(jax.jit(lambda x: x))
        if kind is type(self.useless) or not hasattr(kind, "_cache_size"):
            raise CannotApply("this JAX does not say what it compiles")
        own = [
            each for each in instances(kind) or ()
            if not str(getattr(each, "__module__", "")).startswith(("jax", "optax", "flax"))
        ]  # fmt: skip
        if any(each._cache_size() >= LEAST_LENGTHS for each in own):
            return None
        return "no function is compiled for several shapes"


_OF_JITTED = ("lower", "trace", "eval_shape", "clear_cache", "_cache_size")


class _Lengths:
    """One jitted function, and the lengths of texts that it was given."""

    def __init__(self, jax: Any, cure: JaxLengthsPadded, jitted: Any, donates: bool) -> None:
        self._jax, self._cure, self._jitted, self._donates = jax, cure, jitted, donates
        self.lengths: set[int] = set()
        self.padded = 0
        self.is_off = False

    def call(self, args: Any, kwargs: Any) -> Any:
        """What the function gives for texts of a length that is compiled for."""
        if self.is_off or self._cure.ended:
            return self._jitted(*args, **kwargs)
        tree = self._jax.tree_util
        leaves, shape = tree.tree_flatten((args, kwargs))
        size = _size_of_texts(self._jax, leaves)
        if size is None:
            return self._jitted(*args, **kwargs)
        self.lengths.add(size[1])
        length = -(-size[1] // MULTIPLE) * MULTIPLE
        if len(self.lengths) < LEAST_LENGTHS or length == size[1]:
            return self._jitted(*args, **kwargs)
        longer = tree.tree_unflatten(shape, [_padded(each, size, length) for each in leaves])
        self.padded += 1
        if self.padded > CHECKED:
            return self._jitted(*longer[0], **longer[1])
        if self._donates:  # what is given away is no more
            longer = tree.tree_map(self._copied, longer)
        right = self._jitted(*args, **kwargs)
        try:
            made = self._jitted(*longer[0], **longer[1])
            results = [tree.tree_flatten(each) for each in (made, right)]
            self.is_off = results[0][1] != results[1][1] or not all(
                _are_alike(*pair)
                for pair in zip(results[0][0], results[1][0])  # noqa: B905
            )
        except Exception:  # it is made for other lengths
            self.is_off = True
        return right

    def _copied(self, value: Any) -> Any:
        return value.copy() if isinstance(value, self._jax.Array) else value


def _size_of_texts(jax: Any, leaves: list[Any]) -> tuple[int, int] | None:
    """Texts of a batch and their columns; None where there are none, or within a trace."""
    if any(isinstance(each, jax.core.Tracer) for each in leaves):
        return None
    for each in leaves:
        shape: Any = getattr(each, "shape", ())
        if len(shape) == 2 and shape[1] >= LEAST_COLUMNS and each.dtype.kind in "iub":
            return int(shape[0]), int(shape[1])
    return None


def _padded(value: Any, size: tuple[int, int], length: int) -> Any:
    """A batch of that size with more columns, on the host; others as they are."""
    shape: Any = getattr(value, "shape", ())
    if len(shape) < 2 or shape[0] != size[0] or not hasattr(value, "dtype"):
        return value
    more = [(0, length - n if n == size[1] and axis else 0) for axis, n in enumerate(shape)]
    if not any(after for _, after in more):
        return value
    numpy: Any = sys.modules["numpy"]
    array = numpy.asarray(value)
    is_label = array.dtype.kind == "i" and bool((array == NO_LABEL).any())
    return numpy.pad(array, more, constant_values=NO_LABEL if is_label else 0)


def _are_alike(made: Any, right: Any) -> bool:
    """Whether two results are of one shape, and differ by no more than rounding does."""
    if not hasattr(right, "shape"):
        return bool(made == right)
    numpy: Any = sys.modules["numpy"]
    if made.shape != right.shape or made.dtype != right.dtype:
        return False
    if right.dtype.kind in "iub":
        return bool(numpy.array_equal(made, right))
    both = [numpy.asarray(each, dtype=numpy.float32) for each in (made, right)]
    largest = float(abs(both[1]).max()) if both[1].size else 0.0
    return bool((abs(both[0] - both[1]) <= CLOSE * largest + 1e-8).all())


LEAST_CALLS = 4
"""Calls outside of jax.jit before anything is switched."""
MOST_VARIANTS = 4
"""Of a function and what it is given that is no array, for which it is compiled."""
COMPARED = (1, 2, 1024)
"""Of the calls of a compiled function those that are made both ways."""


class _Jitted(Cure):
    """What the program calls outside of jax.jit is compiled."""

    answers = (ANY, "idle.launch", "idle.host", "idle.compile")
    result = ROUNDING
    is_certain = True
    advice = r"jax\.jit around the whole step"
    forecast = None

    none_such: ClassVar[str]
    """Why it has nothing to do where there were few such calls."""
    is_on = False
    calls = 0
    is_comparing = False
    """Whether a call is made as it is, and all calls within it."""

    def apply(self, _library: Any) -> Undo:
        if self.calls < LEAST_CALLS:
            raise CannotApply(self.none_such)
        self.is_on = True
        return functools.partial(setattr, self, "is_on", False)

    @property
    def compiles(self) -> bool:
        """Whether a call is to go the other way now."""
        return self.is_on and not self.ended and not self.is_comparing


class JaxGradientsJitted(_Jitted):
    """The gradient of a function is compiled where the program takes it outside of jax.jit,
    operation by operation. Arrays and floats that it is given, or that a function made in the loop
    holds, may be others each time, and so may integers that were, such as the step in flax's
    TrainState; for all else that it computes by, in what it calls too, it is compiled anew, a few
    times, and not at all where it stores or draws something. The first calls, and few later ones,
    are made both ways: where they differ, it ends."""

    name = "jax_gradients_jitted"
    title = "gradients of JAX are compiled"
    change = "@jax.jit on the function that makes a step: loss, gradients and update"
    library = "jax"

    none_such = "gradients are taken within jax.jit, or not at all"
    unused = "gradients that are taken outside of jax.jit cannot be compiled"

    def prepare(self, jax: Any) -> None:
        """Stand in for what takes gradients."""
        names = ("grad", "value_and_grad")
        replaced(*((jax, name, self._taking(jax, getattr(jax, name))) for name in names))

    def _taking(self, jax: Any, real: Any) -> Any:
        compiled: dict[Any, _BothWays] = {}
        seen: dict[Any, tuple[dict[int, int], set[int]]] = {}
        """By place, the integers that a function was given first, and those that were others
        later."""

        @functools.wraps(real)
        def take_gradient(*words: Any, **options: Any) -> Any:
            gradient = real(*words, **options)
            if not words or not isinstance(words[0], types.FunctionType):
                return gradient
            function, words = words[0], words[1:]

            @functools.wraps(gradient)
            def called(*args: Any, **kwargs: Any) -> Any:
                if not (self.compiles or self.calls < LEAST_CALLS):
                    return gradient(*args, **kwargs)
                try:
                    held = [cell.cell_contents for cell in function.__closure__ or ()]
                    leaves, shape = jax.tree_util.tree_flatten(((*held, *args), kwargs))
                except Exception:  # a cell that is not set yet, or keys without an order
                    return gradient(*args, **kwargs)
                if len(leaves) > MOST_REACHED or any(
                    isinstance(leaf, jax.core.Tracer) for leaf in leaves
                ):
                    return gradient(*args, **kwargs)
                self.calls += 1
                self.seen_from(sys._getframe(1))
                if not self.compiles:
                    return gradient(*args, **kwargs)
                try:
                    first, varying = seen.setdefault((function.__code__, shape), ({}, set()))
                except TypeError:  # what is no key
                    return gradient(*args, **kwargs)
                for place, leaf in enumerate(leaves):
                    if type(leaf) is int and first.setdefault(place, leaf) != leaf:
                        varying.add(place)
                traced = [
                    place in varying or _is_traced(jax, leaf) for place, leaf in enumerate(leaves)
                ]
                arrays = [leaf if each else None for leaf, each in zip(leaves, traced)]  # noqa: B905
                static = [None if each else leaf for leaf, each in zip(leaves, traced)]  # noqa: B905
                try:
                    key, by = _key(function, shape, static, words, options)
                    if key not in compiled and len(compiled) < MOST_VARIANTS:
                        computed = _computed(jax, real, function, words, options, shape, static)
                        compiled[key] = _BothWays(jax, computed, by)
                except TypeError:  # what is no key
                    return gradient(*args, **kwargs)
                made = None
                if key in compiled:
                    made = compiled[key].call(
                        self, ((arrays,), {}), lambda: gradient(*args, **kwargs)
                    )
                return gradient(*args, **kwargs) if made is None else made

            return called

        return take_gradient


def _is_traced(jax: Any, leaf: Any) -> bool:
    """Whether it may be another in each call of what is compiled."""
    numpy: Any = sys.modules["numpy"]
    return isinstance(leaf, (jax.Array, numpy.ndarray, numpy.generic, float))


def _key(
    function: Any, shape: Any, static: list[Any], words: Any, options: Any
) -> tuple[Any, list[Any]]:
    """What a function computes by but arrays; as a key, and what is to stay with it. Raises
    TypeError where that is not known."""
    given = [*static, *words, *options.values()]
    bare = (types.CellType(None),) * len(function.__closure__ or ())
    reached, by = computes_by([_with_cells(function, bare), *given])
    key = function.__code__, shape, reached, (*options,)
    hash(key)
    return key, by


def _with_cells(function: Any, cells: tuple[types.CellType, ...]) -> types.FunctionType:
    """The same function, but that it holds what is in these cells."""
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _computed(
    jax: Any, real: Any, function: Any, words: Any, options: Any, shape: Any, static: list[Any]
) -> Any:
    """What is compiled: the gradient for arrays, those that the function holds among them. It
    raises TypeError where the function does more than compute."""

    def of_arrays(arrays: list[Any]) -> Any:
        leaves = [first if second is None else second for first, second in zip(arrays, static)]  # noqa: B905
        given, kwargs = jax.tree_util.tree_unflatten(shape, leaves)
        count = len(function.__closure__ or ())
        cells = tuple(map(types.CellType, given[:count]))
        key, by = _key(function, shape, static, words, options)
        before = [(each, copy.copy(each)) for each in by if type(each) in (list, dict)]
        draws = _draws()
        gradient = real(_with_cells(function, cells), *words, **options)
        result = gradient(*given[count:], **kwargs)
        for each, value in before:  # what is left there is none of the program's arrays
            if len(each) != len(value):
                each.clear()
                (each.update if isinstance(each, dict) else each.extend)(value)
                raise TypeError("it stores what it computes")
        if _draws() != draws:
            raise TypeError("it draws")
        now = [cell.cell_contents for cell in cells]
        left, same = jax.tree_util.tree_flatten(((*now, *given[count:]), kwargs))
        if (
            same != shape or any(a is not b for a, b in zip(left, leaves))  # noqa: B905
            or _key(function, shape, static, words, options)[0] != key
        ):  # fmt: skip
            raise TypeError("it stores what it computes")
        return result

    return of_arrays


def _draws() -> tuple[Any, ...]:
    """Where the generators that are everyone's are."""
    _, key, place, *rest = sys.modules["numpy"].random.get_state()
    return random.getstate(), key.tobytes(), place, *rest


class _BothWays:
    """A function that is compiled, and some of whose calls are made without that, too."""

    def __init__(self, jax: Any, function: Any, by: object = None) -> None:
        self._jax, self._function = jax, function
        self._by = by  # what a key has by its id is to stay
        self._jitted: Any = None
        self._calls = 0
        self._is_off = False

    def call(self, cure: _Jitted, given: Any, right: Callable[[], Any]) -> Any:
        """What it gives for these arguments, positional ones and by name, or as `right` does; None
        where it cannot be compiled."""
        if self._is_off:
            return None
        self._jitted = self._jitted or self._jax.jit(self._function)
        try:
            made = self._jitted(*given[0], **given[1])
        except Exception:  # it asks for values, or gives what is no array
            self._is_off = True
            cure.used = cure.used or 0
            return None
        self._calls += 1
        if self._calls in COMPARED:
            cure.is_comparing = True
            try:
                made_as_it_is = right()
            finally:
                cure.is_comparing = False
            # Numbers of Python come back as arrays.
            if self._kinds(made) != self._kinds(made_as_it_is):
                self._is_off = True
                cure.used = cure.used or 0
                return made_as_it_is
            are_alike = self._are_alike(made, made_as_it_is)
            if are_alike is False:
                cure.end("what is compiled gives something else")
                return made_as_it_is
            cure.both_ways += are_alike is True
        cure.used = (cure.used or 0) + 1
        return made

    def _kinds(self, made: Any) -> list[bool]:
        return [isinstance(leaf, self._jax.Array) for leaf in self._jax.tree_util.tree_leaves(made)]

    def _are_alike(self, made: Any, right: Any) -> bool | None:
        """Whether two results differ by no more than rounding does; None where they are no numbers
        that can be compared."""
        try:
            far, large = map(float, self._jax.jit(self._distance)(made, right))
        except Exception:  # keys of random numbers, for one
            return None
        return far <= CLOSE * CLOSE * large if math.isfinite(large) else None

    def _distance(self, made: Any, right: Any) -> Any:
        """The squares of by how much two results differ, and of the right one, added up."""
        jnp, leaves = self._jax.numpy, self._jax.tree_util.tree_leaves
        pairs = [
            (jnp.asarray(first, jnp.float32), jnp.asarray(second, jnp.float32))
            for first, second in zip(leaves(made), leaves(right))  # noqa: B905
        ]
        far = sum(jnp.square(first - second).sum() for first, second in pairs)
        return far, sum(jnp.square(second).sum() for _, second in pairs)


class OptaxJitted(_Jitted):
    """What optax computes of gradients is compiled, where the program calls it outside of jax.jit,
    operation by operation, anew where a function, such as a schedule, computes by something else.
    The first calls of each, and few later ones, are made both ways."""

    name = "optax_jitted"
    title = "optax's updates are compiled"
    change = "jax.jit of the whole step: gradients, tx.update and optax.apply_updates"
    library = "optax"

    none_such = "optax is called within jax.jit, or not at all"
    unused = "what optax is given cannot be compiled"

    def prepare(self, optax: Any) -> None:
        kind = optax.GradientTransformation
        make = kind.__new__

        def made(cls: Any, init: Any, update: Any) -> Any:
            return make(cls, init, self._jitted(update))

        pure = [name for name in _PURE if hasattr(optax, name)]
        replaced(
            (kind, "__new__", made),
            *((optax, name, self._jitted(getattr(optax, name))) for name in pure),
        )

    def _jitted(self, function: Any) -> Any:
        jax = sys.modules["jax"]
        compiled: dict[Any, _BothWays] = {}

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            leaves = jax.tree_util.tree_leaves((args, kwargs))
            is_alone = not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
            if not is_alone or not any(isinstance(leaf, jax.Array) for leaf in leaves):
                return function(*args, **kwargs)
            self.calls += 1
            self.seen_from(sys._getframe(1))
            if not self.compiles:
                return function(*args, **kwargs)
            made = None
            try:
                key, by = computes_by([function], of_libraries=True)
                if key not in compiled and len(compiled) < MOST_VARIANTS:
                    compiled[key] = _BothWays(jax, lambda *a, **k: function(*a, **k), by)
            except TypeError:  # what is no key
                return function(*args, **kwargs)
            if key in compiled:
                made = compiled[key].call(self, (args, kwargs), lambda: function(*args, **kwargs))
            return function(*args, **kwargs) if made is None else made

        return called


_PURE = ("apply_updates", "incremental_update", "global_norm")


class _InTraces(Redirected):
    """What takes effect as a function is traced, and stays in what is compiled of it."""

    library = "jax"
    in_one_run = False
    is_certain = True
    longer_s = 10.0
    forecast = None


class JaxRematOff(_InTraces):
    """Activations of JAX's functions are kept instead of computed again (jax.checkpoint, flax's
    remat)."""

    name = "jax_remat_off"
    none_such = "it calls no checkpoint of JAX"
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
    none_such = "it calls no print of JAX"
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
