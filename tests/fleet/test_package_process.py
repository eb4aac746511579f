"""What one package may do to the process that works on it, and what that costs: a line."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_process import LimitError, PackageProcess
from sframegen.fleet.result_rows import Outcome
from sframegen.fleet.run_options import Mode, RunOptions
from sframegen.fleet.sources.items import Item, ItemKind
from tests.fleet.made_packages import programs, served, write_tar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.peers import Compiler

pytestmark = [pytest.mark.once, pytest.mark.full]

MANY_SECONDS = 600.0


@pytest.fixture
def process(tmp_path: Path) -> Iterator[PackageProcess]:
    pytest.importorskip("fsspec")
    (tmp_path / "temporary").mkdir()
    with OutputDirectory.opened(str(tmp_path / "out"), make=True) as output:
        one = PackageProcess(str(tmp_path / "temporary"), output)
        yield one
        one.end()
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.fixture
def package(tmp_path: Path, compile_c: Compiler) -> Item:
    (program,) = programs(compile_c, 1)
    return Item("p.tar", str(write_tar(tmp_path / "pool/p.tar", {"usr/bin/p": program, "README": b"x"})))


def pid(process: PackageProcess) -> int:
    assert process.process is not None
    return process.process.pid


def test_one_process_works_on_many_packages(process: PackageProcess, package: Item) -> None:
    first = process.work_on(package, RunOptions())
    number = pid(process)
    again = process.work_on(package, RunOptions())
    other = process.work_on(package, RunOptions(Mode.UNLOADED))
    assert pid(process) == number
    assert (first.outcome, first.is_new, again) == (Outcome.ADDED, True, first._replace(is_new=False))
    assert other.is_new
    result = process.output.read_result(first.key)
    assert [(row.path, row.outcome, row.language, row.machine != "") for row in result.files] == [
        ("usr/bin/p", Outcome.ADDED, "C", True)
    ]
    assert result.package.peak_memory_bytes > 0


def test_a_process_that_is_killed_costs_its_package(process: PackageProcess, package: Item, tmp_path: Path) -> None:

    def kill(path: str, _: int) -> None:
        if path == "/bad.tar":
            os.kill(pid(process), signal.SIGKILL)

    with served(tmp_path / "pool", kill) as (url, requests):
        with pytest.raises(LimitError, match=r"killed by signal 9"):
            process.work_on(Item("bad.tar", f"{url}/bad.tar"), RunOptions())
        assert process.work_on(package._replace(place=f"{url}/p.tar"), RunOptions()).outcome is Outcome.ADDED
        # One that has worked on others may have died of them: a new one tries again.
        with pytest.raises(LimitError, match=r"killed by signal 9"):
            process.work_on(Item("bad.tar", f"{url}/bad.tar"), RunOptions())
    assert requests == ["/bad.tar", "/p.tar", "/bad.tar", "/bad.tar"]


@pytest.mark.sampled
def test_a_package_that_hangs_ends_at_the_time_limit(process: PackageProcess, package: Item, tmp_path: Path) -> None:
    process.work_on(package, RunOptions())
    number = pid(process)
    read, write = os.pipe()  # nothing is ever written

    def wait(*_: object) -> None:
        os.read(read, 1)

    with served(tmp_path / "pool", wait) as (url, _):
        with pytest.raises(LimitError, match="took longer than 1 second"):
            process.work_on(Item("slow.tar", f"{url}/p.tar"), RunOptions(timeout=1.0))
        os.close(write)  # lets the server's thread go
    os.close(read)
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
    assert process.work_on(package, RunOptions(Mode.REWRITE)).is_new


def test_a_package_that_needs_more_memory_than_the_limit(process: PackageProcess, package: Item, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.mkdir()
    program = Path(package.place).read_bytes()[512:]
    (large / "program").write_bytes(program)
    os.truncate(large / "program", 1 << 30)  # mapped as a whole, and mostly a hole
    options = RunOptions(memory=1 << 30)
    with pytest.raises(LimitError, match="needs more memory than 1 GiB"):
        process.work_on(Item("large", str(large), ItemKind.LOOSE), options)
    assert process.work_on(package, options).outcome is Outcome.ADDED


def test_the_process_ends_with_its_worker(process: PackageProcess, package: Item, tmp_path: Path) -> None:
    process.work_on(package, RunOptions())
    assert process.process is not None
    process.pipe.close()  # as the system does for a worker that dies
    assert process.process.wait(MANY_SECONDS) == -signal.SIGKILL
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_package_whose_content_is_not_the_one_of_its_index(process: PackageProcess, package: Item) -> None:
    with pytest.raises(OSError, match="another SHA256 than its index gives"):
        process.work_on(package._replace(sha256="0" * 64), RunOptions())
