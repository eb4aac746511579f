"""read and check: what a file's section says, and whether that is so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cfi.errors import FormatError, naming
from linker.objects.add_to_objects import Objects, open_given
from linker.objects.object_check import check_objects
from sframegen.checks.check import CONSUMERS, CheckReport, check_file
from sframegen.elf.file import open_elf
from sframegen.format.locate import open_sframe

if TYPE_CHECKING:
    import os

    from sframegen.checks.check import Consumer
    from sframegen.format.decode import SframeSection
    from sframegen.program.workers import Progress


def read(path: str | os.PathLike[str]) -> SframeSection:
    """The SFrame section of an ELF file, of any producer and version: a copy, of which only the header is decoded.

    `find` searches its bytes; its `table`, all that it says, is decoded when it is first asked for.

    Raises FormatError where the file has no section, or one with a bad header, or OSError.
    """
    return open_sframe(open_elf(Path(path)), copy=True)


def check(
    path: str | os.PathLike[str],
    *,
    consumer: Consumer = "all",
    debug_file: str | os.PathLike[str] | None = None,
    instructions: bool = False,
    second_reader: bool | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> CheckReport:
    """What is wrong with a file's SFrame section, and what became of every executable byte.

    Of an object, or the objects of an archive, all sections together: without consumers, which read linked files only.

    - `consumer`: who is to read it: kernel, glibc, gnu or all.
    - `debug_file`: a separate debug file, or a directory of them, whose call frame information counts too.
    - `instructions`: hold the section and the call frame information against what the instructions do, too.
    - `second_reader`: read the call frame information with pyelftools as well, and compare the section with that; None: where it is
      small, so that this takes no more than a second or two.
    - `jobs`: processes that share reading the instructions.
    - `progress`: called with bytes of call frame information that pyelftools has read, and of all of it; with `instructions`,
      then with bytes of code whose instructions are read, and all that are to be, as far as is known; some more often than once.

    What is wrong with the section is a finding, also that there is none. Raises FormatError where the file cannot be read or is of
    a type without one; where `instructions`, a `debug_file` or `second_reader` are given for what is not linked, or `instructions`
    for an ABI of which they are not read; or OSError; ValueError for an unknown consumer.
    """
    if consumer not in CONSUMERS:
        raise ValueError(f"no consumer {consumer!r}, only {', '.join(CONSUMERS)}")
    with naming(str(path)):
        given = open_given(str(path))
        if isinstance(given, Objects):
            if instructions:
                raise FormatError("the instructions of what is not linked cannot be followed: its jumps and calls lead nowhere yet")
            if debug_file is not None:
                raise FormatError("an object has no separate debug file")
            if second_reader:
                raise FormatError("the second reader reads the call frame information of linked files only")
            return check_objects(given)
        return check_file(
            given,
            consumer=consumer,
            debug_file=None if debug_file is None else Path(debug_file),
            instructions=instructions,
            second_reader=second_reader,
            jobs=jobs,
            progress=progress,
        )
