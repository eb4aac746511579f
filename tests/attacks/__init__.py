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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from sframegen import SframegenError

NOBODY = 65534
SWAP = Path(__file__).with_name("swap.c")
# Three programs for the same machine; a string says whose each is.
PROGRAM = 'const char whose[] = "{}"; int main(void) {{ return whose[0]; }}'
OWNERS = ("the victim's", "the attacker's", "only root may read this")
MODE = 0o4755
MIN_ROUNDS = 4


class Scene(NamedTuple):
    """All below one directory: what is safe belongs to root, with a set-user-ID program; the tree belongs to the attacker."""

    victim: Path
    tree: Path
    program: Path  # what the attacker has

    @property
    def secret(self) -> Path:
        """A program of root's that nobody else may read."""
        return self.victim.with_name("secret")

    @property
    def output(self) -> Path:
        """A directory of root's for results; everybody can read it."""
        return self.tree.with_name("output")

    def safe_state(self) -> dict[str, tuple[object, ...]]:
        """All that root has in the directory to which the attacker's links lead."""
        state: dict[str, tuple[object, ...]] = {}
        for path in sorted(self.victim.parent.rglob("*")):
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            state[str(path)] = (status.st_ino, status.st_uid, status.st_gid, status.st_mode, content)
        return state

    def gifts(self, *, copies: bool) -> Iterator[str]:
        """What the attacker has got. `copies`: root makes files of its own from the attacker's, which may not be set-ID."""
        for path in (*self.tree.rglob("*"), *self.output.rglob("*")):
            try:
                status = path.lstat()
                content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            except FileNotFoundError:
                continue
            is_set_id = status.st_mode & (stat.S_ISUID | stat.S_ISGID)
            if OWNERS[1].encode() in content and status.st_uid == 0 and (is_set_id or not copies):
                yield f"{path}: his content, root's rights"
            if OWNERS[2].encode() in content and (status.st_uid != 0 or status.st_mode & 0o077):
                yield f"{path}: root's secret, for others"
            if self.output in path.parents and is_set_id and stat.S_ISREG(status.st_mode):
                yield f"{path}: set-ID to someone else"

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
    copies: bool = False  # root makes files of its own from those of the attacker
    cost: int = 1  # how many rounds of other races take as long
    is_refused: bool = False  # each round


def lay_out(directory: Path, compiler: Callable[[str, Path], object]) -> Scene:
    """The scene, in an empty directory that everyone can reach."""
    directory.chmod(0o755)
    (directory / "safe").mkdir()
    scene = Scene(directory / "safe/program", directory / "tree", directory / "program")
    for owner, path in zip(OWNERS[:2], (scene.victim, scene.program), strict=True):
        compiler(PROGRAM.format(owner), path)
    scene.victim.chmod(MODE)
    compiler(PROGRAM.format(OWNERS[2]), scene.secret)
    scene.secret.chmod(0o700)
    scene.output.mkdir(mode=0o755)
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
    """How many rounds were done to the end, and how many were refused. Raises AssertionError as soon as the attacker has won."""
    names = race.prepare(scene)
    before = scene.safe_state()
    outcomes: Counter[str] = Counter()
    with subprocess.Popen([swap, *names], stdout=subprocess.PIPE, user=NOBODY, group=NOBODY, extra_groups=[]) as attacker:
        try:
            assert attacker.stdout is not None
            assert attacker.stdout.read(1) == b"\n"
            for number in range(max(rounds // race.cost, MIN_ROUNDS)):
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    try:
                        race.change(scene, bool(number % 2))
                        outcomes["done"] += 1
                    except (SframegenError, OSError):
                        outcomes["refused"] += 1
                with stopped(attacker.pid):
                    assert scene.safe_state() == before, f"round {number}: what is root's has changed"
                    assert not (gifts := list(scene.gifts(copies=race.copies))), f"round {number}: {gifts}"
        finally:
            attacker.kill()
    shutil.rmtree(scene.tree)
    shutil.rmtree(scene.output)
    return outcomes
