"""Root runs a fleet where another user can change things: that user gets nothing of root's, and nothing of root's is changed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_work import work_on
from sframegen.fleet.run_options import Mode, RunOptions
from sframegen.fleet.sources.items import Item
from sframegen.fleet.sources.listing import list_source
from tests.fleet.runs import processes_below, run, served, sockets_of, write_tar

pytestmark = pytest.mark.full

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


def give(*paths: Path) -> None:
    for path in paths:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@pytest.fixture
def item(directory: Path, program: bytes) -> Item:
    write_tar(directory / "pool/it.tar", {"usr/bin/it": program})
    (found,) = list_source(str(directory / "pool"))
    return found


@pytest.mark.parametrize("where", ["", "packages"])
def test_an_output_directory_of_another_user(directory: Path, item: Item, where: str) -> None:
    (directory / "out" / where).mkdir(parents=True)
    (directory / "out" / where / "keep").write_text("theirs")
    give(directory / "out" / where)
    with pytest.raises(PermissionError, match="belongs to another user"), OutputDirectory.opened(str(directory / "out")) as output:
        work_on(item, REWRITE, output)
    assert (directory / "out" / where / "keep").read_text() == "theirs"


@pytest.mark.parametrize("mode", [Mode.REWRITE, Mode.SURVEY])
def test_links_to_a_directory_of_root(directory: Path, item: Item, mode: Mode) -> None:
    safe = directory / "safe"
    safe.mkdir()
    for name in ("packages", "results", "seen"):
        out = directory / f"out-{name}"
        out.mkdir()
        (out / name).symlink_to(safe)
        give(out / name)
        with OutputDirectory.opened(str(out)) as output:
            try:
                work_on(item, RunOptions(mode), output)
            except OSError as error:
                assert "a symbolic link" in str(error)  # noqa: PT017 - not every mode writes there
        assert not list(safe.iterdir())


@pytest.mark.parametrize("above", [False, True])
def test_a_link_in_the_place_of_a_source(directory: Path, item: Item, above: bool) -> None:
    """What comes between listing and reading: a link of the other user to what only root may read."""
    place = Path(item.path_or_url).parent if above else Path(item.path_or_url)
    place.rename(directory / "secret")
    (directory / "secret").chmod(0o700)
    place.symlink_to(directory / "secret")
    give(place)
    with OutputDirectory.opened(str(directory / "out"), make=True) as output:
        with pytest.raises(OSError, match="a symbolic link that another user controls"):
            work_on(item, REWRITE, output)
        assert not list((directory / "out").rglob("*.json"))
    if not above:
        with pytest.raises(OSError, match="a symbolic link that another user controls"):
            list(list_source(str(place)))


def test_no_umask_lets_others_write_results_or_hold_the_lock(directory: Path, item: Item) -> None:
    before = os.umask(0)
    try:
        (directory / "out").mkdir(0o755)
        (directory / "out/lock").touch(0o644)  # of an earlier version
        run(item.path_or_url, directory / "out", REWRITE)
    finally:
        os.umask(before)
    made = [path for path in (directory / "out").rglob("*") if path.parent.name != "packages"]
    assert [path.name for path in made if path.stat().st_mode & 0o022] == []
    assert (directory / "out/lock").stat().st_mode & 0o077 == 0


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
    tables = [path for path in map(Path, ("/proc/net/tcp", "/proc/net/tcp6", "/proc/net/unix")) if path.exists()]
    text = subprocess.check_output(["cat", *tables], text=True, user=NOBODY, group=NOBODY, extra_groups=[])
    found = set()
    for line in text.splitlines():
        match line.split():
            case [_, _, _, "0A", _, _, _, _, _, inode, *_]:  # of TCP: LISTEN
                found.add(inode)
            case [_, _, _, flags, _, _, inode, *_] if flags == "00010000":  # of Unix: __SO_ACCEPTCON
                found.add(inode)
    return found
