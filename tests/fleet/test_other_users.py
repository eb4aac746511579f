"""Root runs a fleet where another user can change things: that user gets nothing of root's, and nothing of root's is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_work import work_on
from sframegen.fleet.run_options import Mode, RunOptions
from sframegen.fleet.sources.items import Item, ItemKind
from sframegen.fleet.sources.listing import items_of_one
from tests.fleet.made_packages import programs, served, write_tar
from tests.fleet.runs import processes_below, sockets_of
from tests.packages.images.image_inputs import entry, one_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.peers import Compiler

pytestmark = [pytest.mark.once, pytest.mark.full]

NOBODY = 65534
REWRITE = RunOptions(Mode.REWRITE)


@pytest.fixture(autouse=True)
def _second_user() -> None:
    pytest.importorskip("fsspec")
    if os.geteuid() != 0:
        pytest.skip("needs a second user")


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def program(compile_c: Compiler) -> bytes:
    return programs(compile_c, 1)[0]


def give(*paths: Path) -> None:
    for path in paths:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def items(directory: Path, program: bytes) -> list[Item]:
    """A package of each kind."""
    one_image(entry("usr/bin/it", program, mode=0o755)).write(directory / "pool/image")
    (directory / "pool/loose").mkdir()
    (directory / "pool/loose/it").write_bytes(program)
    write_tar(directory / "pool/it.tar", {"usr/bin/it": program})
    found = list(items_of_one(str(directory / "pool")))
    assert {item.kind for item in found} == set(ItemKind)
    return found


@pytest.mark.parametrize("where", ["", "packages", "packages/image", "packages/loose"])
def test_an_output_directory_of_another_user(directory: Path, program: bytes, where: str) -> None:
    (directory / "out" / where).mkdir(parents=True)
    (directory / "out" / where / "keep").write_text("theirs")
    give(directory / "out" / where)
    refused = 0
    for item in items(directory, program):
        try:
            with OutputDirectory.opened(str(directory / "out")) as output:
                work_on(item, REWRITE, output)
        except PermissionError as error:
            assert "belongs to another user" in str(error)  # noqa: PT017 - some may be written
            refused += 1
    assert refused == (1 if "/" in where else len(ItemKind))
    assert (directory / "out" / where / "keep").read_text() == "theirs"


@pytest.mark.parametrize("mode", [Mode.REWRITE, Mode.DETACHED, Mode.SURVEY])
def test_links_to_a_directory_of_root(directory: Path, program: bytes, mode: Mode) -> None:
    """Whatever directory below the output is one, nothing goes through it."""
    safe = directory / "safe"
    safe.mkdir()
    for name in ("packages", "sections", "results", "seen"):
        out = directory / f"out-{name}"
        out.mkdir()
        (out / name).symlink_to(safe)
        give(out / name)
        with OutputDirectory.opened(str(out)) as output:
            for item in items(directory, program) if not (directory / "pool").exists() else items_of_one(str(directory / "pool")):
                assert not isinstance(item, Exception)
                try:
                    work_on(item, RunOptions(mode), output)
                except OSError as error:
                    assert "a symbolic link" in str(error)  # noqa: PT017 - not every mode writes there
        assert not list(safe.iterdir())


@pytest.mark.parametrize("kind", ItemKind)
@pytest.mark.parametrize("above", [False, True])
def test_a_link_in_the_place_of_a_source(directory: Path, program: bytes, kind: ItemKind, above: bool) -> None:
    """What comes between listing and reading: a link of the other user to what only root may read."""
    pool = directory / "pool"
    (item,) = (item for item in items(directory, program) if item.kind is kind)
    secret = directory / "secret"
    place = pool if above else pool / item.name
    place.rename(secret)
    secret.chmod(0o700)
    place.symlink_to(secret)
    give(place)
    with OutputDirectory.opened(str(directory / "out"), make=True) as output:
        with pytest.raises(OSError, match="a symbolic link that another user controls"):
            work_on(item, REWRITE, output)
        assert not list((directory / "out").rglob("*.json"))
    if kind is ItemKind.FILE and not above:
        with pytest.raises(OSError, match="a symbolic link that another user controls"):
            list(items_of_one(str(place)))


def test_a_report_reads_no_links(directory: Path) -> None:
    pytest.importorskip("pyarrow")
    from sframegen.fleet.report.make_report import make_report  # noqa: PLC0415 - needs the extra

    (directory / "run").mkdir()
    for name in ("packages.parquet", "files.parquet", "run.json"):
        (directory / "secret").write_text(json.dumps({"sframegen": "secret"}))
        (directory / "run" / name).symlink_to(directory / "secret")
    with pytest.raises(OSError, match="a symbolic link"):
        make_report(directory / "run")
    give(directory / "run")
    with pytest.raises(PermissionError, match="belongs to another user"):
        make_report(directory / "run")
    assert len(list((directory / "run").iterdir())) == 3


def test_nothing_listens_during_a_run_on_one_machine(directory: Path, program: bytes) -> None:
    """Another user looks for something that root's processes listen to: who reaches it could have them do things."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("aiohttp")
    running: list[subprocess.Popen[bytes]] = []
    seen: list[tuple[int, set[str], set[str]]] = []

    def look(*_: object) -> None:
        processes = [running[0].pid, *processes_below(running[0].pid)]
        seen.append((len(processes), sockets_of(processes), listening()))

    write_tar(directory / "pool/it.tar", {"usr/bin/it": program})
    with served(directory / "pool", look) as (url, _):
        (directory / "list").write_text("".join(f"{url}/it.tar?{number}\n" for number in range(4)))
        where = [str(directory / "list"), "-o", str(directory / "out"), "-j", "2"]
        command = [sys.executable, "-m", "sframegen", "fleet", "run", *where]
        with subprocess.Popen(command) as process:
            running.append(process)
        assert process.returncode == 0
    for processes, sockets, listen in seen:
        assert processes >= 2  # the command, and those that work on packages
        assert len(sockets) >= 3  # of them: a pipe, and a connection that fetches
        assert listen  # that of the server of this test, for one
        assert not sockets & listen
    assert len(seen) == 4


def listening() -> set[str]:
    """The numbers of the sockets that listen, as another user sees them."""
    tables = [path for path in map(Path, ("/proc/net/tcp", "/proc/net/tcp6", "/proc/net/unix")) if path.exists()]
    nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    text = subprocess.run(["cat", *tables], check=True, stdout=subprocess.PIPE, text=True, **nobody).stdout
    found = set()
    for line in text.splitlines():
        match line.split():
            case [_, _, _, "0A", _, _, _, _, _, inode, *_]:  # of TCP: LISTEN
                found.add(inode)
            case [_, _, _, flags, _, _, inode, *_] if flags == "00010000":  # of Unix: __SO_ACCEPTCON
                found.add(inode)
    return found
