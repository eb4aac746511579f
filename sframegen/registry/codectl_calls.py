"""The system call codectl: registers code of an ELF file or code made at run time, and unregisters either."""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.registry.interface import refuse_call, text_range
from sframegen.registry.jit_tables import JitDescriber
from sframegen.registry.regions import CodeObject, Region, RegistryError, SectionDescriber
from sframegen.registry.structures import CodeElfInfo, CodeJitInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.registry.interface import Caller

PATH_MAX = 4096  # bytes, with the zero at the end
MAX_BUILD_ID = 64  # bytes: SHA-512


class CodeOption(IntEnum):
    REGISTER_ELF = 0
    REGISTER_JIT = 1
    UNREGISTER = 2


def codectl(caller: Caller, option: int, info: int, info_size: int, flags: int = 0) -> list[Region]:
    """Return the regions that were added or removed.

    `info`: the address of a structure of `info_size` bytes; to unregister, the text_start itself.

    Raises RegistryError: EINVAL for an unknown option or a flag, and what the option's function raises.
    """
    if flags or option not in OPTIONS:
        refuse_call(f"option {option}, flags {flags:#x}")
    return OPTIONS[CodeOption(option)](caller, info, info_size)


def _register_elf(caller: Caller, address: int, size: int) -> list[Region]:
    info = caller.copy_struct(CodeElfInfo, address, size)
    start, end = text_range(info.text_start, info.text_end)
    if not info.elf_start <= start < end <= info.elf_end:
        refuse_call("code outside of the object")
    section = caller.section(info.sframe_start, info.sframe_end - info.sframe_start)
    code_object = CodeObject(
        info.elf_start,
        info.elf_end,
        _string(caller, info.pathname),
        _build_id(caller, info),
        _string(caller, info.debug_link_pathname),
        info.debug_link_crc,
    )
    return [caller.registry.register(Region(start, end, ("codectl", start), SectionDescriber(section), code_object))]


def _register_jit(caller: Caller, address: int, size: int) -> list[Region]:
    info = caller.copy_struct(CodeJitInfo, address, size)
    start, end = text_range(info.text_start, info.text_end)
    if not info.unwind_head:
        refuse_call("no table")
    describer = JitDescriber(caller.memory, info, caller.abi)
    try:
        describer.refresh()
    except FormatError as error:
        refuse_call(str(error))
    return [caller.registry.register(Region(start, end, ("codectl", start), describer))]


def _unregister(caller: Caller, text_start: int, size: int) -> list[Region]:
    if size:
        refuse_call("there is no structure to unregister by")
    return caller.registry.unregister(("codectl", text_start))


OPTIONS: dict[CodeOption, Callable[[Caller, int, int], list[Region]]] = {
    CodeOption.REGISTER_ELF: _register_elf,
    CodeOption.REGISTER_JIT: _register_jit,
    CodeOption.UNREGISTER: _unregister,
}


def _string(caller: Caller, address: int) -> bytes | None:
    """Return a string in memory, read page by page: the next page may be unmapped."""
    if not address:
        return None
    text = b""
    while len(text) < PATH_MAX:
        at = address + len(text)
        piece = caller.read(at, min(4096 - at % 4096, PATH_MAX - len(text)))
        text += piece
        if b"\0" in piece:
            return text.partition(b"\0")[0]
    raise RegistryError(errno.ENAMETOOLONG, f"no end within {PATH_MAX} bytes")


def _build_id(caller: Caller, info: CodeElfInfo) -> bytes | None:
    if info.build_id_len > MAX_BUILD_ID or bool(info.build_id) != bool(info.build_id_len):
        refuse_call(f"a build-id of {info.build_id_len} bytes at {info.build_id:#x}")
    return caller.read(info.build_id, info.build_id_len) if info.build_id else None
