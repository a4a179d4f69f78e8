"""Threads that decode at once: they wait for each other, and the process does not end."""

from __future__ import annotations

import subprocess
import sys
import threading

from gputui.base.decoding import made_once
from tests.conftest import DATA

THREADS = 4
STARTS = 50

PROGRAM = """
import os, sys, threading
from gputui.playback.index import Checkpoint
from gputui.state import Session
from gputui.store.journal import reader

recording, threads, starts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lines = open(recording, "rb").read().splitlines()[:40]

def decode_all():
    barrier.wait()
    for line in lines:
        reader.decode(line)
    Checkpoint(Session()).session()

for _ in range(starts):  # nothing is decoded before: to msgspec each child is a start of its own
    child = os.fork()
    if child == 0:
        sys.setswitchinterval(1e-6)
        barrier = threading.Barrier(threads)
        running = [threading.Thread(target=decode_all) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_threads_that_meet_a_type_first_at_the_same_time_do_not_end_the_process() -> None:
    recording = str(DATA / "h200-inference.gputui")
    command = [sys.executable, "-c", PROGRAM, recording, str(THREADS), str(STARTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("0\n" * STARTS, "")


def test_what_is_made_once_is_the_same_for_all_threads() -> None:
    barrier = threading.Barrier(THREADS)
    begun = threading.Event()
    made: list[type] = []

    @made_once
    def make(name: str) -> type:
        begun.wait()
        return type(name, (), {})

    def get() -> None:
        barrier.wait()
        made.append(make("Row"))

    threads = [threading.Thread(target=get) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    begun.set()
    for thread in threads:
        thread.join()
    assert len(made) == THREADS
    assert len(set(made)) == 1
