"""Every module of the reports can be the first that a program imports."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import gputui.report

FIRST = """
import importlib, os, sys, traceback
for name in sys.argv[1:]:
    if not os.fork():
        try:
            importlib.import_module(name)
        except BaseException:
            print(name, traceback.format_exc().splitlines()[-1], flush=True)
        os._exit(0)
    os.wait()
"""


def test_any_module_can_be_the_first() -> None:
    names = [
        module.name
        for module in pkgutil.walk_packages(gputui.report.__path__, f"{gputui.report.__name__}.")
    ]
    assert len(names) > 40
    failed = subprocess.run(
        [sys.executable, "-c", FIRST, *names], capture_output=True, text=True, check=True
    ).stdout
    assert not failed
