"""Fourier transforms: of long convolutions, and of lengths that a GPU has no fast algorithm for."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from . import ANY, ROUNDING, Cure, Redirected, replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Undo

LEAST_TAPS = 512
"""Of a filter: shorter ones are cheap as they are."""


class FftConvolution(Redirected):
    """A convolution of each channel with a long filter of its own (reverberation, a long
    convolution's kernel) as a product of Fourier transforms: for N samples and K taps it takes
    N log N in place of N K."""

    name = "fft_convolution"
    title = "convolutions with long filters go by FFT"
    answers = (ANY, "depthwise")
    result = ROUNDING
    is_certain = True
    change = "torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(filter, n), n)"
    advice = "Fourier"

    def places(self, torch: Any) -> tuple[tuple[Any, str], ...]:
        """torch.conv1d is the same function: modules call the one, programs either."""
        self._torch = torch
        return (torch.nn.functional, "conv1d"), (torch, "conv1d")

    def instead(self, _function: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """By FFT, of one filter for each channel, in full precision."""
        torch = self._torch
        if torch.compiler.is_compiling() or torch.is_autocast_enabled():
            return None
        try:
            given = _bound(*args, **kwargs)
        except TypeError:  # other words than conv1d's
            return None
        signal, taps, bias, stride, padding, dilation, groups = given
        if type(signal) is not torch.Tensor or signal.dtype is not torch.float32:
            return None
        is_plain = {stride, dilation} <= {1, (1,)} and not isinstance(padding, str)
        is_of_each = taps.shape[1] == 1 and groups == taps.shape[0] == signal.shape[-2]
        if not is_plain or not is_of_each or taps.shape[-1] < LEAST_TAPS:
            return None
        return functools.partial(_by_fft, torch, signal, taps, bias, padding)


def _bound(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> tuple[Any, ...]:  # fmt: skip
    return input, weight, bias, stride, padding, dilation, groups


def _by_fft(torch: Any, signal: Any, taps: Any, bias: Any, padding: Any) -> Any:
    each_side = padding[0] if isinstance(padding, (tuple, list)) else padding
    if each_side:
        signal = torch.nn.functional.pad(signal, (each_side, each_side))
    length, count = signal.shape[-1], taps.shape[-1]
    size = _length_for_taps(length)
    product = torch.fft.rfft(signal, size) * torch.fft.rfft(taps[:, 0], size).conj()
    made = torch.fft.irfft(product, size)[..., : length - count + 1]
    return made if bias is None else made + bias[:, None]


def _length_for_taps(least: int) -> int:
    """The smallest length from this on that is a power of two, three times or five times one."""
    return min(odd << max(0, -(-least // odd) - 1).bit_length() for odd in (1, 3, 5))


# Lengths of transforms that a program makes itself.


class FftLengths(Cure):
    """Convolutions by transforms of a length with a large prime factor, at the next length without
    one. Which it is for: what is zero-padded to that length, and transformed back to it. Of a
    convolution, or a correlation, the longer result has as many zeros more, which are left out: it
    is looked whether they are there, and where they are not, the program is not given the result:
    its run ends."""

    name = "fft_lengths"
    title = "transforms of zero-padded signals have lengths of small prime factors"
    answers: ClassVar[tuple[str, ...]] = ("prime_fft",)
    result = ROUNDING
    change = "n = scipy.fft.next_fast_len(len(x) + len(kernel) - 1), and the result's first part"
    in_one_run = False
    advice = "next_fast_len"

    def apply(self, library: Any) -> Undo:
        self._library = library
        self._longer: dict[int, int] = {}
        """By length that of transforms in its place,"""
        self._padded: dict[int, set[int]] = {}
        """and those of what was padded to it."""
        self._gaps: dict[Any, int] = {}
        """By line and shape where zeros are;"""
        self._changing: set[Any] = set()
        """lines at which they are not always there."""
        self._looks: dict[Any, int] = {}
        places = [
            (owner, f"{inverse}{kind}{rank}", self._standing_in(owner, inverse, kind, rank))
            for owner in self.owners(library)
            for inverse in ("", "i") for kind in ("fft", "rfft") for rank in ("", "2", "n")
            if hasattr(owner, f"{inverse}{kind}{rank}")
        ]  # fmt: skip
        return replaced(*places)

    def owners(self, library: Any) -> tuple[Any, ...]:
        """The modules that have the transforms."""
        return (library.fft,)

    def joined(self, tensors: list[Any], axis: int) -> Any:
        """Arrays one after the other."""
        return self._library.cat(tensors, axis)

    def is_traced(self, _value: Any) -> bool:
        """Whether nothing can be asked of it: it is compiled."""
        return False

    def _standing_in(self, owner: Any, inverse: str, kind: str, rank: str) -> Any:
        real = getattr(owner, f"{inverse}{kind}{rank}")
        change = self._back if inverse else self._forth

        @functools.wraps(real)
        def called(*args: Any, **kwargs: Any) -> Any:
            return changed(*args, **kwargs) if args else real(**kwargs)

        def changed(
            x: Any, size: Any = None, axis: Any = None, norm: Any = None, **more: Any
        ) -> Any:
            frame = sys._getframe(2)
            self._line = frame.f_code, frame.f_lasti
            size = more.pop("n", more.pop("s", size))
            axis = more.pop("dim", more.pop("axes", more.pop("axis", axis)))
            given = {("s" if rank else "n"): size, "norm": norm, **more}
            if axis is not None:
                given[self.axis_word(rank)] = axis
            if size is None or norm not in (None, "backward") or not hasattr(x, "shape"):
                if inverse and x.shape[-1] in {half // 2 + 1 for half in self._longer.values()}:
                    self.lose("the length of a transform is not given")
                return real(x, **given)
            sizes = list(size) if rank else [size]
            usual = range(-len(sizes), 0)
            axes = list(usual if axis is None else axis if rank else [axis])
            return change(real, x, sizes, [place % len(x.shape) for place in axes], given, kind)

        return called

    def axis_word(self, _rank: str) -> str:
        """What the library calls axes."""
        return "dim"

    def _call(self, real: Any, x: Any, sizes: list[int], given: dict[str, Any]) -> Any:
        word = "s" if "s" in given else "n"
        return real(x, **{**given, word: tuple(sizes) if word == "s" else sizes[0]})

    def _forth(
        self, real: Any, x: Any, sizes: list[int], axes: list[int], given: Any, _kind: str
    ) -> Any:
        longer = list(sizes)
        for place, size in enumerate(sizes):
            axis = axes[place]
            if size > x.shape[axis] and _largest_factor(size) > OF_CUFFT:
                longer[place] = self._longer.setdefault(size, _fast_length(size))
                self._padded.setdefault(size, set()).add(x.shape[axis])
        return self._call(real, x, longer, given)

    def _back(
        self, real: Any, x: Any, sizes: list[int], axes: list[int], given: Any, kind: str
    ) -> Any:
        longer = list(sizes)
        for place, size in enumerate(sizes):
            axis = axes[place]
            wanted = self._longer.get(size)
            is_half = kind == "rfft" and place == len(sizes) - 1
            if wanted is not None and x.shape[axis] == (wanted // 2 + 1 if is_half else wanted):
                longer[place] = wanted
        made = self._call(real, x, longer, given)
        for place, size in enumerate(sizes):
            if longer[place] != size:
                made = self._without_gap(made, size, longer[place] - size, axes[place])
        return made

    def _without_gap(self, made: Any, size: int, gap: int, axis: int) -> Any:
        """A result without the zeros that the longer transform has given it."""

        def part(first: int | None, last: int | None) -> Any:
            return made[(slice(None),) * axis + (slice(first, last),)]

        def is_empty(place: int) -> Any:
            return abs(part(place, place + gap)).max() <= EMPTY * abs(made).max()

        if self.is_traced(made):
            return self._library.numpy.where(is_empty(size), part(None, size), float("nan"))
        key = self._line, made.shape, size, axis
        looks = self._looks[key] = self._looks.get(key, 0) + 1
        before = self._gaps.get(key)
        # At first, and then more and more rarely: each look waits.
        if looks <= LOOKED_AT or not looks & (looks - 1) or key in self._changing:
            # A convolution's zeros come last, a correlation's between lags forth and back.
            places = (*filter(None, [before]), size, *self._padded[size])
            place = next((each for each in places if bool(is_empty(each))), None)
            if place is None:
                self.lose("transforms of a convolution have no zeros where they should")
                place = size
            if before not in (None, place):
                self._changing.add(key)
            self._gaps[key] = place
        place = self._gaps[key]
        if place == size:
            return part(None, size)
        return self.joined([part(None, place), part(place + gap, None)], axis)


OF_CUFFT = 127
"""Largest prime factor of lengths for which cuFFT has an algorithm of its own (cuFFT, "Accuracy and
Performance")."""
EMPTY = 1e-4
"""Of the largest value: what FP32 leaves of a zero."""
LOOKED_AT = 4


def _largest_factor(number: int) -> int:
    largest, factor = 1, 2
    while factor * factor <= number:
        if number % factor:
            factor += 1
        else:
            largest, number = factor, number // factor
    return max(largest, number)


def _fast_length(least: int) -> int:
    """The next even length of factors up to 7."""
    length = least + least % 2
    while _largest_factor(length) > 7:
        length += 2
    return length


class CupyFftLengths(FftLengths):
    """The same of CuPy's transforms, and of those that are called as SciPy's."""

    name = "cupy_fft_lengths"
    library = "cupy"

    def owners(self, library: Any) -> tuple[Any, ...]:
        """cupy.fft, and cupyx.scipy.fft, which the program may import later."""
        with contextlib.suppress(ImportError):
            return library.fft, importlib.import_module("cupyx.scipy.fft")
        return (library.fft,)

    def joined(self, tensors: list[Any], axis: int) -> Any:
        return self._library.concatenate(tensors, axis)

    def axis_word(self, rank: str) -> str:
        return "axes" if rank else "axis"


class JaxFftLengths(CupyFftLengths):
    """The same of JAX's transforms. Where they are compiled, a result whose zeros are not there is
    no number."""

    name = "jax_fft_lengths"
    library = "jax"

    def owners(self, library: Any) -> tuple[Any, ...]:
        return (library.numpy.fft,)

    def joined(self, tensors: list[Any], axis: int) -> Any:
        return self._library.numpy.concatenate(tensors, axis)

    def is_traced(self, value: Any) -> bool:
        return isinstance(value, self._library.core.Tracer)
