"""The ways a workload can end early. Each carries one line that says what, where and what to do."""


class DeclarationError(ValueError):
    """A workload's declaration contradicts itself: a mistake of its author, not of its user."""


class Refusal(Exception):
    """A workload does not start, or does not finish, for a reason its user can act on."""

    kind: str
    exit_status: int


class WrongUsage(Refusal):
    """What the user asked for is not a request this workload can read."""

    kind = "wrong usage"
    exit_status = 2


class CannotRun(Refusal):
    """The request is sound, but not on this machine as it is now."""

    kind = "cannot run"
    exit_status = 1


class OutOfMemory(CannotRun):
    """An allocation failed while the workload ran."""

    kind = "out of memory"


class MonitorGone(Exception):
    """Whoever read the report pipe closed it. There is nobody left to tell: end quietly."""
