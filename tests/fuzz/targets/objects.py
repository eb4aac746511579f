"""Relocatable objects and archives of them: laid out, given sections, written, read again."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import BinaryIO

from linker.objects.archive import is_archive
from linker.objects.change_objects import check_object, convert_object, plan_object_removal, write_object
from linker.objects.given_file import Objects, read_archive_objects
from linker.objects.object_view import find_place, make_views
from sframegen.base.errors import SframegenError
from sframegen.checks.object_check import check_objects
from sframegen.elf.file import ElfFile
from sframegen.elf.records import ET
from sframegen.format.layouts import V3
from sframegen.tables.levels import LEVELS

SEEDS = ("gcc-object", "gcc-object-debug", "gcc-object-groups", "gcc-archive", "archive", "object", "object-sframe", "program")


def opened(data: bytes) -> Objects:
    view = memoryview(data)
    if is_archive(view):
        return Objects("file", view, {at: elf for at, _, elf in read_archive_objects(view, "file")})
    elf = ElfFile(view, "file")
    return Objects("file", view, {0: elf} if elf.header.e_type == ET.REL else {})


def written(objects: Objects, changed: Mapping[int, Callable[[BinaryIO], None]]) -> Objects:
    out = io.BytesIO()
    objects.write(changed, out)
    return opened(out.getvalue())


def read_all(objects: Objects) -> None:
    """As dump, lookup and check do."""
    check_objects(objects)
    with suppress(SframegenError):
        for view in make_views(objects):
            for piece, section in enumerate(view.sections()):
                name_of, code_of = view.function_namer(piece), view.code_section_namer(piece)
                for function, start in enumerate(section.table.start):
                    name_of(function)
                    with suppress(SframegenError):
                        found, place = find_place([view], f"{code_of(function)}+{start}", "file")
                        found.look_up(place)


def run(data: bytes) -> None:
    with suppress(SframegenError):
        objects = opened(data)
        if not objects.members:
            return
        with suppress(SframegenError):
            read_all(objects)
        prepared = {at: convert_object(elf, V3, LEVELS["fast"], replace=True) for at, elf in objects.members.items()}
        filled = written(objects, {at: partial(write_object, one.change) for at, one in prepared.items()})
        objects.check({at: partial(check_object, one.change) for at, one in prepared.items()}, filled)
        removals = {at: plan_object_removal(elf) for at, elf in filled.members.items()}
        gone = {at: one for at, one in removals.items() if one}
        if gone:
            without = written(filled, {at: one.write for at, one in gone.items()})
            filled.check({at: one.check for at, one in gone.items()}, without)
            assert len(without.data) == filled.size_with({at: one.size for at, one in gone.items()})
