"""A kernel's own counters beside its figures, where they were sampled."""

from __future__ import annotations

from gputui.model.events import CountedKernel, GpuCounters, KernelDefined
from tests.tui import scripted
from tests.tui.conftest import Show

COUNTERS = (
    "sm_cycles", "sm_active_percent", "tensor_active_percent", "memory_read_bytes",
    "memory_write_bytes", "occupancy_percent",
)  # fmt: skip


async def test_details_of_a_kernel_say_what_it_uses_while_it_runs(show: Show) -> None:
    batches = scripted.gpu_session(1, quiet=5)
    kernel = next(
        event
        for batch in batches
        for event in batch
        if isinstance(event, KernelDefined) and "nvjet_hsh_64x8" in event.name
    )
    values = (1.8e9, 81.0, 2.4, 2.0e12, 0.1e12, 11.7)
    errors = tuple(value / 1000 for value in values)
    counted = GpuCounters(
        time_ns=batches[-1][-1].time_ns, process=1, device=0, counters=COUNTERS, samples=4000,
        kernels=(CountedKernel(kernel.kernel, 1, 10**8, 10**8, values, errors),),
    )  # fmt: skip
    async with show(batches, (120, 50)) as shown:
        await shown.press("5", "slash", *"nvjet_hsh_64x8", "enter")
        assert "while it runs" not in shown.text
        await shown.give([[counted]])
        await shown.press("enter")
        assert "while it runs on GPU 0" in shown.text
        assert "81 %" in shown.text
        assert "2.4 %" in shown.text
