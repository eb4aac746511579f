"""The code patterns of each machine, by e_machine: padding, calls, code of runtimes and C libraries. forms.py has their meaning.

Each pattern begins with a fixed byte, which `re` finds quickly. A look-behind `(?<=...)` after it checks the bytes before it, such
as a prefix, and has a dot for most bytes that have already matched. Comments name the instructions of each line.
"""

from __future__ import annotations

from sframegen.elf.code_bytes.forms import CallPattern, CodeBytes, GoCode, PaddingPatterns
from sframegen.elf.records import MACHINE_NAMES

X86_64 = CodeBytes(
    padding=PaddingPatterns(
        unprefixed=(b"\x00", b"\xcc"),  # zeros; int3
        prefixed=(  # nop of one to eight bytes
            b"\x90",
            b"\x0f\x1f\x00",
            b"\x0f\x1f\x40\x00",
            b"\x0f\x1f\x44\x00\x00",
            b"\x0f\x1f\x80\x00\x00\x00\x00",
            b"\x0f\x1f\x84\x00\x00\x00\x00\x00",
        ),
        prefixes=b"\x66\x2e",  # data16, cs
    ),
    calls=(
        CallPattern(0xFF_00000000, 0xE8_00000000, relative=True),  # call, to a distance of four bytes
        CallPattern(0xFFF8, 0xFFD0),  # call *%r
        CallPattern(0xFFF8, 0xFF10),  # call *(%r)
        CallPattern(0xFFFF00, 0xFF1400),  # call *(%r,%r)
        CallPattern(0xFFFF07_00000000, 0xFF1405_00000000),  # call *n(,%r)
        CallPattern(0xFFFF_00000000, 0xFF15_00000000),  # call *n(%rip)
        CallPattern(0xFFF800, 0xFF5000),  # call *n(%r)
        CallPattern(0xFFFF0000, 0xFF540000),  # call *n(%r,%r)
        CallPattern(0xFFF8_00000000, 0xFF90_00000000),  # call *n(%r), where n has four bytes
        CallPattern(0xFFFF00_00000000, 0xFF9400_00000000),  # call *n(%r,%r), where n has four bytes
    ),
    eh_return=rb"\x48\x89\xcc(?:\xc3|\x59\xff\xe1)",  # mov %rcx,%rsp; then ret, or pop %rcx; jmp *%rcx
    go=GoCode(
        exit=rb"\xcc(\x90\xe8....\x90)(?=\xcc)",  # nop; call; nop, between int3
        switch=rb"\x8b(?:[\x60-\x63\x65-\x67]\x38(?<=[\x48\x49]...)"  # mov 56(%r),%rsp; 48 or 49 is the prefix before 8b
        rb"|\x5a\x38\x48\x89\xdc(?<=\x48......)"  # mov 56(%rdx),%rbx; mov %rbx,%rsp
        rb"|\x23(?<=\x48..)(?=.{8,96}?\x48\x8b\x5b\x08\xff\xe3))",  # gogo: mov (%rbx),%rsp ... mov 8(%rbx),%rbx; jmp *%rbx
        padding=b"\xcc\xcc",
        # syscall; cmp $0,%rax or test %rax,%rax; je; mov %eax,n(%rsp); ret; in the new thread mov %rsi,%rsp ... call *%r12;
        # mov $111,%edi; mov $60,%eax; syscall; jmp
        new_thread=rb"\x0f\x05\x48(?:\x83\xf8\x00|\x85\xc0)\x74\x05\x89\x44\x24.\xc3"
        rb"(\x48\x89\xf4.{16,96}?\x41\xff\xd4\xbf\x6f\x00\x00\x00\xb8\x3c\x00\x00\x00\x0f\x05\xeb.)",
        alignment=16,
    ),
    # musl's clone: syscall; test %eax,%eax; jne; in the thread xor %ebp,%ebp; pop %rdi; call *%r; mov %eax,%edi ... syscall; hlt
    new_thread=rb"\x0f\x05\x85\xc0\x75.(\x31\xed\x5f\x41?\xff[\xd0-\xd7]\x89\xc7.{2,8}\x0f\x05\xf4)\xc3",
    # glibc's __start_context: mov (%rsp),%rdi; test %rdi,%rdi; je; call; mov %rax,%rdi; call; hlt follow the first line
    coroutine=rb"\x48\x89\xdc(?:(?<=(\xf3\x0f\x1e\xfa)...)|)"  # mov %rbx,%rsp; group 1 is an endbr64 before it, if there is one
    rb"\x48\x8b\x3c\x24\x48\x85\xff\x74\x08\xe8....\x48\x89\xc7\xe8....\xf4",
    # glibc's clone and clone3: mov $number,%eax; syscall; test %rax,%rax; jl; je; ret
    new_thread_call=rb"\xb8(?:\x38\x00|\xb3\x01)\x00\x00(\x0f\x05\x48\x85\xc0(?:\x7c.|\x0f\x8c....)\x74.\xc3)",
)


