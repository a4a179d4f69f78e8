"""A job from a recording of each node: ranks side by side, missing and foreign ones named."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from gputui.attribute.job import job_in
from gputui.cli.dispatch import run as main
from gputui.cli.output_name import expanded
from gputui.cli.values import UsageError
from gputui.model.events import JobFacts
from gputui.store.journal import JournalWriter
from tests.events_for_tests import header
from tests.report.test_ranks import job_events, rank

RANKS = [rank() for _ in range(4)]
RANKS[3] = rank(wait=40_000_000)


def record(
    folder: Path, host: str, here: Iterable[int], job: str | None = "77", size: int | None = 4
) -> None:
    made = header()
    assert made.host is not None
    named = msgspec.structs.replace(made, host=msgspec.structs.replace(made.host, hostname=host))
    writer = JournalWriter(folder / f"{host}.gputui")
    writer.write([named, *job_events(RANKS, here=here, facts=JobFacts(id=job, world_size=size))])
    writer.close()


def summed_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["summary", str(folder), "--format", "json"]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_the_late_rank_of_another_node_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, "node-a", (0, 1))
    record(tmp_path, "node-b", (2, 3))
    document = summed_up(tmp_path, capsys)
    assert (document["job"], document["world_size"], document["missing_ranks"]) == ("77", 4, [])
    assert document["hosts"] == ["node-a", "node-b"]
    late = document["late"]
    assert isinstance(late, dict)
    assert (late["ranks"], late["causes"]) == ([3], ["host"])
    assert late["evidence"][0].startswith("Rank 3 (node-b, GPU 1): its GPU waits for its CPU")
    ranks = document["ranks"]
    assert isinstance(ranks, list)
    assert [(row["rank"], row["host"]) for row in ranks] == [
        (3, "node-b"),
        (0, "node-a"),
        (1, "node-a"),
        (2, "node-b"),
    ]
    assert main(["summary", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("job 77 · 2 hosts · 4 of 4 ranks\n\n  RANK 3 IS LATE")


def test_missing_ranks_and_foreign_recordings_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, "node-a", (0, 1), size=5)
    record(tmp_path, "node-b", (3,), size=5)
    record(tmp_path, "node-c", (2,), job="78", size=5)
    record(tmp_path, "node-d", (1,), size=5)
    record(tmp_path, "node-e", ())
    document = summed_up(tmp_path, capsys)
    assert document["missing_ranks"] == [2, 4]
    assert document["left_out"] == [
        {"name": "node-c.gputui", "reason": "of another job: 78"},
        {"name": "node-d.gputui", "reason": "has rank 1, as node-a.gputui has"},
        {"name": "node-e.gputui", "reason": "no rank of a job in it"},
    ]
    assert main(["summary", str(tmp_path)]) == 0
    assert "missing: ranks 2, 4\n  left out: node-c.gputui" in capsys.readouterr().out


def test_a_folder_without_recordings_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", str(tmp_path)]) == 1
    assert f"{tmp_path} is not a file" in capsys.readouterr().err


def test_a_file_for_each_host_rank_and_job() -> None:
    environment = {"SLURM_JOB_ID": "12/../3", "RANK": "5"}
    assert expanded("runs/{job}/{rank}.gputui", environment) == "runs/12-..-3/5.gputui"
    assert expanded("{other}.gputui", {}) == "{other}.gputui"
    assert "{host}" not in expanded("{host}", {})
    with pytest.raises(UsageError, match=r"is not known: none of SLURM_JOB_ID"):
        expanded("{job}.gputui", {})


def test_the_job_is_read_from_the_environment() -> None:
    elastic = {"TORCHELASTIC_RUN_ID": "abc", "SLURM_JOB_ID": "7", "WORLD_SIZE": "16"}
    assert job_in({**elastic, "GROUP_RANK": "1"}) == JobFacts(id="abc", world_size=16, node_rank=1)
    static = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    assert job_in(static) == JobFacts(id="a:29500")
    assert job_in({"WORLD_SIZE": "x"}) is None
