"""The objects that a process has loaded, with the sections that describe their code, cached while its memory is the same.

An object's section is that of its PT_GNU_SFRAME in memory, else an unloaded section of its file, else a detached one of a store. If
sections are to be made (`--convert`), an object without one becomes pending: `convert_pending` makes it from the object's call
frame information, in our memory. Where that has no rule for some code, the object becomes pending once more, and rules are proven
from its instructions. Answers are the results of look-ups by PC, which are dropped whenever the loaded objects change.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from sframegen.base.errors import FormatError
from sframegen.detached.detached_file import ADDRESS
from sframegen.detached.stores import Stores
from sframegen.elf.records import PT
from sframegen.format.abi import Abi, abi_of
from sframegen.format.decode import SframeSection, open_section
from sframegen.format.locate import find_unloaded_section
from sframegen.stack.mappings import Mapping, Mappings
from sframegen.stack.objects.loaded_image import LoadedImage, file_identity, read_identity, read_loaded_image
from sframegen.stack.snapshot import MovedCode, Snapshot
from sframegen.stack.walking.frames import End, RuleSource

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from sframegen.elf.file import ElfFile, Section
    from sframegen.format.model import Match
    from sframegen.stack.objects.go_ends import StackEnd
    from sframegen.stack.walking.walk import CodeRule

# By PC: the answers for the call before it, and those for the instruction there.
Answers: TypeAlias = "tuple[dict[int, CodeRule | End], dict[int, CodeRule | End]]"
CHECKED_SECTION = 64  # bytes at the start of a section by which it is recognised
MAX_SECTION = 1 << 28  # bytes, because readable memory can be sparse and endless
MAX_SECTIONS = 1 << 30  # bytes of all loaded sections, because a file can be mapped many times


class LoadedObject:
    """The code in one executable mapping, and the section that describes it."""

    def __init__(self, row: Mapping, image: LoadedImage | None, read: Callable[[int, int], bytes]) -> None:
        """`read(address, size)`: returns bytes of the process's memory."""
        self.row = row
        self._read = read
        self.image = image  # None for code without an ELF file
        self.section: SframeSection | None = None
        self.section_bytes = 0  # bytes of its section in our memory
        self.how = RuleSource.SFRAME  # where the section comes from
        self.damage = ""  # why the section cannot be used
        self.conversion_tried = False  # also True for an object that has a section of its own
        self.proven: SframeSection | None = None  # rules proven from its instructions, used where `section` has none
        self.proof_tried = False

    @property
    def name(self) -> str:
        return self.image.row.path if self.image else self.row.path

    @property
    def bias(self) -> int:
        return self.image.bias if self.image else 0

    @property
    def file(self) -> ElfFile | None:
        return self.image.file if self.image else None

    def code(self, pc: int, size: int) -> bytes:
        """Return bytes of code at a run-time address, from the file or, without one, from memory; none if they cannot be read."""
        try:
            return bytes(self.file.at(pc - self.bias, size)) if self.file else self._read(pc, size)
        except FormatError:
            return b""

    @cached_property
    def _ends(self) -> list[StackEnd]:
        try:
            from sframegen.stack.objects.go_ends import find_go_ends  # noqa: PLC0415 - takes longer than many stacks

            return sorted(find_go_ends(self.file, abi_of(self.file))) if self.file else []
        except FormatError:
            return []

    def end_at(self, pc: int) -> End | None:
        """Return why a walk ends at `pc` whatever its rule is, because Go's runtime leaves the stack there; None elsewhere."""
        end = next((end for end in self._ends if end.start <= pc - self.bias < end.end), None)
        return end and (End.OTHER_STACK if end.other_stack else End.OUTERMOST)

    def look_up(self, pc: int) -> Match | None:
        """Return the function and row that the section has at a PC. Raises FormatError if the section is damaged."""
        if self.damage:
            raise FormatError(self.damage)
        return self.section.look_up(pc) if self.section else None


