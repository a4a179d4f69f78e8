"""How NVML is called, and what its errors mean: for the bindings, which are split by pace.

Not in `bindings`, because every group of calls there is built on this class.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, NewType

from gputui.base.errors import GputuiError
from gputui.base.sanitize import sanitize

Handle = NewType("Handle", object)

# nvmlReturn_t of nvml.h, of which nvidia-ml-py has the names only once it is imported.
INVALID_ARGUMENT = 2

NOT_SUPPORTED = 3

NO_PERMISSION = 4

NOT_FOUND = 6

TIMEOUT = 10

FUNCTION_NOT_FOUND = 13

GPU_IS_LOST = 15

ARGUMENT_VERSION_MISMATCH = 25

_REASONS = {
    NOT_SUPPORTED: "not supported by this GPU",
    NO_PERMISSION: "no permission: run as root, or ask the administrator",
    9: "the NVIDIA driver is not loaded: run `sudo modprobe nvidia`, or reboot",
    12: "no NVIDIA driver: libnvidia-ml.so.1 was not found",
    FUNCTION_NOT_FOUND: "unknown to this driver: a newer one is needed",
    GPU_IS_LOST: "the GPU is lost (it fell off the bus): see dmesg for its Xid, then reboot",
    16: "the GPU needs a reset: run `nvidia-smi --gpu-reset` as root, or reboot",
    18: (
        "driver/library version mismatch: the driver was updated while its old kernel module "
        "is still loaded; reboot, or reload the module"
    ),
    21: "the driver has no figure yet",
}

# nvmlValueType_t → the member of nvmlValue_t that holds it.
_VALUE_OF_TYPE = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}


class DriverError(GputuiError):
    """A call that gave no usable answer. `code` is NVML's, 999 for an answer that makes no
    sense.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Calls:
    """NVML, loaded and initialized by the constructor. Raises `DriverError`."""

    def __init__(self) -> None:
        try:
            self._nvml: Any = importlib.import_module("pynvml")
        except ImportError as error:
            raise DriverError(
                12, "the Python package nvidia-ml-py is missing: pip install nvidia-ml-py"
            ) from error
        try:
            self._call("nvmlInit")
        except DriverError as error:
            if error.code == NO_PERMISSION:
                raise DriverError(
                    error.code,
                    "no permission to use the NVIDIA driver: this user needs read and write "
                    "access to /dev/nvidiactl and /dev/nvidia*",
                ) from error
            raise

    def shutdown(self) -> None:
        self._call("nvmlShutdown")

    def fields(
        self, handle: Handle, identifiers: Sequence[int | tuple[int, int]]
    ) -> dict[int, int | float | DriverError]:
        """Several driver fields in one call, each with its value or its own error.

        An identifier is a field, or a field and its scope.
        """
        answers: dict[int, int | float | DriverError] = {}
        for entry in self._call("nvmlDeviceGetFieldValues", handle, list(identifiers)):
            code, member = int(entry.nvmlReturn), _VALUE_OF_TYPE.get(int(entry.valueType))
            if code != 0:
                answers[int(entry.fieldId)] = self._error(code)
            elif member is None:
                answers[int(entry.fieldId)] = DriverError(999, "the driver's answer makes no sense")
            else:
                answers[int(entry.fieldId)] = getattr(entry.value, member)
        return answers

    def field(self, handle: Handle, identifier: int) -> int | float:
        """The value of one of NVML's fields. Raises DriverError with the field's own reason."""
        answer = self.fields(handle, [identifier])[identifier]
        if isinstance(answer, DriverError):
            raise answer
        return answer

    def _call(self, name: str, *arguments: object) -> Any:
        function: Callable[..., Any] = getattr(self._nvml, name)
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            raise self._error(int(error.value)) from None
        except (UnicodeDecodeError, TypeError, ValueError) as error:
            raise DriverError(999, f"the driver's answer makes no sense: {error}") from error

    def _newest(self, name: str, older: str, *arguments: object) -> Any:
        """`name`'s answer, or `older`'s if the driver does not have `name`."""
        try:
            return self._call(name, *arguments)
        except DriverError as error:
            if error.code != FUNCTION_NOT_FOUND:
                raise
        return self._call(older, *arguments)

    def _error(self, code: int) -> DriverError:
        return DriverError(code, self._reason(code))

    def _reason(self, code: int) -> str:
        if reason := _REASONS.get(code):
            return reason
        words = sanitize(str(self._nvml.NVMLError(code)), 120).rstrip(".")
        return f"NVML answered {words} ({code})"


def start_driver() -> None:
    """Begin to start the driver, which takes a while, and return at once: `Calls` then waits for
    the rest of it. It stays initialized; what is wrong, `Calls` says."""

    def start() -> None:
        with contextlib.suppress(DriverError):
            Calls()

    threading.Thread(target=start, name="nvml-start", daemon=True).start()
