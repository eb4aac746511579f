"""The requests of a dynamic loader for an object that it has loaded, through each interface."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError
from sframegen.elf.notes import build_id_of, debug_link_of
from sframegen.elf.records import PF, PT
from sframegen.registry.structures import CodeElfInfo, SframeSetup, encode, struct_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sframegen.elf.file import ElfFile
    from sframegen.elf.records import ByteOrder, Phdr


class LoadedSection(NamedTuple):
    """An object and its section, with addresses in the process. Its text goes from the first executable segment to the last."""

    name: str
    byte_order: ByteOrder
    elf_start: int
    elf_end: int
    text_start: int
    text_end: int
    sframe_start: int
    sframe_end: int
    build_id: bytes | None = None
    debug_link: bytes | None = None
    debug_link_crc: int = 0


def loaded_section(
    name: str, byte_order: ByteOrder, segments: Sequence[Phdr], bias: int = 0, file: ElfFile | None = None
) -> LoadedSection | None:
    """Return the section that PT_GNU_SFRAME names, with `bias` added to its addresses; None without one.

    `file`: has its build-id and debug link, if it can be opened. Raises FormatError for impossible segments.
    """
    section = [segment for segment in segments if segment.p_type == PT.GNU_SFRAME and segment.p_memsz][:1]
    if not section:
        return None
    loads = [segment for segment in segments if segment.p_type == PT.LOAD and segment.p_memsz]
    code = [load for load in loads if load.p_flags & PF.X]
    try:
        whole, text, sframe = _extent(loads, bias), _extent(code, bias), _extent(section, bias)
    except ValueError as error:
        raise FormatError(str(error), "program header table", None, name) from None
    link, crc = (file and debug_link_of(file)) or (None, 0)
    debug_link = None if link is None else os.fsencode(link)
    return LoadedSection(name, byte_order, *whole, *text, *sframe, build_id_of(file) if file else None, debug_link, crc)


def _extent(segments: list[Phdr], bias: int) -> tuple[int, int]:
    """Return the range from the start of the first segment to the end of the last. Raises ValueError."""
    if not segments:
        raise ValueError("no executable segment")
    end = bias + max(segment.p_vaddr + segment.p_memsz for segment in segments)
    if end > 1 << 64:
        raise ValueError("segments reach past the end of the address space")
    return bias + min(segment.p_vaddr for segment in segments), end


def by_sframe(loaded: LoadedSection, _address: int = 0) -> bytes:
    """Return struct sframe_setup."""
    setup = SframeSetup(
        loaded.sframe_start,
        loaded.sframe_end - loaded.sframe_start,
        loaded.text_start,
        loaded.text_end - loaded.text_start,
    )
    return encode(setup, loaded.byte_order)


def by_prctl(loaded: LoadedSection, _address: int = 0) -> bytes:
    """Return the three arguments. The key is the address of the code, which a loader knows when it unloads the object."""
    words = (loaded.text_start, loaded.sframe_start, loaded.sframe_end - loaded.sframe_start)
    return b"".join(word.to_bytes(8, loaded.byte_order) for word in words)


def by_codectl(loaded: LoadedSection, address: int = 0) -> bytes:
    """Return struct code_elf_info, and the bytes to which its pointers lead. `address`: where the structure will be."""
    texts = {
        "pathname": os.fsencode(loaded.name) + b"\0",
        "build_id": loaded.build_id or b"",
        "debug_link_pathname": loaded.debug_link + b"\0" if loaded.debug_link else b"",
    }
    pointers, after = {}, b""
    for name, text in texts.items():
        pointers[name] = address + struct_size(CodeElfInfo) + len(after) if text else 0
        after += text
    info = CodeElfInfo(
        loaded.elf_start, loaded.elf_end, loaded.text_start, loaded.text_end, loaded.sframe_start, loaded.sframe_end,
        **pointers, build_id_len=len(texts["build_id"]), debug_link_crc=loaded.debug_link_crc,
    )  # fmt: skip
    return encode(info, loaded.byte_order) + after


INTERFACES: dict[str, Callable[[LoadedSection, int], bytes]] = {
    "sframe": by_sframe,
    "prctl": by_prctl,
    "codectl": by_codectl,
}
