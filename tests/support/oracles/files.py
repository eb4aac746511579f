"""The tools' streams and the few ELF facts that the judges need, read without sframegen."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from .rules import OracleError

PT_LOAD = 1
PT_GNU_SFRAME = 0x6474E554
PF_X = 1
BYTE_ORDERS = {1: "<", 2: ">"}


class Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    address: int
    filesz: int
    memsz: int


class ElfFacts(NamedTuple):
    machine: int
    segments: list[Segment]

    def executable(self) -> list[tuple[int, int]]:
        """[begin, end) of every executable PT_LOAD."""
        return [(s.address, s.address + s.memsz) for s in self.segments if s.kind == PT_LOAD and s.flags & PF_X]

    def offset(self, address: int) -> int:
        """In the file, of an address in an executable PT_LOAD."""
        return next(
            address - s.address + s.offset
            for s in self.segments
            if s.kind == PT_LOAD and s.flags & PF_X and s.address <= address < s.address + s.filesz
        )

    def sframe(self) -> Segment:
        found = [s for s in self.segments if s.kind == PT_GNU_SFRAME]
        if len(found) != 1:
            raise OracleError(f"{len(found)} PT_GNU_SFRAME segments, expected one")
        return found[0]


def elf_facts(path: Path | str) -> ElfFacts:
    """Program headers of a 64-bit ELF file of either byte order."""
    with Path(path).open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:5] != b"\x7fELF\x02" or header[5] not in BYTE_ORDERS:
            raise OracleError(f"{path} is not a 64-bit ELF file")
        order = BYTE_ORDERS[header[5]]
        (machine,) = struct.unpack_from(order + "H", header, 18)
        (phoff,) = struct.unpack_from(order + "Q", header, 32)
        phentsize, phnum = struct.unpack_from(order + "HH", header, 54)
        file.seek(phoff)
        table = file.read(phentsize * phnum)
    segments = []
    for at in range(0, phentsize * phnum, phentsize):
        kind, flags, offset, address, _, filesz, memsz, _ = struct.unpack_from(order + "IIQQQQQQ", table, at)
        segments.append(Segment(kind, flags, offset, address, filesz, memsz))
    return ElfFacts(machine, segments)


@contextmanager
def running(*command: str) -> Iterator[IO[bytes]]:
    """The standard output of a tool as a stream. A failure or any word on its standard error is an OracleError."""
    with tempfile.TemporaryFile() as errors:
        environment = os.environ | {"LC_ALL": "C"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment) as process:
            assert process.stdout is not None
            yield process.stdout
            process.stdout.read()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    if process.returncode or said:
        raise OracleError(f"{' '.join(command)}: exit status {process.returncode}: {said[:500]}")


def paragraphs(text: IO[bytes]) -> Iterator[bytes]:
    """The blocks of a stream that blank lines separate, without these."""
    rest = b""
    while chunk := text.read(1 << 20):
        blocks = (rest + chunk).split(b"\n\n")
        rest = blocks.pop()
        yield from blocks
    yield rest.rstrip(b"\n")
