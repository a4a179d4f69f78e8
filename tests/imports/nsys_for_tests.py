"""Small nsys exports, written with the standard library, for tests that read them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

REAL = Path(__file__).parents[3] / "shared" / "data" / "nsys_power_iteration_t4.sqlite"
"""A real export, beside the project where there is one."""

PID = 500
TASK = 1 << 48 | PID << 24
EPOCH_NS = 1_750_000_000_000_000_000

COLUMNS = {
    "StringIds": "id value",
    "ThreadNames": "nameId globalTid",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs",
    "TARGET_INFO_GPU": "id name clockRate computeMajor computeMinor l2CacheSize",
    "NVTX_EVENTS": "start end eventType category color text textId globalTid domainId "
    "endGlobalTid int64Value uint64Value doubleValue int32Value uint32Value floatValue",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId "
    "returnValue",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start end deviceId contextId streamId correlationId globalPid "
    "demangledName shortName mangledName gridX gridY gridZ blockX blockY blockZ "
    "registersPerThread staticSharedMemory dynamicSharedMemory",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start end deviceId contextId streamId correlationId globalPid "
    "bytes copyKind srcKind dstKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start end deviceId contextId streamId correlationId globalPid "
    "value bytes memKind",
}  # fmt: skip


class Export:
    """Rows by table; `write` makes the file. Tables without rows are left out, as nsys does."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, object]]] = {}
        self._strings: dict[str, int] = {}
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH_NS)

    def string(self, text: str) -> int:
        """The id of a text."""
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.add("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def add(self, table: str, **row: object) -> None:
        """Append a row; columns that are left out are NULL."""
        self.rows.setdefault(table, []).append(row)

    def range(self, name: str, start: int, end: int | None, **more: object) -> None:
        """A push/pop range of the main thread."""
        row = {"start": start, "end": end, "eventType": 59, "text": name, "domainId": 0}
        self.add("NVTX_EVENTS", **{**row, "globalTid": TASK | PID, **more})

    def kernel(
        self,
        name: str,
        call: tuple[int, int],
        ran: tuple[int, int],
        number: int,
        *,
        driver: bool = False,
    ) -> None:
        """A launch on the main thread, of the runtime or the driver, and the kernel it started."""
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=call[0], end=call[1], eventClass=int(driver), globalTid=TASK | PID,
            correlationId=number, returnValue=0,
            nameId=self.string("cuLaunchKernel" if driver else "cudaLaunchKernel_v7000"),
        )  # fmt: skip
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start=ran[0], end=ran[1], deviceId=0, contextId=1, streamId=7, correlationId=number,
            globalPid=TASK, demangledName=self.string(name), shortName=self.string(name),
            mangledName=self.string(f"_Z{name}"), gridX=number, gridY=2, gridZ=1, blockX=256,
            blockY=1, blockZ=1, registersPerThread=40, staticSharedMemory=1024,
            dynamicSharedMemory=0,
        )  # fmt: skip

    def write(self, path: Path) -> Path:
        """The SQLite file."""
        connection = sqlite3.connect(path)
        for table, rows in self.rows.items():
            columns = COLUMNS[table].split()
            names = ", ".join(f'"{column}"' for column in columns)
            connection.execute(f'CREATE TABLE "{table}" ({names})')
            connection.executemany(
                f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(columns))})',
                [tuple(row.get(column) for column in columns) for row in rows],
            )
        connection.commit()
        connection.close()
        return path
