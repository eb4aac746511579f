"""Finds the debug file of a stripped file, which has its other symbols, on this machine or inside the file itself."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile
from sframegen.elf.notes import build_id_of, debug_link_of
from sframegen.elf.records import SHT
from sframegen.stack.live.open_aside import open_elf_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Fetch = Callable[[bytes], ElfFile | None]  # gets a build-id

DIRECTORY = "/usr/lib/debug"
MAX_CRC = 1 << 30  # bytes that are read for the CRC of .gnu_debuglink
MAX_MINI = 1 << 25  # bytes of .gnu_debugdata, expanded
MAX_XZ_MEMORY = 1 << 27


class DebugFiles:
    """Finds the separate debug file of a file: with the same build-id, or, without one, with the CRC of .gnu_debuglink."""

    def __init__(self, fetch: Fetch | None = None, directory: str = DIRECTORY) -> None:
        """`fetch`: gets a debug file by build-id, called if this machine has none."""
        self._fetch = fetch
        self._directory = directory
        self._known: WeakKeyDictionary[ElfFile, ElfFile | None] = WeakKeyDictionary()

    def find(self, elf: ElfFile) -> ElfFile | None:
        if elf not in self._known:
            try:
                self._known[elf] = self._search(elf)
            except FormatError:  # in its notes, or its link
                self._known[elf] = None
        return self._known[elf]

    def _search(self, elf: ElfFile) -> ElfFile | None:
        build_id = build_id_of(elf)
        for place in self._paths(elf, build_id):
            debug = self._open_candidate(*place)
            if debug is not None and self._matches(elf, debug):
                return debug
        debug = self._fetch(build_id) if build_id and self._fetch else None
        return debug if debug is not None and build_id_of(debug) == build_id else None

    def _paths(self, elf: ElfFile, build_id: bytes | None) -> Iterator[tuple[str, str]]:
        """Yield the directory and the name of each file that may be the debug file."""
        if build_id:
            yield f"{self._directory}/.build-id/{build_id.hex()[:2]}", f"{build_id.hex()[2:]}.debug"
        link = debug_link_of(elf)
        if link and elf.name.startswith("/"):
            own, name = elf.name.rpartition("/")[0], link[0].rpartition("/")[2]
            yield from ((own, name), (f"{own}/.debug", name), (f"{self._directory}{own}", name))

    def _open_candidate(self, directory: str, name: str) -> ElfFile | None:
        try:
            debug, is_copy = open_elf_aside(directory, f"{directory}/{name}")
        except (OSError, FormatError, ValueError):  # ValueError: the name has a zero byte
            return None
        return ElfFile(debug.data, debug.name) if is_copy else debug  # of a copy, nothing is kept for the file

    def _matches(self, elf: ElfFile, debug: ElfFile) -> bool:
        from sframegen.conversion.sources import belongs  # noqa: PLC0415 - most files have no such file

        try:
            if build_id_of(elf):
                return build_id_of(elf) == build_id_of(debug)
            return len(debug.data) <= MAX_CRC and debug_link_of(elf) is not None and belongs(elf, debug)
        except FormatError:
            return False


def has_all_symbols(elf: ElfFile) -> bool:
    return any(section.header.sh_type == SHT.SYMTAB for section in elf.sections)


def mini_debug_file(elf: ElfFile) -> ElfFile | None:
    """Return the ELF file in .gnu_debugdata (xz), where Fedora keeps symbols that a file does not export; None without one."""
    section = elf.section(".gnu_debugdata")
    if section is None:
        return None
    try:
        import lzma  # noqa: PLC0415 - few files need it, and not every Python has it
    except ImportError:
        return None
    try:
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_MEMORY)
        data = decompressor.decompress(bytes(elf.contents(section)), MAX_MINI)
        return ElfFile(memoryview(data), elf.name) if decompressor.eof else None
    except (lzma.LZMAError, FormatError):
        return None
