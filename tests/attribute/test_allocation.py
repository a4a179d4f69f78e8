"""Arrays that come and go take no new pages each time."""

from __future__ import annotations

import resource

import numpy as np

from gputui.attribute.arrays import keep_freed_memory


def test_arrays_of_a_batch_are_not_paged_in_again() -> None:
    """2 MB are 500 pages: 100 arrays would be 50,000 faults."""
    keep_freed_memory()

    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    np.ones(250_000)
    before = faults()
    for _ in range(100):
        np.ones(250_000)
    assert faults() - before < 5_000