class LoadedObjects:
    """All objects that a process has loaded, read on demand."""

    def __init__(self, *, convert: bool = False, stores: Stores | None = None) -> None:
        """`convert`: make sections in our memory for objects that have none, from their call frame information.

        `stores`: detached sections, which are looked for before an object is converted.
        """
        self._stores = stores or Stores()
        self._converts = convert
        self._converted: dict[tuple[Hashable, bool], memoryview | None] = {}  # by file, and whether with proven rules
        if convert:
            import sframegen.code.whole_file.proven_code  # noqa: F401, PLC0415 - before a process is stopped, as it is slow
        self.pending: list[LoadedObject] = []  # to be converted while the process runs
        self._room = MAX_SECTIONS  # bytes that further sections may take
        self.moved = MovedCode()  # which objects the code in anonymous memory is of
        self._loaded: dict[Mapping, LoadedObject] = {}
        self._snapshot: Snapshot | None = None
        self._mappings = Mappings()
        self.answers: Answers = ({}, {})

    def prepare(self, snapshot: Snapshot) -> None:
        """Read all loaded objects while the process still runs, to stop it for a shorter time. Then stop it and call `verify`."""
        self.use_snapshot(snapshot)
        for row in snapshot.mappings:
            if row not in self._loaded:
                self._load(row)

    def verify(self, snapshot: Snapshot) -> None:
        """Use a snapshot of a later moment, and forget objects whose memory now has other bytes."""
        self.use_snapshot(snapshot)
        for row, loaded in list(self._loaded.items()):
            if loaded.image and any(snapshot.memory.read(at, max(len(data), 1)) != data for at, data in loaded.image.checked_bytes):
                self._forget(row)
                self._forget_answers()

    def use_snapshot(self, snapshot: Snapshot) -> None:
        """Use a snapshot of the same moment as the last one, or one that `verify` is called for later."""
        self._snapshot = snapshot
        if snapshot.mappings is not self._mappings:
            self._mappings = snapshot.mappings
            for row in self._loaded.keys() - set(snapshot.mappings):
                self._forget(row)
            self._forget_answers()

    def convert_pending(self) -> bool:
        """Convert the pending objects. Return True if there were any."""
        pending, self.pending = self.pending, []
        for loaded in pending:
            self._convert(loaded)
        return bool(pending)

    def known_at(self, address: int) -> LoadedObject | None:
        """Return the object at an address if it was already loaded; None otherwise."""
        row = self._mappings.find(address)
        return self._loaded.get(row) if row else None

    def at(self, address: int) -> LoadedObject | None:
        """Return the object with code at an address, pending if it has no section; None outside of executable memory."""
        row = self._mappings.find(address)
        loaded = row and (self._loaded.get(row) or self._load(row))
        if loaded is not None and loaded.section is None and not loaded.conversion_tried:
            self._defer(loaded)
        return loaded

    def prove(self, loaded: LoadedObject) -> None:
        """Make the object pending, so that rules are proven from its instructions, unless that was tried before."""
        if not loaded.proof_tried:
            self._defer(loaded)

    def _defer(self, loaded: LoadedObject) -> None:
        if self._converts and loaded not in self.pending:
            self.pending.append(loaded)

    def _forget_answers(self) -> None:
        for answers in self.answers:  # cleared, not replaced, because a walk may be using them
            answers.clear()

    def _forget(self, row: Mapping) -> None:
        self._room += self._loaded.pop(row).section_bytes

    def _load(self, row: Mapping) -> LoadedObject | None:
        assert self._snapshot is not None
        if not row.executable:
            return None
        loaded = LoadedObject(row, read_loaded_image(self._snapshot, row, self.moved), self._snapshot.memory.read)
        self._read_section(loaded)
        self._loaded[row] = loaded
        return loaded

    def _read_section(self, loaded: LoadedObject) -> None:
        """Read the section from memory at PT_GNU_SFRAME, as a kernel would, or an unloaded section from the file.

        If the object has neither, the stores are searched.
        """
        image, snapshot = loaded.image, self._snapshot
        if image is None or snapshot is None:
            return
        segment = next((segment for segment in image.segments if segment.p_type == PT.GNU_SFRAME and segment.p_filesz), None)
        if segment is None:
            if not self._read_unloaded(loaded, image, snapshot.abi):
                self._read_detached(loaded, image, snapshot)
            return
        address, size = image.address(segment.p_vaddr), segment.p_filesz
        section_row = snapshot.mappings.find(address)
        if section_row is None or section_row.file != image.row.file:
            return  # only the code is mapped here, as by V8, which copies its functions near to the code that it makes
        loaded.conversion_tried = True
        head = snapshot.memory.read(address, min(size, CHECKED_SECTION))
        image.checked_bytes.append((address, head if len(head) == min(size, CHECKED_SECTION) else b""))  # ld.so may map it later
        try:
            self._set_section(loaded, _open_in_memory(snapshot, address, size, self._room), size)
        except FormatError as error:
            loaded.damage = str(error)

    def _read_unloaded(self, loaded: LoadedObject, image: LoadedImage, abi: Abi) -> bool:
        """Read an unloaded section from the mapped file. Return False if there is none, or the file cannot be opened."""
        file = image.file
        section = find_unloaded_section(file) if file else None
        if file is None or section is None:
            return False
        loaded.conversion_tried = True
        try:
            data = _expand_section(file, section, self._room)
            self._set_section(loaded, _check_usable(open_section(data, image.address(section.header.sh_addr)), abi), len(data))
        except FormatError as error:
            loaded.damage = str(error)
        return True

    def _read_detached(self, loaded: LoadedObject, image: LoadedImage, snapshot: Snapshot) -> None:
        """Read the section from the first store that has it."""
        if not self._stores:
            return

        def open_copy(data: memoryview) -> SframeSection:
            if len(data) > self._room:
                raise FormatError(f"{len(data)} bytes are too many")
            return _check_usable(open_section(bytes(data), image.address(ADDRESS)), snapshot.abi)

        section = self._stores.find(read_identity(image, snapshot), open_copy)
        if section is not None:
            loaded.conversion_tried = True
            self._set_section(loaded, section, len(section.data))

    def _set_section(self, loaded: LoadedObject, section: SframeSection, size: int) -> None:
        loaded.section, loaded.section_bytes = section, size
        self._room -= size

    def _convert(self, loaded: LoadedObject) -> None:
        """Make a section from the object's CFI or, if that was tried before, from rules proven from its instructions."""
        proves = loaded.proof_tried = loaded.conversion_tried
        loaded.conversion_tried = True
        if not self._converts or loaded.file is None or loaded.damage:
            return
        from sframegen.code.whole_file.proven_code import make_section_from_cfi  # noqa: PLC0415 - see __init__

        key = file_identity(loaded.file), proves
        if key not in self._converted:
            self._converted[key] = make_section_from_cfi(loaded.file, proves=proves)
        data = self._converted[key]
        section = None if data is None else open_section(data, loaded.bias)
        if proves:
            loaded.proven = section
        else:
            loaded.section, loaded.how = section, RuleSource.CONVERTED


