"""Nothing is written for TensorBoard: a trial is no run that somebody wants to see there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import ANY, BOUND, Cure
from ._replacing import idle, replaced

if TYPE_CHECKING:
    from collections.abc import Callable


class _FileWriter:
    """Stands in for what SummaryWriter writes its events with."""

    def __init__(self, log_dir: Any, *_args: Any, **_kwargs: Any) -> None:
        self._log_dir = str(log_dir)

    def get_logdir(self) -> str:
        return self._log_dir

    def __getattr__(self, _name: str) -> Any:
        return idle


def _apply(writer: Any) -> Callable[[], None]:
    return replaced((writer, "FileWriter", _FileWriter))


CURE = Cure(
    name="no_tensorboard",
    title="nothing is written for TensorBoard, in every trial",
    answers=(ANY,),
    result=BOUND,
    change="add_scalar and the like less often",
    apply=_apply,
    library="torch.utils.tensorboard.writer",
    in_one_run=False,
)
