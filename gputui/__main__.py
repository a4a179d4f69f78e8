"""`python -m gputui` and the `gputui` command."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the program; the exit status."""
    # Shells and scripts ask for the version often: answered before anything else is imported.
    if sys.argv[1:] in (["--version"], ["-V"]):
        from gputui.base import VERSION

        print(f"gputui {VERSION}")
        return 0
    from gputui.cli.dispatch import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
