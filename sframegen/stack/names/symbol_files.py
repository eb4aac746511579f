"""Finds the symbols that a stripped file lacks: in its separate debug file, or in a compressed ELF file that it contains."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sframegen.base.errors import FormatError
from sframegen.elf.file import ElfFile
from sframegen.elf.notes import read_build_id, read_debug_link
from sframegen.elf.records import SHT
from sframegen.stack.live.open_aside import open_elf_aside

if TYPE_CHECKING:
    from collections.abc import Iterator

DEBUG_DIRECTORY = "/usr/lib/debug"
MAX_CRC_BYTES = 1 << 30  # bytes that are read for the CRC of .gnu_debuglink
MAX_MINI_DEBUG_BYTES = 1 << 25  # of .gnu_debugdata after decompression
MAX_XZ_MEMORY = 1 << 27


class DebugFiles:
    """Finds the separate debug file of a file: the one with the same build-id or, without one, with the CRC of .gnu_debuglink.

    Files that a debuginfod client has already fetched are found too, but nothing is fetched.
    """

    def __init__(self, directory: str = DEBUG_DIRECTORY) -> None:
        self._directory = directory
        self._debug_files: WeakKeyDictionary[ElfFile, ElfFile | None] = WeakKeyDictionary()  # by the stripped file

    def find(self, elf: ElfFile) -> ElfFile | None:
        if elf not in self._debug_files:
            try:
                self._debug_files[elf] = self._search(elf)
            except FormatError:  # its notes or its .gnu_debuglink are damaged
                self._debug_files[elf] = None
        return self._debug_files[elf]

    def _search(self, elf: ElfFile) -> ElfFile | None:
        for directory, name in self._candidate_paths(elf, read_build_id(elf)):
            debug = self._open_candidate(directory, name)
            if debug is not None and self._matches(elf, debug):
                return debug
        return None

    def _candidate_paths(self, elf: ElfFile, build_id: bytes | None) -> Iterator[tuple[str, str]]:
        """Yield the directory and the name of each path at which the debug file may be."""
        if build_id:
            yield f"{self._directory}/.build-id/{build_id.hex()[:2]}", f"{build_id.hex()[2:]}.debug"
        link = read_debug_link(elf)
        if link and elf.name.startswith("/"):
            folder, name = elf.name.rpartition("/")[0], link[0].rpartition("/")[2]
            yield from ((folder, name), (f"{folder}/.debug", name), (f"{self._directory}{folder}", name))
        if build_id and (fetched := debuginfod_cache()):
            yield f"{fetched}/{build_id.hex()}", "debuginfo"

    def _open_candidate(self, directory: str, name: str) -> ElfFile | None:
        try:
            debug, is_copy = open_elf_aside(directory, f"{directory}/{name}")
        except (OSError, FormatError, ValueError):  # ValueError: the name has a zero byte
            return None
        return ElfFile(debug.data, debug.name) if is_copy else debug  # a copy lacks the status by which results are cached

    def _matches(self, elf: ElfFile, debug: ElfFile) -> bool:
        from sframegen.conversion.cfi_sections import is_debug_file_of  # noqa: PLC0415 - most files have no such file

        try:
            if read_build_id(elf):
                return read_build_id(elf) == read_build_id(debug)
            return len(debug.data) <= MAX_CRC_BYTES and read_debug_link(elf) is not None and is_debug_file_of(elf, debug)
        except FormatError:
            return False


def debuginfod_cache() -> str:
    """Return the directory in which debuginfod clients keep fetched files; empty for a user without a home directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - without pathlib, which takes longer
    folder = os.environ.get("DEBUGINFOD_CACHE_PATH") or f"{cache}/debuginfod_client"
    return folder if folder.startswith("/") else ""


def has_all_symbols(elf: ElfFile) -> bool:
    return any(section.header.sh_type == SHT.SYMTAB for section in elf.sections)


def load_mini_debug_file(elf: ElfFile) -> ElfFile | None:
    """Return the xz-compressed ELF file in .gnu_debugdata, in which Fedora keeps the symbols of functions; None without one."""
    section = elf.section(".gnu_debugdata")
    if section is None:
        return None
    try:
        import lzma  # noqa: PLC0415 - few files need it, and not every Python has it
    except ImportError:
        return None
    try:
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_MEMORY)
        data = decompressor.decompress(bytes(elf.contents(section)), MAX_MINI_DEBUG_BYTES)
        return ElfFile(memoryview(data), elf.name) if decompressor.eof else None
    except (lzma.LZMAError, FormatError):
        return None
