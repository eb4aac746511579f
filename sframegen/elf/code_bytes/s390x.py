"""s390x: padding and calls."""

from __future__ import annotations

from sframegen.elf.code_bytes.forms import Call, CodeBytes, Fill

CODE_BYTES = CodeBytes(
    Fill(
        alone=(
            bytes(2),
            *(bytes([0x07, register]) for register in range(16)),  # bcr 0, register
            b"\x47\x00\x00\x00",
            b"\xa7\x04\x00\x00",
            b"\xc0\x04\x00\x00\x00\x00",
        )
    ),
    (Call(0xFFFF_00000000, 0xC0E5_00000000), Call(0xFFFF0000, 0xA7E50000), Call(0xFFF0, 0x0DE0)),  # brasl, bras, basr
)
