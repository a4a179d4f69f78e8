"""The ways a workload can end early. Each carries one line saying what, where and what to do."""


class DeclarationError(ValueError):
    """A workload's declaration contradicts itself: an error of its author, not of its user."""


class Refusal(Exception):
    """A workload does not start, or does not finish, for a reason its user can act on."""

    kind: str
    exit_status: int


class WrongUsage(Refusal):
    """The user's request is not one this workload understands."""

    kind = "wrong usage"
    exit_status = 2


class DoesNotFit(WrongUsage):
    """Values that are each allowed and do not go together: those of the parameters `names`."""

    def __init__(self, reason: str, *names: str) -> None:
        super().__init__(reason)
        self.names = names


class CannotRun(Refusal):
    """The request is valid, but not possible on this machine now."""

    kind = "cannot run"
    exit_status = 1


class OutOfMemory(CannotRun):
    """An allocation failed while the workload ran."""

    kind = "out of memory"


class MonitorGone(Exception):
    """The reader of the report pipe has closed it: end quietly."""
