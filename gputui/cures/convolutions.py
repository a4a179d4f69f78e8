"""Long convolutions, by Fourier transforms."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from . import ANY, ROUNDING, Redirected

if TYPE_CHECKING:
    from collections.abc import Callable

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
    size = _fast_length(length)
    product = torch.fft.rfft(signal, size) * torch.fft.rfft(taps[:, 0], size).conj()
    made = torch.fft.irfft(product, size)[..., : length - count + 1]
    return made if bias is None else made + bias[:, None]


def _fast_length(least: int) -> int:
    """The smallest length from this on that is a power of two, three times or five times one."""
    return min(odd << max(0, -(-least // odd) - 1).bit_length() for odd in (1, 3, 5))
