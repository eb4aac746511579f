"""Relocatable objects and archives of them: laid out, given sections, written, read again."""

from __future__ import annotations

import io
from contextlib import suppress

from cfi.errors import FormatError
from linker.archive import is_archive
from linker.relocatable import Objects, objects_in
from sframegen.elf import ET_REL, ElfFile
from sframegen.format.layouts import V3
from sframegen.optimize import LEVELS

SEEDS = ("gcc-object", "gcc-object-debug", "gcc-object-groups", "gcc-archive", "archive", "object", "object-sframe", "program")


def opened(data: bytes) -> Objects:
    view = memoryview(data)
    if is_archive(view):
        return Objects("file", view, {at: elf for at, _, elf in objects_in(view, "file")})
    elf = ElfFile(view, "file")
    return Objects("file", view, {0: elf} if elf.header.e_type == ET_REL else {})


def run(data: bytes) -> None:
    with suppress(FormatError):
        objects = opened(data)
        if not objects.members:
            return
        prepared = objects.prepare(V3, LEVELS["fast"])
        out = io.BytesIO()
        objects.write(prepared, out)
        objects.check(prepared, opened(out.getvalue()))
