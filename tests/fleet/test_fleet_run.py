from __future__ import annotations

import errno
import gc
import io
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from sframegen import FormatError, api
from sframegen.cli.fleet import command
from sframegen.fleet import package_process
from sframegen.fleet.collecting import ParquetTable
from sframegen.fleet.fleet_run import FleetRun
from sframegen.fleet.one_machine import OneMachine
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_process import PackageProcess
from sframegen.fleet.package_work import work_on
from sframegen.fleet.result_rows import Finished, PackageRow, RowOutcome
from sframegen.fleet.run_options import Mode, RunOptions
from sframegen.fleet.sources.fetching import identify_content
from sframegen.fleet.sources.items import Item
from tests import ROOT
from tests.fleet.runs import (
    ONE_PROCESS,
    PACKAGES,
    Watched,
    list_of,
    processes_below,
    rows,
    run,
    served,
    wait_for_the_end,
    write_tar,
)

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.full


def written(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in out.glob("results/*/*.json")}


def test_tables_are_the_results_in_the_order_of_the_packages(pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fleet, watched = run(pool, out, engine=partial(OneMachine, processes=2))
    assert [row["package"] for row in rows(out, "packages")] == [f"{number:02}.tar" for number in range(PACKAGES)]
    assert [row["path"] for row in rows(out, "files")][:3] == ["usr/bin/0-0", "usr/bin/1-0", "usr/bin/1-1"]
    with OutputDirectory.opened(str(out)) as output:
        results = [output.read_result(key) for key in output.read_keys()]
    from pyarrow import parquet  # noqa: PLC0415

    files = parquet.read_table(out / "files.parquet").to_pylist()
    assert [row | {"left_out": dict(row["left_out"]), "no_cfi": dict(row["no_cfi"])} for row in files] == [
        asdict(row) for result in results for row in result.files
    ]
    assert json.loads((out / "packages.json").read_text()) == [asdict(result.package) for result in results]
    summary = json.loads((out / "summary.json").read_text())
    schema = json.loads((ROOT / "docs/json-schema.json").read_text())
    assert list(summary) == list(schema["$defs"]["fleet-run"]["properties"])
    assert summary["packages"] == {"added": PACKAGES}
    assert summary["file_sums"]["code_bytes"] == sum(row.code_bytes for result in results for row in result.files)
    assert (fleet.done, watched.findings, watched.steps[-1]) == (PACKAGES, [], (PACKAGES, PACKAGES))
    assert json.loads((out / "run.json").read_text())["ended"]


def test_a_survey_predicts_what_rewriting_writes(pool: Path, tmp_path: Path, some_programs: list[bytes]) -> None:
    run(pool, tmp_path / "survey")
    run(pool, tmp_path / "rewrite", RunOptions(Mode.REWRITE))
    assert rows(tmp_path / "survey", "files") == rows(tmp_path / "rewrite", "files")
    assert not (tmp_path / "survey/packages").exists()
    new = tmp_path / "rewrite/packages/02.tar"
    assert new.stat().st_size == rows(tmp_path / "rewrite", "packages")[2]["new_package_bytes"]
    shutil.unpack_archive(new, tmp_path / "unpacked", filter="data")
    program = tmp_path / "unpacked/usr/bin/2-1"
    assert subprocess.run([program], check=False).returncode == 1
    (tmp_path / "given").write_bytes(some_programs[1])
    api.add_section(tmp_path / "given", replace=True)
    assert program.read_bytes() == (tmp_path / "given").read_bytes()


def test_nothing_that_is_done_is_done_again(pool: Path, tmp_path: Path, some_programs: list[bytes]) -> None:
    out = tmp_path / "out"
    run(pool, out)
    first, table = written(out), rows(out, "files")
    fleet, _ = run(pool, out)
    assert (written(out), rows(out, "files"), fleet.earlier_packages) == (first, table, PACKAGES)

    os.utime(pool / "00.tar")  # the same content
    write_tar(pool / "01.tar", {"usr/bin/new": some_programs[2]})
    (pool / "02.tar").unlink()
    fleet, _ = run(pool, out)
    again = written(out)
    assert {name: again[name] for name in first} == first
    assert len(again) == len(first) + 1
    assert fleet.earlier_packages == PACKAGES - 2
    assert [row["package"] for row in rows(out, "packages")] == ["00.tar", "01.tar", *(f"{n:02}.tar" for n in range(3, PACKAGES))]

    fleet, _ = run(pool, out, RunOptions(Mode.REWRITE))
    assert fleet.earlier_packages == 0
    (out / "packages/05.tar").unlink()
    fleet, _ = run(pool, out, RunOptions(Mode.REWRITE))
    assert fleet.earlier_packages == PACKAGES - 2
    assert (out / "packages/05.tar").exists()


@pytest.mark.parametrize("damage", [b"", b"{", b'{"package": {}, "files": []}', b"[" * 100_000])
def test_a_damaged_result_is_made_again(pool: Path, tmp_path: Path, damage: bytes) -> None:
    out = tmp_path / "out"
    run(pool, out)
    table = rows(out, "files")
    damaged = sorted(out.glob("results/*/*.json"))[3]
    damaged.write_bytes(damage)
    for path in out.glob("seen/*/*.json"):
        path.write_bytes(damage)
        break
    fleet, _ = run(pool, out)
    assert rows(out, "files") == table
    assert PACKAGES - 2 <= fleet.earlier_packages <= PACKAGES - 1


@pytest.mark.parametrize("value", [b'"3"', b"true", b"%d" % (1 << 63), b"[]"])
def test_a_result_with_a_value_of_no_column_is_made_again(pool: Path, tmp_path: Path, value: bytes) -> None:
    run(pool, tmp_path)
    table = rows(tmp_path, "packages")
    result, *_ = tmp_path.glob("results/*/*.json")
    result.write_bytes(re.sub(rb'(?<="entries":)\d+', value, result.read_bytes()))
    fleet, _ = run(pool, tmp_path)
    assert fleet.earlier_packages == PACKAGES - 1
    assert rows(tmp_path, "packages") == table


def test_a_result_that_is_gone_is_named(pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutputDirectory, "read_keys", lambda _: iter(["ab" * 32]))
    with pytest.raises(FormatError, match=r"/results/ab/(ab){32}\.json: no whole result of a package: No such file or directory$"):
        run(pool, tmp_path)


def test_an_empty_name_of_a_directory(pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, ["run", str(pool), "-o", ""])
    assert (done.exit_code, list(tmp_path.glob("*.parquet"))) == (2, [])
    assert done.stderr.endswith("Invalid value for '-o' / '--output': an empty name\n")


def test_a_failed_package_is_tried_again(pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with served(pool) as (url, requests):
        listing = list_of(url, tmp_path)
        (pool / "03.tar").rename(tmp_path / "away")
        _, watched = run(listing, out)
        (line,) = watched.findings
        assert "/03.tar: failed: cannot be fetched: " in line
        assert len(rows(out, "packages")) == PACKAGES
        (tmp_path / "away").rename(pool / "03.tar")
        requests.clear()
        fleet, watched = run(listing, out)
    assert (watched.findings, requests, fleet.earlier_packages) == ([], ["/03.tar"], PACKAGES - 1)
    assert {row["outcome"] for row in rows(out, "packages")} == {"added"}
    assert len(written(out)) == PACKAGES  # that of the failure is gone


def test_hostile_packages_cost_a_line_each(pool: Path, tmp_path: Path) -> None:
    (pool / "03.tar").write_bytes((pool / "03.tar").read_bytes()[:2000])
    write_tar(pool / "04.tar", {"../../outside": b"x"})
    (pool / "05.tar").write_bytes(b"no archive" * 1000)
    listing = tmp_path / "list"
    names = [f"{pool}/{number:02}.tar" for number in range(PACKAGES)]
    listing.write_text("\n".join([*names, str(pool), f"{pool}/nothing.tar", "none://host/x.tar", "http://[", "/dev/zero"]))
    _, watched = run(listing, tmp_path / "out", RunOptions(Mode.REWRITE))
    table = {row["package"].rpartition("/")[2]: row for row in rows(tmp_path / "out", "packages")}
    refused = {name for name, row in table.items() if row["outcome"] == "refused"}
    failed = {name for name, row in table.items() if row["outcome"] == "failed"}
    assert refused | failed == {"03.tar", "04.tar", "05.tar", "pool", "nothing.tar", "x.tar", "[", "zero"} & set(table)
    assert refused >= {"03.tar", "04.tar", "05.tar", "zero"}
    assert len(watched.findings) == len(refused | failed)
    assert all("\n" not in line and "Traceback" not in line for line in watched.findings)
    assert sum(row["outcome"] == "added" for row in table.values()) == PACKAGES - 3
    assert not (tmp_path / "outside").exists()


@pytest.mark.sampled
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_continues(pool: Path, tmp_path: Path, number: signal.Signals) -> None:
    running: list[subprocess.Popen[str]] = []
    others: list[int] = []

    def interrupt(path: str, _: int) -> None:
        if path == "/07.tar" and running[0].poll() is None:
            for pid in processes_below(running[0].pid):
                others.append(os.pidfd_open(pid))
                if number == signal.SIGKILL:
                    os.kill(pid, signal.SIGSTOP)
            running[0].send_signal(number)
            running[0].wait()

    (tmp_path / "temporary").mkdir()
    with served(pool, interrupt) as (url, requests):
        program = [sys.executable, "-m", "sframegen", "fleet", "run"]
        command = [*program, str(list_of(url, tmp_path)), "--output", str(tmp_path / "out"), "--jobs", "1"]
        environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            running.append(process)
            _, errors = process.communicate()
        if number == signal.SIGKILL:
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == 128 + number
            (line,) = errors.splitlines()
            assert line.endswith(f"packages of {PACKAGES} done; run the same command for the others")
        assert len(others) == 1
        wait_for_the_end(others)  # it sees that its parent has ended
        assert list((tmp_path / "temporary").iterdir()) == []
        done = {path.name for path in (tmp_path / "out/results").rglob("*.json")}
        requests.clear()
        fleet, watched = run(tmp_path / "list", tmp_path / "out")
        assert (fleet.earlier_packages, watched.findings) == (len(done), [])
        assert len(requests) == PACKAGES - len(done)
        run(tmp_path / "list", tmp_path / "whole")
    for name in ("files", "packages"):
        assert rows(tmp_path / "out", name) == rows(tmp_path / "whole", name)


def test_what_ends_or_holds_a_process_costs_its_package(pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began: dict[str, PackageProcess] = {}
    begin = PackageProcess.begin

    def noted(process: PackageProcess, item: Item) -> Finished | None:
        began[item.path_or_url.rpartition("/")[2]] = process
        return begin(process, item)

    def misbehave(path: str, _: int) -> None:
        process = began[path[1:]].process
        assert process is not None
        if path == "/03.tar":
            process.send_signal(signal.SIGSEGV)
        if path == "/05.tar":
            began[path[1:]].deadline = 0.0  # the other process wakes the engine
            process.wait()

    monkeypatch.setattr(PackageProcess, "begin", noted)
    with served(pool, misbehave) as (url, requests):
        _, watched = run(list_of(url, tmp_path), tmp_path / "out", engine=partial(OneMachine, processes=2))
    assert [line.partition("/")[2] for line in sorted(watched.findings)] == [
        "03.tar: failed: the worker process was killed by signal 11 (Segmentation fault)",
        "05.tar: failed: took longer than 900 seconds",
    ]
    assert requests.count("/03.tar") == 2  # the first process could have been worn out by others
    assert sum(row["outcome"] == "added" for row in rows(tmp_path / "out", "packages")) == PACKAGES - 2
    assert all(process.process is None for process in began.values())


def test_processes_that_cannot_be_started_are_lines(pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PackageProcess, "_start_process", Mock(side_effect=BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
    )
    _, watched = run(pool, tmp_path / "out")
    assert watched.findings == [f"{n:02}.tar: failed: Resource temporarily unavailable" for n in range(PACKAGES)]


def test_results_depend_on_all_keywords_of_add_section() -> None:
    forced = RunOptions(add_keywords={"force": True})
    assert RunOptions.from_json(json.loads(json.dumps(forced.to_json()))) == forced
    assert forced.make_key("x") != RunOptions(add_keywords={"force": False}).make_key("x") == RunOptions().make_key("x")
    given = {"version": 3, "optimize": "fast", "min_kernel": None, "synthesize": False}  # as the command line gives them
    assert RunOptions(add_keywords=given).make_key("x") == RunOptions().make_key("x")
    assert RunOptions(add_keywords={"version": 2}).make_key("x") != RunOptions().make_key("x")


def test_a_mistyped_source_leaves_the_tables(pool: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        OutputDirectory.opened(str(out), make=True) as output,
        output.locked(),
        pytest.raises(BlockingIOError, match="another run writes there"),
    ):
        run(pool, out)
    assert not (out / "run.json").exists()
    run(pool, out)
    before = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
    watched = Watched()
    for sources in (["poool"], [str(pool), "poool"]):
        assert FleetRun(sources, str(out), RunOptions(), watched.finding, None).run(ONE_PROCESS) is None
    assert watched.findings == ["poool: No such file or directory"] * 2
    assert {path: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_another_content_than_the_client_saw_is_not_converted(pool: Path, tmp_path: Path) -> None:
    item, options = Item("x", str(pool / "01.tar")), RunOptions(Mode.REWRITE)
    here = identify_content(item)
    with OutputDirectory.opened(str(tmp_path / "out"), make=True) as output:
        assert work_on(item._replace(size_and_mtime=here.size_and_mtime), options, output).outcome is RowOutcome.ADDED
        os.utime(item.path_or_url, ns=(0, 0))
        with pytest.raises(OSError, match="its size or time differs from where the run was started"):
            work_on(item._replace(size_and_mtime=here.size_and_mtime), options, output)
        (pool / "01.tar").unlink()
        with pytest.raises(OSError, match="all workers need the same sources"):
            work_on(item._replace(size_and_mtime=here.size_and_mtime), options, output)


def test_the_outcomes_of_a_package(tmp_path: Path, some_programs: list[bytes]) -> None:
    write_tar(tmp_path / "pool/none.tar", {"README": b"x"})
    (tmp_path / "given").write_bytes(some_programs[0])
    api.add_section(tmp_path / "given")
    write_tar(tmp_path / "pool/same.tar", {"p": (tmp_path / "given").read_bytes()})
    damaged = some_programs[0][:-100]  # the section header table is at the end
    write_tar(tmp_path / "pool/small.tar", {"p": damaged})
    run(tmp_path / "pool", tmp_path / "out", RunOptions(Mode.REWRITE))
    table = {row["package"]: row for row in rows(tmp_path / "out", "packages")}
    assert {name: row["outcome"] for name, row in table.items()} == {
        "none.tar": RowOutcome.NOTHING,
        "same.tar": RowOutcome.UNCHANGED,
        "small.tar": RowOutcome.NOTHING,
    }
    files = {row["package"]: row for row in rows(tmp_path / "out", "files")}
    assert files["small.tar"]["outcome"] == RowOutcome.REFUSED
    assert files["small.tar"]["reason"]
    assert list((tmp_path / "out/packages").iterdir()) == []


def test_a_full_disk_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow's writer would try again, and print what it cannot raise."""

    class Full(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if self.tell() > 100:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with pytest.raises(OSError, match="No space left"), ParquetTable(PackageRow, Full()) as table:
        table.add(PackageRow("x", "x"))
    del table
    gc.collect()
    assert said == []


# -- what one package may do to the process that works on it, and what that costs: a line

LARGE = 1 << 29  # bytes
SAYS = "import signal, socket, sys; pipe = socket.socket(fileno=int(sys.argv[1])); pipe.recv(1); pipe.send({!r}); signal.pause()"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[PackageProcess]:
    pytest.importorskip("fsspec")
    (tmp_path / "temporary").mkdir()
    with OutputDirectory.opened(str(tmp_path / "out"), make=True) as output:
        one = PackageProcess(str(tmp_path / "temporary"), output, RunOptions())
        yield one
        one.end()
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.fixture
def package(tmp_path: Path, program: bytes) -> Item:
    return Item("p.tar", str(write_tar(tmp_path / "pool/p.tar", {"usr/bin/p": program, "README": b"x"})))


def failure(process: PackageProcess, item: Item) -> str:
    finished = process.work_on(item)
    assert finished.outcome is RowOutcome.FAILED
    return finished.reason


def pid(process: PackageProcess) -> int:
    assert process.process is not None
    return process.process.pid


def test_one_process_works_on_many_packages(process: PackageProcess, package: Item) -> None:
    first = process.work_on(package)
    number = pid(process)
    again = process.work_on(package)
    process.options = RunOptions(Mode.REWRITE)
    other = process.work_on(package)
    assert pid(process) == number
    assert (first.outcome, first.is_new, again) == (RowOutcome.ADDED, True, first._replace(is_new=False))
    assert other.is_new
    result = process.output.read_result(first.key)
    assert [(row.path, row.outcome, row.language, row.machine != "") for row in result.files] == [
        ("usr/bin/p", RowOutcome.ADDED, "C", True)
    ]
    assert result.package.peak_memory_bytes > 0


def test_a_package_whose_content_is_not_the_one_of_its_index(process: PackageProcess, package: Item) -> None:
    assert "its SHA256 differs from the one in its index" in failure(process, package._replace(sha256="0" * 64))


def test_what_is_no_answer_costs_its_package(process: PackageProcess, package: Item, monkeypatch: pytest.MonkeyPatch) -> None:
    values = (None, (1,), (1, 2, 3), *(("finished", one) for one in (1, ["x", "added", "", True], ["0" * 64, "done", "", True])))
    for answer in (b"garbage", b"\0", b"cnone\nnone\n.", b"cos\nnone\n.", *map(pickle.dumps, values)):
        monkeypatch.setattr(package_process, "PROGRAM", SAYS.format(answer))
        assert failure(process, package).startswith("its process returned no result: "), answer
        process.end()


def test_a_package_that_needs_more_memory_than_the_limit(process: PackageProcess, package: Item, tmp_path: Path) -> None:
    large = tmp_path / "large.tar"
    with tarfile.open(large, "w") as archive, Path(package.path_or_url).open("rb") as small:
        member = tarfile.TarInfo("program")
        member.size = LARGE  # mapped as a whole, and mostly a hole
        archive.addfile(member)
        small.seek(512)
        assert archive.fileobj is not None
        archive.fileobj.write(small.read())
    os.truncate(large, LARGE + 10240)
    process.options = RunOptions(memory=LARGE)
    assert failure(process, Item("large.tar", str(large))) == "needs more memory than 512 MiB"
    assert process.work_on(package).outcome is RowOutcome.ADDED
