"""A folder with a program, its libraries and glibc, in which backtrace() can go by one thing only."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import sframegen
from sframegen.elf.file import open_elf
from sframegen.elf.records import RECORDS, Phdr
from sframegen.format.layouts import V2, WRITABLE
from sframegen.format.locate import sframe_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sframegen.tables.optimize import LevelName

PT_NULL, PT_GNU_EH_FRAME = 0, 0x6474E550
HERE = Path(__file__).resolve().parent
FLAGS = ("-O2", "-fno-optimize-sibling-calls", "-fno-reorder-functions", "-Wa,--gsframe")


def compile_all(gcc: list[str], folder: Path) -> list[Path]:
    """The program and its library, with sections of GNU's."""
    program, plugin = folder / "walks", folder / "plugin.so"
    subprocess.run([*gcc, *FLAGS, "-rdynamic", "-o", program, HERE / "walks.c"], check=True)
    subprocess.run([*gcc, *FLAGS, "-shared", "-fPIC", "-o", plugin, HERE / "plugin.c"], check=True)
    return [program, plugin]


def prepare(files: Iterable[Path], folder: Path, change: Callable[[Path], dict[str, int]], *, dwarf: bool) -> dict[str, int]:
    """Copies of the files as `change` makes them; with `dwarf`, they keep PT_GNU_EH_FRAME, by which libgcc finds their CFI.

    Returns the bytes of code that their sections leave out, by reason.
    """
    folder.mkdir()
    left_out: dict[str, int] = {}
    for file in files:
        copy = Path(shutil.copy(file, folder))
        for reason, size in change(copy).items():
            left_out[reason] = left_out.get(reason, 0) + size
        if not dwarf:
            hide_eh_frame(copy)
    return left_out


def without_section(file: Path) -> dict[str, int]:
    sframegen.remove(file, force=True)
    return {}


def with_section(level: LevelName) -> Callable[[Path], dict[str, int]]:
    """A section of version 2, of that level of optimisation, from the CFI."""

    def change(file: Path) -> dict[str, int]:
        return sframegen.add_section(file, version=2, optimize=level, replace=True).fates.get("left_out", {})

    return change


def with_outermost_rows(file: Path) -> dict[str, int]:
    """The same with a row for outermost frames, as the second erratum of version 2 has them."""
    with patch.dict(WRITABLE, {2: V2._replace(outermost=True)}):
        return with_section("none")(file)


def converted(file: Path) -> dict[str, int]:
    """GNU's section of version 3 as one of version 2; a file without one gets none."""
    return dict(sframegen.convert(file, 2).left_out) if sframe_of(open_elf(file)) else {}


def hide_eh_frame(file: Path) -> None:
    """PT_GNU_EH_FRAME becomes PT_NULL: nothing leads to the CFI."""
    elf = open_elf(file)
    form = RECORDS[Phdr, elf.byte_order]
    places = [elf.header.e_phoff + number * form.size for number, one in enumerate(elf.segments) if one.p_type == PT_GNU_EH_FRAME]
    with file.open("r+b") as stream:
        for place in places:
            stream.seek(place)
            stream.write(PT_NULL.to_bytes(4, elf.byte_order))
