"""`sframegen remove`: the file that add-section was given, or, where others have written it since, one without the section."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import sframegen
from linker.files.copying import FilePart
from linker.inject import apply, undo_record
from linker.inject.gaps import Gap
from linker.inject.undo_record import ENTRY, MAX_RANGES, TRAILER, ZERO_CHUNK, UndoRecord, Write
from sframegen.base.errors import FormatError, VerificationError
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.notes import read_build_id
from sframegen.elf.records import PF, PT, RECORDS, Phdr
from tests.linker.inject.test_in_place import REMEDY, add, assert_nothing_is_left, assert_one_section, sframe_bytes, unchanged
from tests.linker.inject.test_run import REFUSED, STRIPPERS, apply_tool, assert_table_is_found, remarks, run
from tests.support.commands import run as invoke
from tests.support.inputs.linker_inputs import (
    FLAGS,
    KINDS,
    SOURCE,
    elf_of,
    inject_bytes,
    restored,
    section_named,
    small_file,
    source_of,
    with_header,
    with_segment,
    without_sections,
)
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers
from tests.support.programs import PROGRAM

remove = partial(invoke, "remove", "-j1")


def added(original: Path, directory: Path, **options: Any) -> Path:
    file = directory / "added"
    sframegen.add_section(original, output=file, verify=False, **options)
    return file


def test_code_that_can_be_written_hides_no_metadata(compile_c: Compiler, tmp_path: Path) -> None:
    """The dynamic section, whose tags follow what moves, is in a segment of code then."""
    original = tmp_path / "original"
    data = compile_c(SOURCE, "-shared", "-fPIC").read_bytes()
    for number, segment in enumerate(elf_of(data).segments):
        if segment.p_type == PT.LOAD and segment.p_flags & PF.W:
            data = with_segment(data, number, p_flags=segment.p_flags | PF.X)
    original.write_bytes(data)
    file = added(original, tmp_path)
    assert "patched: DT_" in str(sframegen.add_section(original, dry_run=True).plan)
    assert sframegen.remove(file).restored
    assert file.read_bytes() == data


@pytest.mark.verification_fails
@for_each(("spoiled", "finding"), [("old", "does not restore the original"), ("new", "would not be used")])
def test_a_record_that_gives_something_else_back_is_not_written(
    compile_c: Compiler, monkeypatch: pytest.MonkeyPatch, spoiled: str, finding: str
) -> None:
    original = compile_c(SOURCE, "-shared", "-fPIC")
    data = original.read_bytes()
    dynamic = next(segment for segment in open_elf(original).segments if segment.p_type == PT.DYNAMIC)
    pack = undo_record.encode_record

    def wrong(undo: undo_record.UndoRecord, new: Any) -> bytes:
        if spoiled == "new":
            return pack(undo, [*new, b"?"])
        old = undo.overwritten
        number, (at, before) = next((n, one) for n, one in enumerate(old) if dynamic.p_offset <= one[0])
        return pack(undo._replace(overwritten=[*old[:number], (at, bytes([before[0] ^ 1]) + before[1:]), *old[number + 1 :]]), new)

    monkeypatch.setattr(undo_record, "encode_record", wrong)
    with pytest.raises(VerificationError, match=f"verification failed, nothing was changed: its undo record {finding}"):
        sframegen.add_section(original)
    assert original.read_bytes() == data


def test_without_section_headers(compile_c: Compiler, tmp_path: Path) -> None:
    original = tmp_path / "original"
    original.write_bytes(without_sections(compile_c(SOURCE, *FLAGS, *KINDS["pie"]).read_bytes()))
    file = added(original, tmp_path)
    file.chmod(0o755)
    data = file.read_bytes()
    sframegen.remove(file)
    assert file.read_bytes() == original.read_bytes()
    file.write_bytes(data + b"\0")  # the record is no longer at the end
    assert not sframegen.remove(file).restored
    assert_nothing_is_left(file)
    run(file, "pie", compile_c)


def test_after_convert(compile_c: Compiler, tmp_path: Path) -> None:
    original = compile_c(PROGRAM, "-O2")
    file = added(original, tmp_path)
    changes: list[dict[str, Any]] = [{"version": 2}, {"version": 3}, {"optimize": "size"}]
    for change in changes:
        sframegen.convert(file, **change, verify=False)
        assert restored(file.read_bytes()) == original.read_bytes()
    assert sframegen.remove(file).restored
    assert file.read_bytes() == original.read_bytes()


def test_what_is_edited_in_place_stays_edited(compile_c: Compiler, tmp_path: Path) -> None:
    original = compile_c(SOURCE, *FLAGS, *KINDS["pie"]).read_bytes()
    file = added(compile_c(SOURCE, *FLAGS, *KINDS["pie"]), tmp_path)
    file.write_bytes(file.read_bytes().replace(b"counter %d\n", b"COUNTER %d\n"))
    assert sframegen.remove(file).restored
    assert file.read_bytes() == original.replace(b"counter %d\n", b"COUNTER %d\n")


def test_moved_metadata_that_is_edited_is_not_lost(compile_c: Compiler, tmp_path: Path) -> None:
    """The interpreter's name in its new place: giving back the old one would undo the edit."""
    file = added(compile_c(SOURCE, *FLAGS, *KINDS["pie"]), tmp_path)
    elf = open_elf(file)
    interp = next(s for s in elf.segments if s.p_type == PT.INTERP)
    assert interp.p_offset > elf.segments[0].p_filesz + 64
    data = bytearray(file.read_bytes())
    data[interp.p_offset + 1 : interp.p_offset + 4] = b"LIB"
    file.write_bytes(data)
    assert not sframegen.remove(file).restored
    assert_nothing_is_left(file)
    assert file.read_bytes()[interp.p_offset : interp.p_offset + 4] == b"/LIB"


