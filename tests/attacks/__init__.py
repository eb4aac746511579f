"""Another user exchanges files in a tree of theirs while root changes the tree: what root owns elsewhere has to stay unchanged."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import stat
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sframegen import FormatError, SframegenError, add_section, remove
from sframegen.cli.commands import cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = 65534
SWAP = Path(__file__).with_name("swap.c")
# Two programs for the same machine; a string says whose each is.
PROGRAM = 'const char whose[] = "{}"; int main(void) {{ return whose[0]; }}'
OWNERS = ("the victim's", "the attacker's")
MODE = 0o4755


class Scene(NamedTuple):
    """The victim's program belongs to root and is set-user-ID; the tree belongs to the attacker. Both are below one directory."""

    victim: Path
    tree: Path
    program: Path  # what the attacker has

    def victim_state(self) -> tuple[object, ...]:
        status = self.victim.lstat()
        return status.st_ino, status.st_uid, status.st_gid, status.st_mode, self.victim.read_bytes()

    def gifts(self) -> Iterator[Path]:
        """Programs of the attacker's that have become root's."""
        for path in self.tree.rglob("*"):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_uid == 0 and OWNERS[1].encode() in path.read_bytes():
                yield path

    def give(self, name: str) -> Path:
        """A copy of the attacker's program in the tree."""
        path = self.tree / name
        path.parent.mkdir(exist_ok=True)
        os.chown(path.parent, NOBODY, NOBODY)
        shutil.copy(self.program, path)
        os.chown(path, NOBODY, NOBODY)
        return path


class Race(NamedTuple):
    """`prepare` lays out the tree and gives the two names that are exchanged; `change` is what root does in each round."""

    prepare: Callable[[Scene], tuple[Path, Path]]
    change: Callable[[Scene, bool], object]


def one_file(scene: Scene) -> tuple[Path, Path]:
    """A program, and a link to the victim."""
    link = scene.tree / "y"
    link.symlink_to(scene.victim)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    return scene.give("x"), link


def two_names(scene: Scene) -> tuple[Path, Path]:
    """A program with two names; a link to the victim comes in the place of the second."""
    one, link = one_file(scene)
    second = scene.tree / "second"
    second.hardlink_to(one)
    return second, link


def a_fifo(scene: Scene) -> tuple[Path, Path]:
    """A program, and a FIFO: whoever opens that by its name waits for ever."""
    fifo = scene.tree / "fifo"
    os.mkfifo(fifo)
    return scene.give("x"), fifo


def a_directory(scene: Scene) -> tuple[Path, Path]:
    """A directory with a program of the victim's name, and a link to the victim's directory."""
    link = scene.tree / "z"
    link.symlink_to(scene.victim.parent)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    return scene.give(f"d/{scene.victim.name}").parent, link


def in_place(*names: str) -> Callable[[Scene, bool], object]:
    """Add and remove a section by turns, as a user of the library or of the command line does who names these."""

    def change(scene: Scene, is_odd: bool) -> None:
        path, *others = [scene.tree / name for name in names]
        if is_odd:
            add_section(path, hard_links=others, verify=False)
        else:
            remove(path, hard_links=others, verify=False)

    return change


def whole_tree(scene: Scene, is_odd: bool) -> None:
    arguments = ["add-tree", "--fatal", "-j1", "--format", "23"[is_odd], str(scene.tree)]
    if cli.main(arguments, standalone_mode=False):
        raise FormatError("a file was refused")


RACES = {
    "content planted: add-tree": Race(one_file, whole_tree),
    "ownership lost: add-section in place": Race(one_file, in_place("x")),
    "hard links: add-section of two names": Race(two_names, in_place("x", "second")),
    "a FIFO: add-section in place": Race(a_fifo, in_place("x")),
    "a directory: add-tree": Race(a_directory, whole_tree),
    "a directory: add-section in place": Race(a_directory, in_place("d/program")),
}


def lay_out(directory: Path, compiler: Callable[[str, Path], object]) -> Scene:
    """The scene, in an empty directory that everyone can reach."""
    directory.chmod(0o755)
    (directory / "safe").mkdir()
    scene = Scene(directory / "safe/program", directory / "tree", directory / "program")
    for owner, path in zip(OWNERS, (scene.victim, scene.program), strict=True):
        compiler(PROGRAM.format(owner), path)
    scene.victim.chmod(MODE)
    scene.tree.mkdir()
    os.chown(scene.tree, NOBODY, NOBODY)
    return scene


@contextlib.contextmanager
def stopped(process: int) -> Iterator[None]:
    """What is looked at in the block stays unchanged."""
    os.kill(process, signal.SIGSTOP)
    os.waitid(os.P_PID, process, os.WSTOPPED)
    yield
    os.kill(process, signal.SIGCONT)


def run(race: Race, scene: Scene, swap: Path, rounds: int) -> Counter[str]:
    """How many rounds changed the file, and how many were refused. Raises AssertionError as soon as the attacker has won."""
    names = race.prepare(scene)
    before = scene.victim_state()
    outcomes: Counter[str] = Counter()
    with subprocess.Popen([swap, *names], stdout=subprocess.PIPE, user=NOBODY, group=NOBODY, extra_groups=[]) as attacker:
        try:
            assert attacker.stdout is not None
            assert attacker.stdout.read(1) == b"\n"
            for number in range(rounds):
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    try:
                        race.change(scene, bool(number % 2))
                        outcomes["done"] += 1
                    except (SframegenError, OSError):
                        outcomes["refused"] += 1
                with stopped(attacker.pid):
                    assert scene.victim_state() == before, f"round {number}: the victim's file has changed"
                    assert not list(scene.gifts()), f"round {number}: the attacker's file is root's"
        finally:
            attacker.kill()
    shutil.rmtree(scene.tree)
    return outcomes
