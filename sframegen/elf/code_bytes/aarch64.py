"""AArch64: padding and calls. Instructions are little-endian under both byte orders."""

from __future__ import annotations

from sframegen.elf.code_bytes.forms import Call, CodeBytes, Fill, GoCode


def _instruction(mask: int, value: int) -> Call:
    """Return a call's pattern from its little-endian instruction word."""
    return Call(int.from_bytes(mask.to_bytes(4, "little"), "big"), int.from_bytes(value.to_bytes(4, "little"), "big"))


CODE_BYTES = CodeBytes(
    Fill(alone=(bytes(4), b"\x1f\x20\x03\xd5")),  # zeros; nop
    (_instruction(0xFC000000, 0x94000000), _instruction(0xFEFFF000, 0xD63F0000)),  # bl; blr, also with authentication
    # add sp, sp, x4; perhaps another; ret, br x5 or br x6
    rb"\xff\x63\x24\x8b(?:....)?(?:\xc0\x03\x5f\xd6|[\xa0\xc0]\x00\x1f\xd6)",
    GoCode(
        exit=rb"\0\0\0\0(\xe0\x03\x00\xaa...[\x94-\x97])(?=\0{4})",  # mov x0,x0; bl, alone
        # ldr x, [x28, #56]; mov sp, x; in gogo ldr x0, [x5]; mov sp, x0, and at last ldr x6, [x5, #8]; br x6
        switch=rb"\x40\xf9(?:[\x1f\x3f\x5f\x7f\x9f\xbf\xdf\xff][\x00-\x03]\x00\x91(?<=[\x80-\x9e]\x1f......)"
        rb"|\x1f\x00\x00\x91(?<=\xa0\x00......)(?=.{16,96}?\xa6\x04\x40\xf9\xc0\x00\x1f\xd6))",
        padding=bytes(8),
        # svc; cmp x0,xzr; b.eq; str; ret; in the new thread at last blr x0; mov w0,#111; mov x8,#93; svc; b
        new_thread=rb"\x01\0\0\xd4\x1f\0\x1f\xeb\x60\0\0\x54....\xc0\x03\x5f\xd6"
        rb"(.{32,160}?\0\0\x3f\xd6\xe0\x0d\x80\x52\xa8\x0b\x80\xd2\x01\0\0\xd4\xfe\xff\xff\x17)",
        alignment=16,
    ),
    # musl's clone: svc; cbz x0; ret; in the new thread perhaps mov x29,#0; then ldp x1,x0,[sp],#16; blr x1; mov x8,#93; svc
    rb"\x01\0\0\xd4\x40\0\0\xb4\xc0\x03\x5f\xd6((?:\x1d\0\x80\xd2)?\xe1\x03\xc1\xa8\x20\0\x3f\xd6\xa8\x0b\x80\xd2\x01\0\0\xd4)",
)