@pytest.mark.parametrize("tool", STRIPPERS)
@for_each("kind", KINDS)
def test_after_other_tools(tool: str, kind: str, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    """They keep the section. Without it, no header speaks of SFrame, eu-elflint finds nothing new, and tools take what is left."""
    if (tool, kind) in REFUSED:
        return
    changed, result, again = tmp_path / "changed", tmp_path / "result", tmp_path / "again"
    file = added(compile_c(source_of(kind), *FLAGS, *KINDS[kind]), tmp_path)
    apply_tool(tool, file, changed, peers)
    run(changed, kind, compile_c)
    assert_table_is_found(changed)
    assert_one_section(changed)
    assert sframe_bytes(changed) == sframe_bytes(file)
    assert read_build_id(open_elf(changed)) == read_build_id(open_elf(file))
    assert unchanged(changed, lambda: sframegen.add_section(changed)).note == "has it already"
    assert REMEDY in unchanged(changed, lambda: add("--sframe-version", 2, changed)).stderr
    if kind == "static-pie":  # for older kernels, --replace has no room
        old = ("--sframe-version", 2, "--min-kernel", "5.17")
        assert "--min-kernel 5.18" in unchanged(changed, lambda: add(*old, changed)).stderr
    assert not sframegen.remove(changed, output=result).restored
    assert_nothing_is_left(result)
    assert_table_is_found(result)
    run(result, kind, compile_c)
    assert len(remarks(result, peers)) <= len(remarks(changed, peers))
    assert sframe_bytes(changed) not in result.read_bytes()
    if (tool, kind) == ("strip", "pie"):  # the segment has moved metadata, too
        loads = [sum(segment.p_type == PT.LOAD for segment in open_elf(one).segments) for one in (result, changed)]
        assert loads[0] == loads[1]
    for other in STRIPPERS:
        if (other, kind) not in REFUSED:
            apply_tool(other, result, again, peers)
            run(again, kind, compile_c)


def test_sections_by_others_are_removed_by_force_alone(compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    by_ld = Path(shutil.copy2(compile_c(PROGRAM, "-O2", "-Wa,--gsframe", peer_binutils=True), tmp_path / "by-ld"))
    data, section = by_ld.read_bytes(), sframe_bytes(by_ld)
    printed = subprocess.run([by_ld], check=True, capture_output=True).stdout
    result = remove(by_ld)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "use --force to remove it" in result.stderr
    assert by_ld.read_bytes() == data
    result = remove("--force", by_ld)
    assert (result.exit_code, result.stderr) == (0, "")
    assert_nothing_is_left(by_ld)
    assert section not in by_ld.read_bytes()
    assert subprocess.run([by_ld], check=True, capture_output=True).stdout == printed
    assert subprocess.run([peers.tool("readelf"), "-a", by_ld], check=True, capture_output=True, text=True).stderr == ""


ORIGINAL = small_file()


def header_with(**changes: Any) -> tuple[int, bytes]:
    return 0, with_header(ORIGINAL, **changes)[:64]


def text_offset() -> int:
    text = section_named(ElfFile(memoryview(ORIGINAL)), ".text")
    return text.header.sh_offset


LIES = {  # size and bytes that a record claims to give back
    "ten bytes": (10, []),
    "no ELF file": (len(ORIGINAL), [(0, b"not ELF")]),
    "a part": (text_offset() + 8, [(0, ORIGINAL[:0x200])]),
    "another entry": (len(ORIGINAL), [header_with(e_entry=7), (64, ORIGINAL[64:0x200])]),
    "no segments": (len(ORIGINAL), [header_with(e_phnum=0)]),
    "other code": (len(ORIGINAL), [(0, ORIGINAL[:0x200]), (text_offset(), b"\xcc" * 4)]),
    "another address": (len(ORIGINAL), [(0, ORIGINAL[:64]), (64, ORIGINAL[64:0x200].replace(b"\0\x10\0", b"\0\x20\0"))]),
}


@for_each("lie", LIES)
def test_a_record_that_lies(lie: str, tmp_path: Path) -> None:
    """Its checksum is right. The section is taken out as if there were no record."""
    size, old = LIES[lie]
    changed = inject_bytes(ORIGINAL)
    record = undo_record.read_verified(memoryview(changed))
    assert record is not None
    body = changed[: record.start]
    lying = undo_record.UndoRecord(size, old, record.start, tuple(gap for gap in record.gaps if gap.at < size))
    data = body + undo_record.encode_record(lying, [body[start:end] for start, end in lying.covered])
    assert undo_record.read_verified(memoryview(data)) is not None
    file = tmp_path / "file"
    file.write_bytes(data)
    assert not sframegen.remove(file).restored
    assert_nothing_is_left(file)
    before, after = ElfFile(memoryview(data)), open_elf(file)
    assert len(after.data) == len(data)
    assert after.header.e_entry == before.header.e_entry
    assert after.data[text_offset() : text_offset() + 16] == before.data[text_offset() : text_offset() + 16]


def test_headers_that_call_code_a_section_are_all_that_goes(tmp_path: Path) -> None:
    elf = ElfFile(memoryview(ORIGINAL))
    text = section_named(elf, ".text")
    place = (text.header.sh_offset, text.header.sh_addr, text.header.sh_addr, 16, 16)
    number = next(n for n, s in enumerate(elf.segments) if s.p_type == 4)  # the build-id's
    data = bytearray(ORIGINAL)
    RECORDS[Phdr, "little"].pack_into(data, 64 + number * 56, PT.GNU_SFRAME, 4, *place, 8)
    data[text.header.sh_offset : text.header.sh_offset + 2] = b"\xe2\xde"
    file = tmp_path / "file"
    file.write_bytes(data)
    assert sframegen.remove(file, force=True).plan is not None
    data[64 + number * 56 : 64 + number * 56 + 56] = bytes(56)
    assert file.read_bytes() == data


def test_nothing_to_remove(compile_c: Compiler, tmp_path: Path) -> None:
    file = Path(shutil.copy2(compile_c(SOURCE, *FLAGS, *KINDS["pie"]), tmp_path / "file"))
    before = file.stat()
    result = remove(file)
    assert (result.exit_code, result.output) == (0, f"{file}: no SFrame section: nothing to remove\n")
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert remove("-q", "-o", tmp_path / "other", file).output == ""
    assert (tmp_path / "other").read_bytes() == file.read_bytes()


def test_output_and_dry_run_leave_the_file_alone(compile_c: Compiler, tmp_path: Path) -> None:
    original = compile_c(SOURCE, *FLAGS, *KINDS["pie"])
    file = added(original, tmp_path)
    data = file.read_bytes()
    result = remove("--dry-run", "-o", tmp_path / "other", file)
    size = original.stat().st_size
    assert result.stdout == f"{file}: as it was before add-section; {len(data):,} -> {size:,} bytes\n"
    assert [path.name for path in tmp_path.iterdir()] == ["added"]
    [document] = json.loads(remove("--json", "-o", tmp_path / "new", file).stdout)
    assert (document["restored"], document["output"], document["size"]) == (True, str(tmp_path / "new"), size)
    assert (tmp_path / "new").read_bytes() == original.read_bytes()
    assert file.read_bytes() == data
    file.write_bytes(data + b"\0")
    result = remove("--dry-run", file)
    assert "taken out" in result.stdout
    assert "written over: 0x40 bytes at offset 0x0" in result.stdout.splitlines()
    assert json.loads(remove("--json", "--dry-run", file).stdout)[0]["plan"] == result.stdout.splitlines()[1:]
    assert file.read_bytes() == data + b"\0"


def test_several_files_and_hard_links(compile_c: Compiler, tmp_path: Path) -> None:
    original = compile_c(SOURCE, *FLAGS, *KINDS["pie"])
    file, other = added(original, tmp_path), tmp_path / "other"
    other.hardlink_to(file)
    (tmp_path / "text").write_text("no ELF file")
    result = invoke("remove", "-j2", file, tmp_path / "text", other)
    assert (result.exit_code, len(result.stdout.splitlines()), len(result.stderr.splitlines())) == (1, 1, 1)
    assert file.samefile(other)
    assert file.read_bytes() == original.read_bytes()


@pytest.mark.verification_fails
@for_each("spoil", [0x20, 0x1010, -1])
def test_verification_stops_what_went_wrong(
    spoil: int, compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = added(compile_c(SOURCE, *FLAGS, *KINDS["pie"]), tmp_path)
    data = file.read_bytes()

    def write_all(elf: ElfFile, change: apply.Change, out: BinaryIO, **options: Any) -> None:
        apply.write_changed_file(elf, change, out, **options)
        out.seek(spoil, 2 if spoil < 0 else 0)
        out.write(b"?")

    monkeypatch.setattr("sframegen.api.removing.write_changed_file", write_all)
    result = remove(file)
    assert result.exit_code == 1
    assert "verification failed, nothing was changed" in result.stderr
    assert file.read_bytes() == data


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(with_header(ORIGINAL, e_type=4))
    with pytest.raises(FormatError, match="neither a program nor a library"):
        sframegen.remove(file)


# -- the undo record: what it covers and holds, and limits of what is read

BYTES = bytes(range(100))
GAPS = (Gap(0, 16), Gap(40, 8))


def test_the_last_of_overlapping_writes_counts() -> None:
    writes = [Write(10, b"aaaa"), Write(30, b"c"), Write(12, b"bbbb"), Write(31, b"d"), Write(11, b"x")]
    assert [(at, bytes(data)) for at, data in undo_record.merge_writes(writes)] == [(10, b"axbbbb"), (30, b"c"), (31, b"d")]


@for_each("size", [ZERO_CHUNK - 1, ZERO_CHUNK, ZERO_CHUNK + 1, 2 * ZERO_CHUNK + 1])
def test_a_large_hole_comes_in_chunks(size: int) -> None:
    chunks = list(undo_record.fill_holes_with_zeros(7, [], 7 + size))
    assert sum(map(len, chunks)) == size
    assert max(map(len, chunks)) <= ZERO_CHUNK


def made(writes: list[Write], gaps: tuple[Gap, ...] = (), start: int | None = None) -> bytes:
    new = bytearray()
    for at, byte in enumerate(BYTES):
        new += bytes(sum(gap.size for gap in gaps if gap.at == at)) + bytes([byte])
    for offset, data in writes:
        new += bytes(max(0, offset + len(data) - len(new)))
        new[offset : offset + len(data)] = data
    new += bytes(max(0, (start or 0) - len(new)))
    return bytes(new) + undo_record.make_record(memoryview(BYTES), writes, gaps, start)


WRITES = [Write(3, b"gap"), Write(20, b"old"), Write(16 + 41, b"in"), Write(16 + 8 + 100, b"after")]


@for_each("start", [None, 150])
def test_a_record_is_read_back(start: int | None) -> None:
    changed = made(WRITES, GAPS, start)
    found = undo_record.read_verified(memoryview(changed))
    assert found == UndoRecord(100, [(4, BYTES[4:7])], start or 129, GAPS)
    assert found.parts == [FilePart(16, 0, 40), FilePart(64, 40, 60)]
    assert found.covered == [(20, 23), (0, 16), (56, 64), (124, start or 129)]
    size = undo_record.compute_record_size(
        undo_record.find_overwritten_ranges(100, [(at, len(data)) for at, data in WRITES], GAPS), GAPS
    )
    assert size == len(changed) - found.start


def test_a_change_of_what_is_covered_spoils_the_record() -> None:
    good = made(WRITES, GAPS)
    covered, elsewhere = (0, 15, 20, 22, 56, 63, 124, 128), (16, 19, 23, 55, 64, 123)
    for place in (*covered, *elsewhere, *range(129, len(good))):  # the record itself, too
        changed = bytearray(good)
        changed[place] ^= 1
        assert place >= 129 or undo_record.read_unverified(memoryview(changed)) is not None
        assert (undo_record.read_verified(memoryview(changed)) is not None) == (place in elsewhere), place


def trailer(body: bytes, *, original_size: int = 0, count: int = 0, size: int | None = None) -> memoryview:
    size = len(body) + TRAILER.size if size is None else size
    return memoryview(body + TRAILER.pack(original_size, count, 0, size, undo_record.MAGIC))


def test_a_record_is_within_its_file() -> None:
    data = bytes(10)
    for size in (TRAILER.size, TRAILER.size + 10):
        assert undo_record.read_unverified(trailer(data, size=size)) == UndoRecord(0, [], 10 + TRAILER.size - size)
    for size in (0, TRAILER.size - 1, TRAILER.size + 11):
        assert undo_record.read_unverified(trailer(data, size=size)) is None
    assert undo_record.read_unverified(trailer(data, original_size=10, size=TRAILER.size)) is not None
    assert undo_record.read_unverified(trailer(data, original_size=11, size=TRAILER.size)) is None
    assert undo_record.read_unverified(trailer(b"")[1:]) is None


@for_each(("offset", "length"), [(97, 3), (98, 3), (0, 4)])
def test_an_entry_is_within_the_record_and_the_original(offset: int, length: int) -> None:
    body = ENTRY.pack(offset, length) + b"abc"
    found = undo_record.read_unverified(memoryview(bytes(100) + bytes(trailer(body, original_size=100, count=1))))
    assert found == (UndoRecord(100, [(97, b"abc")], 100) if (offset, length) == (97, 3) else None)
    for count in (0, 2):
        other = undo_record.read_unverified(memoryview(bytes(100) + bytes(trailer(body, original_size=100, count=count))))
        assert other == (None if count else UndoRecord(100, [], 100))


def test_the_number_of_entries_has_a_limit() -> None:
    body = ENTRY.pack(0, 0) * (MAX_RANGES + 1)
    assert undo_record.read_unverified(trailer(body, count=MAX_RANGES)) is not None
    assert undo_record.read_unverified(trailer(body, count=MAX_RANGES + 1)) is None