def _pattern_of_word(mask: int, value: int) -> CallPattern:
    """Return the pattern of a call from its 32-bit word. Patterns are big-endian numbers, and files are little-endian."""
    return CallPattern(int.from_bytes(mask.to_bytes(4, "little"), "big"), int.from_bytes(value.to_bytes(4, "little"), "big"))


# AArch64 instructions are little-endian in files of both byte orders.
AARCH64 = CodeBytes(
    padding=PaddingPatterns(unprefixed=(bytes(4), b"\x1f\x20\x03\xd5")),  # zeros; nop
    calls=(_pattern_of_word(0xFC000000, 0x94000000), _pattern_of_word(0xFEFFF000, 0xD63F0000)),  # bl; blr, with or without PAC
    # add sp, sp, x4; [another instruction;] ret, br x5 or br x6
    eh_return=rb"\xff\x63\x24\x8b(?:....)?(?:\xc0\x03\x5f\xd6|[\xa0\xc0]\x00\x1f\xd6)",
    go=GoCode(
        exit=rb"\0\0\0\0(\xe0\x03\x00\xaa...[\x94-\x97])(?=\0{4})",  # mov x0,x0; bl, between zeros
        # Both begin with the last two bytes of an ldr: ldr x, [x28, #56]; mov sp, x
        switch=rb"\x40\xf9(?:[\x1f\x3f\x5f\x7f\x9f\xbf\xdf\xff][\x00-\x03]\x00\x91(?<=[\x80-\x9e]\x1f......)"
        # gogo: ldr x0, [x5]; mov sp, x0, and some bytes later ldr x6, [x5, #8]; br x6
        rb"|\x1f\x00\x00\x91(?<=\xa0\x00......)(?=.{16,96}?\xa6\x04\x40\xf9\xc0\x00\x1f\xd6))",
        padding=bytes(8),
        # svc; cmp x0,xzr; b.eq; str; ret; the code of the new thread ends with blr x0; mov w0,#111; mov x8,#93; svc; b
        new_thread=rb"\x01\0\0\xd4\x1f\0\x1f\xeb\x60\0\0\x54....\xc0\x03\x5f\xd6"
        rb"(.{32,160}?\0\0\x3f\xd6\xe0\x0d\x80\x52\xa8\x0b\x80\xd2\x01\0\0\xd4\xfe\xff\xff\x17)",
        alignment=16,
    ),
    # musl's clone: svc; cbz x0; ret; in the new thread [mov x29,#0;] ldp x1,x0,[sp],#16; blr x1; mov x8,#93; svc
    new_thread=rb"\x01\0\0\xd4\x40\0\0\xb4\xc0\x03\x5f\xd6((?:\x1d\0\x80\xd2)?\xe1\x03\xc1\xa8\x20\0\x3f\xd6\xa8\x0b\x80\xd2\x01\0\0\xd4)",
)

S390X = CodeBytes(
    padding=PaddingPatterns(
        unprefixed=(
            bytes(2),
            *(bytes([0x07, register]) for register in range(16)),  # bcr 0, register
            b"\x47\x00\x00\x00",  # bc 0, 0
            b"\xa7\x04\x00\x00",  # brc 0, 0
            b"\xc0\x04\x00\x00\x00\x00",  # brcl 0, 0
        )
    ),
    calls=(
        CallPattern(0xFFFF_00000000, 0xC0E5_00000000),  # brasl
        CallPattern(0xFFFF0000, 0xA7E50000),  # bras
        CallPattern(0xFFF0, 0x0DE0),  # basr
    ),
)

MACHINES: dict[int, CodeBytes] = {
    machine: {"x86_64": X86_64, "aarch64": AARCH64, "s390x": S390X}[name] for machine, name in MACHINE_NAMES.items()
}