def _open_in_memory(snapshot: Snapshot, address: int, size: int, room: int) -> SframeSection:
    """Open a section in memory. Raises FormatError if it is incomplete, cannot be searched, or has more than `room` bytes."""
    if size > min(MAX_SECTION, room):
        raise FormatError(f"{size} bytes are too many", "PT_GNU_SFRAME")
    data = snapshot.memory.read(address, size) if snapshot.mappings.covers(address, size) else b""
    if len(data) != size:
        raise FormatError("not in readable memory", "PT_GNU_SFRAME")
    return _check_usable(open_section(data, address), snapshot.abi)


def _expand_section(file: ElfFile, section: Section, room: int) -> bytes:
    """Return a copy of the section's contents, because the file may be truncated later.

    Raises FormatError, before decompressing it, if it has more than `room` bytes.
    """
    size = file.contents_size(section)
    if size > min(MAX_SECTION, room):
        raise FormatError(f"{size} bytes are too many", section.name)
    return bytes(file.contents(section))


def _check_usable(section: SframeSection, abi: Abi) -> SframeSection:
    """Return the section. Raises FormatError if it is for another machine, or cannot be searched."""
    if section.abi.machine != abi.machine:
        raise FormatError(f"for {section.abi.name}", "SFrame section")
    _ = section.seeker  # evaluated because it raises FormatError for a section that cannot be searched
    return section
