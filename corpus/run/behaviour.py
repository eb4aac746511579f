"""What a program or library does, as far as it is harmless to look: what ld.so says of it, and a short run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SECONDS = 10
DF_1_PIE = 0x08000000
ADDRESS = re.compile(rb"0x[0-9a-f]+")
# Belt and braces: in namespaces of their own these reach nothing either.
NOT_RUN = re.compile(
    r"(?:p|sk|fuser|systemd-)?kill.*|ssh.*|scp|sftp|rsync|u?mount.*|fusermount.*|reboot|shutdown|halt|poweroff|(?:tel)?init|systemctl|"
    r"loginctl|passwd|ch(?:sh|fn|age)|su|sudo.*|newgrp|gpasswd|login|wall|write|dd|sync|shred|nsenter|unshare|chroot|setpriv"
)
# Without network, other processes, or a disk that can be written.
ALONE = (
    *("unshare", "--map-root-user", "--net", "--ipc", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child", "--"),
    *("sh", "-c", 'mount -o remount,bind,ro / && exec env -i "$@"', "sh"),
)
ENVIRONMENT = {"PATH": "/usr/bin:/usr/sbin", "HOME": "/nonexistent", "LC_ALL": "C", "TERM": "dumb"}
CHECKS = ("ld.so --verify", "ldd -r", "preloaded", "--version")


class Outcome(NamedTuple):
    """The outcome of one command; without addresses, which change with every start."""

    status: int  # negative: the signal
    output: bytes


class Nature(NamedTuple):
    machine: str
    is_dynamic: bool  # ld.so loads it
    is_program: bool
    library_path: str  # DT_RUNPATH or DT_RPATH: a copy's own $ORIGIN would lead nowhere


def nature_of(file: Path) -> Nature:
    with file.open("rb") as stream:
        elf = ELFFile(stream)
        dynamic = [segment for segment in elf.iter_segments("PT_DYNAMIC") if isinstance(segment, DynamicSegment)]
        tags = [tag for segment in dynamic for tag in segment.iter_tags()]
        is_pie = any(tag.entry.d_tag == "DT_FLAGS_1" and tag.entry.d_val & DF_1_PIE for tag in tags)
        paths = [str(path) for tag in tags for path in (getattr(tag, "runpath", ""), getattr(tag, "rpath", "")) if path]
        return Nature(elf.header.e_machine, bool(dynamic), elf.header.e_type == "ET_EXEC" or is_pie, ":".join(paths))


def interpreter_of(program: Path) -> str:
    with program.open("rb") as stream:
        [segment] = ELFFile(stream).iter_segments("PT_INTERP")
        return bytes(segment.data()).rstrip(b"\0").decode()


class Behaviour:
    """`may_run`: programs and libraries are started; where the system gives no namespaces, ld.so looks at them and that is all."""

    def __init__(self) -> None:
        self.ld_so = interpreter_of(Path(sys.executable))
        self.machine = nature_of(Path(sys.executable)).machine
        self.may_run = shutil.which(ALONE[0]) is not None and run([*ALONE, "true"], Path("/")) == Outcome(0, b"")

    def of(self, file: Path, original: Path, directory: Path) -> dict[str, Outcome]:
        """By check, of CHECKS those that suit a copy of `original`; run in `directory`."""
        return {check: run(command, directory) for check, command in self.commands(file, original)}

    def commands(self, file: Path, original: Path) -> Iterator[tuple[str, Sequence[str]]]:
        nature = nature_of(file)
        if nature.machine != self.machine:
            return
        libraries = "LD_LIBRARY_PATH=" + nature.library_path.replace("${ORIGIN}", "$ORIGIN").replace(
            "$ORIGIN", str(original.parent)
        )
        if nature.is_dynamic:
            yield "ld.so --verify", [self.ld_so, "--verify", str(file)]
            tracing = ["LD_TRACE_LOADED_OBJECTS=1", "LD_WARN=1", "LD_BIND_NOW=1"]
            yield "ldd -r", ["env", "-i", libraries, *tracing, self.ld_so, str(file)]
        if not self.may_run:
            return
        alone = [*ALONE, *(f"{name}={value}" for name, value in ENVIRONMENT.items()), libraries]
        if nature.is_dynamic and not nature.is_program:
            yield "preloaded", [*alone, f"LD_PRELOAD={file}", "/bin/true"]
        if nature.is_program and original.parent.name == "bin" and not NOT_RUN.fullmatch(original.name):
            yield "--version", [*alone, str(file), "--version"]


def run(command: Sequence[str], directory: Path) -> Outcome:
    """One that does not end in time has the status of SIGALRM, and no output that could be compared."""
    with subprocess.Popen(
        command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return Outcome(-14, b"")
    return Outcome(process.returncode, ADDRESS.sub(b"0x", output))
