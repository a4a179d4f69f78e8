"""A session of two GPUs is read back with its links between them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gputui.model.events import GpuFacts
from gputui.store.journal.reader import JournalReader
from tests.events_for_tests import header


def test_links_between_gpus_are_read_beside_text_beyond_ascii(tmp_path: Path) -> None:
    facts = [
        GpuFacts(index=i, uuid=f"GPU-{i}", name="2 × NVIDIA Test", topology={1 - i: "NV18"})
        for i in range(2)
    ]
    path = tmp_path / "two.gputui"
    path.write_bytes(msgspec.json.encode(header(*facts)) + b"\n")
    (found,) = JournalReader.open(path)
    assert found == header(*facts)
