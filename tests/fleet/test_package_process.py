"""What one package may do to the process that works on it, and what that costs: a line."""

from __future__ import annotations

import os
import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sframegen.fleet import package_process
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_process import PackageProcess
from sframegen.fleet.result_rows import RowOutcome
from sframegen.fleet.run_options import Mode, RunOptions
from sframegen.fleet.sources.items import Item
from tests.fleet.runs import write_tar

pytestmark = pytest.mark.full

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
