"""Implements `detached` and `object_file` of `add_section`, which write the section to another file and only read the input."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace as changed_to
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from linker.files.location import Location, locate, make_directory
from linker.files.read_back import Reader, choose_reader
from linker.files.rename_into_place import write_new
from linker.inject.layout import UNLOADED_ADDRESS
from linker.inject.verify import verify_detached
from linker.objects.linkable_section import check_linkable, make_linkable_object
from sframegen.api.add_summary import Outcome, Plan, Summary
from sframegen.api.common import check_linked, raise_for_findings
from sframegen.api.making import convert_file, note_nothing_to_add, summarize_detached
from sframegen.base.errors import FormatError, Refusal, RefusedError
from sframegen.base.text import format_count
from sframegen.conversion.coverage import explain_empty_section
from sframegen.detached.detached_file import Identity, build_detached_file, identity_of, is_detached, path_in_store, read_section
from sframegen.elf.file import ElfFile, map_descriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from linker.objects.given_file import Objects
    from sframegen.api.options import AddOptions
    from sframegen.format.encode import Encoder

FILE_MODE = 0o644  # permissions of new files


def refuse_objects(_: Objects) -> NoReturn:
    raise FormatError("only linked files can have their section in another file")


def add_detached(elf: ElfFile, options: AddOptions) -> Summary:
    """Write the section of a linked file into a store, unless the store already has the same bytes for it.

    Raises FormatError, RefusedError for a file without a build-id, VerificationError and OSError.
    """
    store, file = options.writing.detached, elf.name
    assert store is not None
    check_linked(elf)
    if is_detached(elf):
        return summarize_detached(file)
    identity = identity_of(elf)
    if identity is None:
        message = "no build-id to name its detached section by; link with --build-id"
        raise RefusedError(Refusal.NO_BUILD_ID, message, file=file)
    summary, converted = convert_file(elf, file, options.section, options.running)
    if not len(converted.table):
        return note_nothing_to_add(summary)
    encoder = converted.make_encoder(elf, options.section.level)
    section = encoder.encode(UNLOADED_ADDRESS)
    data = build_detached_file(elf, identity, section)
    target = os.path.join(os.fspath(store), path_in_store(identity.build_id))  # noqa: PTH118 - as text, for messages
    if options.writing.verify:
        raise_for_findings(_verify_bytes(data, elf, identity, section, choose_reader(len(data))))
    return _write_unless_dry_run(changed_to(summary, detached=target), encoder, target, data, options)


def add_for_linking(elf: ElfFile, options: AddOptions) -> Summary:
    """Write the section of a linked image as an object for its next link, unless that file already has the same bytes.

    Raises FormatError, VerificationError and OSError.
    """
    assert options.writing.object_file is not None
    target = os.fspath(options.writing.object_file)
    check_linked(elf)
    summary, converted = convert_file(elf, elf.name, options.section, options.running)
    if not len(converted.table):  # a build that goes on would link no object, or that of an earlier build
        raise elf.error(f"{target} was not written: {explain_empty_section(summary.functions, summary.ignored_fdes)}")
    encoder = converted.make_encoder(elf, options.section.level)
    data = make_linkable_object(elf, encoder)
    if options.writing.verify:
        with _memory_file(data) as path:
            raise_for_findings(check_linkable(elf, encoder, path))
    return _write_unless_dry_run(summary, encoder, target, data, options)


def _write_unless_dry_run(summary: Summary, encoder: Encoder, target: str, data: bytes, options: AddOptions) -> Summary:
    """Write the file unless `dry_run` is set; return the summary with the section's size and rows, and the plan."""
    size, rows = encoder.size_bytes, len(encoder.table.row_start)
    summary = changed_to(summary, outcome=Outcome.ADDED, section_bytes=size, rows=rows)
    planned = changed_to(summary, plan=Plan((f"new file: {target}, {format_count(len(data), 'byte')}",)))
    if options.writing.dry_run:
        return planned
    if not _write_if_changed(target, data):
        return changed_to(summary, outcome=Outcome.UNCHANGED, note="has it already")
    return changed_to(planned, output=target)


@contextmanager
def _memory_file(data: bytes) -> Iterator[Path]:
    """Yield the path of a file in memory that has these bytes."""
    descriptor = os.memfd_create("detached", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        yield Path(f"/proc/self/fd/{descriptor}")


def _verify_bytes(data: bytes, elf: ElfFile, identity: Identity, section: memoryview, reader: Reader) -> list[str]:
    """Return the faults of the bytes to be written, which a library and our own reader of stores read back."""
    with _memory_file(data) as path:
        findings = verify_detached(elf, section, path, reader)
    try:
        if read_section(memoryview(data), "detached section", identity).tobytes() != section.tobytes():
            findings.append("its section reads back differently")
    except FormatError as error:
        findings.append(str(error))
    return findings


def _write_if_changed(path: str, data: bytes) -> bool:
    """Write a file; return False if it already has these bytes. Raises OSError."""
    make_directory(os.path.dirname(path))  # noqa: PTH120 - as text, for messages
    with locate(path) as location:
        if _has_contents(location, data):
            return False
        write_new(location, data, FILE_MODE)
    return True


def _has_contents(location: Location, data: bytes) -> bool:
    if location.status() is None:
        return False
    try:
        descriptor = location.open()
    except FormatError:  # it is not a regular file, which the write reports
        return False
    try:
        if os.fstat(descriptor).st_size != len(data):
            return False
        contents, _ = map_descriptor(descriptor, location.path)
    finally:
        os.close(descriptor)
    return contents.tobytes() == data
