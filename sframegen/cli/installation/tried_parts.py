"""The parts of an installation: a row for each, with what tries it and the command that gets it."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import sys
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import SframegenError
from sframegen.cli.installation import attempts
from sframegen.cli.installation.install_commands import (
    as_root,
    compiling,
    getting,
    getting_again,
    package,
)
from sframegen.elf.text import count_of, printable, shortened
from sframegen.profile.events.attributes import command_for_own_events
from sframegen.program import patience
from sframegen.program.forked import Forked, nowhere
from sframegen.program.libraries import DEPENDENCIES, FLEET, SYMBOLS
from sframegen.program.signals import signals_held
from sframegen.program.workers import outcomes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PR_SET_CHILD_SUBREAPER = 36
SHELLS = {
    "bash": "echo 'eval \"$(_SFRAMEGEN_COMPLETE=bash_source sframegen)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(_SFRAMEGEN_COMPLETE=zsh_source sframegen)\"' >> ~/.zshrc",
    "fish": (
        "mkdir -p ~/.config/fish/completions && "
        "echo '_SFRAMEGEN_COMPLETE=fish_source sframegen | source' > ~/.config/fish/completions/sframegen.fish"
    ),
}


class Part(NamedTuple):
    """`attempt` returns what was found, or raises an exception that says why the part does not work."""

    group: str
    name: str
    use: str  #: what works only with it
    attempt: Callable[[], str]
    remedy: str  #: one command; empty if there is none


class Tried(NamedTuple):
    """The result of an attempt."""

    group: str
    name: str
    use: str
    works: bool
    found: str  #: one line: the version for instance, or why it does not work
    remedy: str  #: the command; empty if it works, or if there is none

    def lines(self) -> Iterator[str]:
        yield f"{'ok' if self.works else 'no'}  {self.name}: {self.found}" + ("" if self.works else f"; needed for {self.use}")
        if self.remedy:
            yield f"      {self.remedy}"


def all_parts() -> Iterator[Part]:
    """In the order in which they are shown."""
    yield Part("sframegen", "compiled modules", "speed: everything takes 2 to 30 times as long", attempts.compiled, compiling())
    yield Part("sframegen", "add-section", "everything", attempts.add_section, getting_again())
    yield Part("sframegen", "preload", "stack traces from inside a process", attempts.preload, compiling())
    for one in DEPENDENCIES:
        yield Part("libraries", one.project, one.use, partial(attempts.dependency, one), getting([one], again=True))
    with_clang = " && ".join(filter(None, [package("clang", "/usr/bin/clang"), getting_again(is_built=True)]))
    privileged = "" if os.geteuid() == 0 else as_root(f"{shlex.quote(sys.executable)} -m sframegen profile --probe")
    profile = "profile in the kernel"
    for fact, use, remedy in (
        ("kernel", profile, ""),
        ("kernel program", profile, with_clang),
        ("libbpf.so.1", profile, package("libbpf1", "libbpf.so.1()(64bit)")),
        ("capabilities", profile, privileged),
        ("BPF", profile, privileged),
        ("perf events of own processes", "profile", as_root(command) if (command := command_for_own_events()) else ""),
        ("perf events of all processes", "profile --system", privileged),
    ):
        yield Part("profile", fact, use, partial(attempts.profile_fact, fact), remedy)
    yield Part("profile", "walk in the kernel", profile, attempts.walk_in_the_kernel, privileged)
    for group, name, use, attempt, debian, provided in (
        ("names", "debug files", "names of functions that libraries do not export", attempts.debug_files, "libc6-dbg", ""),
        ("packages", "rpm2archive", "RPM packages", attempts.rpm2archive, "rpm2cpio", "/usr/bin/rpm2archive"),
        ("packages", "sqfs2tar, tar2sqfs", "squashfs images", attempts.squashfs, "squashfs-tools-ng", "/usr/bin/sqfs2tar"),
    ):
        yield Part(group, name, use, attempt, package(debian, provided))
    for group, libraries in (("names", SYMBOLS), ("fleet", FLEET)):
        for one in libraries:
            remedy = getting([one], again=find_spec(one.module) is not None)
            yield Part(group, one.project, one.use, partial(attempts.dependency, one), remedy)
    shell = os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119 - of a text
    yield Part("shell", "completion", "the TAB key", partial(attempts.completion, shell), SHELLS.get(shell, ""))


def try_all(parts: Sequence[Part]) -> list[Tried]:
    """Each part in a process of its own: a library that ends its process ends no more than that."""
    found = sorted(outcomes(_try, parts, len(os.sched_getaffinity(0))), key=lambda outcome: outcome[0])
    return [result if isinstance(result, Tried) else _refused(parts[number], result) for number, result in found]


def _try(part: Part) -> Tried:
    """In a process group of its own. When the attempt ends, or after some time, the group is killed and waited for."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # programs that outlive the attempt become children of this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    process = Forked(partial(_attempt, part), _alone)
    process.ask(())
    most = patience.current.part
    outcome: Tried | Exception = attempts.DoesNotWorkError(f"did not end within {count_of(int(most), 'second')}")
    try:
        if process.has_answered(most):
            outcome = process.answer().value
    except ChildProcessError as death:
        outcome = death
    finally:
        _end(process)
    return _refused(part, outcome) if isinstance(outcome, Exception) else outcome


def _end(process: Forked) -> None:
    """Kills a process with its group, and waits for all of them."""
    with signals_held():
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.end(signal.SIGKILL)  # if it has no group yet
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-process.pid, 0)


def _alone(_pipe: int) -> None:
    """Its input is empty, and its output is discarded."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setpgid(0, 0)
    nowhere(0, 1, 2)


def _attempt(part: Part) -> Tried:
    """In the process."""
    try:
        found = part.attempt()
    except Exception as error:  # noqa: BLE001 - whatever a damaged installation raises
        return _refused(part, error)
    return Tried(part.group, part.name, part.use, True, shortened(printable(found)), "")


def _refused(part: Part, error: Exception) -> Tried:
    reason = " ".join(printable(str(error)).split())
    if not isinstance(error, (attempts.DoesNotWorkError, SframegenError, OSError)) or not reason:
        reason = f"{type(error).__name__}: {reason}"
    return Tried(part.group, part.name, part.use, False, shortened(reason), part.remedy)
