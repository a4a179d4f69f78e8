"""In an editable installation: the workloads of the checkout, under their installed name.

It is installed as the module `gputui_workloads`: `python -m gputui_workloads` runs there, too, and
an import of `gputui_workloads` gives the very modules of `workloads`.
"""

import sys

import workloads

if __name__ == "__main__":
    from workloads.__main__ import program

    sys.exit(program())
sys.modules[__name__] = workloads
