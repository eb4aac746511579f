"""Writes CFI sections byte by byte, for cases that no assembler makes."""

from __future__ import annotations

from cfi.section import CfiSection

DEF_CFA_RSP_8 = bytes([0x0C, 7, 8])
RA_AT_CFA_MINUS_8 = bytes([0x90, 1])
INITIAL = DEF_CFA_RSP_8 + RA_AT_CFA_MINUS_8


def uleb(value: int) -> bytes:
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value >> 7 else 0))
        value >>= 7
        if not value:
            return bytes(out)


def sleb(value: int) -> bytes:
    out = bytearray()
    while True:
        byte = value & 0x7F
        value >>= 7
        if value == -(byte >> 6):
            return bytes([*out, byte])
        out.append(byte | 0x80)


def assembled(*fdes: tuple[int, str], flags: str = "a") -> str:
    """.eh_frame in the assembly of x86-64: (pointer encoding, start and size) of each FDE."""
    lines = [f'.section .eh_frame,"{flags}",@progbits']
    entries = {
        f"cie{encoding}": f'0; .byte 1; .asciz "zR"; .byte 1, 0x78, 16, 1, {encoding}, 12, 7, 8, 0x90, 1' for encoding, _ in fdes
    }
    entries |= {f"fde{number}": f".-cie{encoding}; {pointers}; .byte 0" for number, (encoding, pointers) in enumerate(fdes)}
    lines += [f"{name}: .long {name}end-.-4, {body}; .balign 8; {name}end:" for name, body in entries.items()]
    return "\n".join([*lines, ""])


class Frames:
    """A section in the making: `cie` and `fde` return the entry's offset."""

    def __init__(self, *, eh: bool = True, big: bool = False, dwarf64: bool = False, address: int = 0x1000) -> None:
        self.eh, self.big, self.dwarf64, self.address = eh, big, dwarf64, address
        self.data = bytearray()
        self.augmented: dict[int, bool] = {}

    def number(self, value: int, width: int) -> bytes:
        return (value & ((1 << 8 * width) - 1)).to_bytes(width, "big" if self.big else "little")

    def entry(self, pointer: int, body: bytes) -> int:
        start = len(self.data)
        width = 8 if self.dwarf64 and not self.eh else 4
        body += bytes(-(len(body) + width) % 8)  # DW_CFA_nop
        self.data += (
            self.number(0xFFFFFFFF, 4) + self.number(len(body) + width, 8) if self.dwarf64 else self.number(len(body) + width, 4)
        )
        if self.eh and pointer >= 0:
            pointer = len(self.data) - pointer
        self.data += self.number((0 if self.eh else -1) if pointer == -1 else pointer, width) + body
        return start

    def cie(
        self,
        program: bytes = INITIAL,
        *,
        version: int = 1,
        augmentation: str = "",
        data: bytes = b"",
        code_alignment: int = 1,
        data_alignment: int = -8,
        ra: int = 16,
        segment_size: int = 0,
    ) -> int:
        body = bytes([version]) + augmentation.encode() + b"\0"
        if version >= 4:
            body += bytes([8, segment_size])
        body += uleb(code_alignment) + sleb(data_alignment) + (bytes([ra]) if version == 1 else uleb(ra))
        if augmentation.startswith("z"):
            body += uleb(len(data)) + data
        start = self.entry(-1, body + program)
        self.augmented[start] = augmentation.startswith("z")
        return start

    def fde(self, cie: int, start: bytes, size: bytes, program: bytes = b"", data: bytes = b"") -> int:
        """`start` and `size` as they stand in the file, in the CIE's encoding."""
        return self.entry(cie, start + size + ((uleb(len(data)) + data) if self.augmented[cie] else b"") + program)

    def plain_fde(self, cie: int, start: int, size: int, program: bytes = b"") -> int:
        """With 8-byte addresses, as a CIE without augmentation R wants them."""
        return self.fde(cie, self.number(start, 8), self.number(size, 8), program)

    def section(self) -> CfiSection:
        name = ".eh_frame" if self.eh else ".debug_frame"
        return CfiSection(name, bytes(self.data), self.address if self.eh else 0, "big" if self.big else "little", self.eh)
