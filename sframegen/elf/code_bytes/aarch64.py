"""AArch64: padding and calls. Instructions are little-endian under both byte orders."""

from __future__ import annotations

from sframegen.elf.code_bytes.forms import Call, CodeBytes, Fill


def _instruction(mask: int, value: int) -> Call:
    """A call's four bytes, the lowest first."""
    return Call(int.from_bytes(mask.to_bytes(4, "little"), "big"), int.from_bytes(value.to_bytes(4, "little"), "big"))


CODE_BYTES = CodeBytes(
    Fill(alone=(bytes(4), b"\x1f\x20\x03\xd5")),  # zeros; nop
    (_instruction(0xFC000000, 0x94000000), _instruction(0xFEFFF000, 0xD63F0000)),  # bl; blr, also with authentication
)
