"""x86-64: padding and calls."""

from __future__ import annotations

from sframegen.elf.code_bytes.forms import Call, CodeBytes, Fill, GoCode

CODE_BYTES = CodeBytes(
    Fill(
        alone=(b"\x00", b"\xcc"),
        prefixed=(
            b"\x90",
            b"\x0f\x1f\x00",
            b"\x0f\x1f\x40\x00",
            b"\x0f\x1f\x44\x00\x00",
            b"\x0f\x1f\x80\x00\x00\x00\x00",
            b"\x0f\x1f\x84\x00\x00\x00\x00\x00",
        ),
        prefixes=b"\x66\x2e",
    ),
    (
        Call(0xFF_00000000, 0xE8_00000000, relative=True),
        Call(0xFFF8, 0xFFD0),  # call *%r
        Call(0xFFF8, 0xFF10),  # call *(%r)
        Call(0xFFFF00, 0xFF1400),  # call *(%r,%r)
        Call(0xFFFF07_00000000, 0xFF1405_00000000),  # call *n(,%r)
        Call(0xFFFF_00000000, 0xFF15_00000000),  # call *n(%rip)
        Call(0xFFF800, 0xFF5000),  # call *n(%r)
        Call(0xFFFF0000, 0xFF540000),  # call *n(%r,%r)
        Call(0xFFF8_00000000, 0xFF90_00000000),  # the same, n of four bytes
        Call(0xFFFF00_00000000, 0xFF9400_00000000),
    ),
    rb"\x48\x89\xcc(?:\xc3|\x59\xff\xe1)",  # mov %rcx,%rsp; ret, or pop %rcx; jmp *%rcx
    GoCode(
        exit=rb"\xcc(\x90\xe8....\x90)(?=\xcc)",  # nop; call; nop, alone
        # mov 56(%r),%rsp, perhaps through %rbx; in gogo mov (%rbx),%rsp, and at last mov 8(%rbx),%rbx; jmp *%rbx
        switch=rb"\x8b(?:[\x60-\x63\x65-\x67]\x38(?<=[\x48\x49]...)|\x5a\x38\x48\x89\xdc(?<=\x48......)"
        rb"|\x23(?<=\x48..)(?=.{8,96}?\x48\x8b\x5b\x08\xff\xe3))",
        padding=b"\xcc\xcc",
        # mov %rsi,%rsp ... call *%r12; mov $111,%edi; mov $60,%eax; syscall; jmp
        new_thread=rb"\x0f\x05\x48(?:\x83\xf8\x00|\x85\xc0)\x74\x05\x89\x44\x24.\xc3"
        rb"(\x48\x89\xf4.{16,96}?\x41\xff\xd4\xbf\x6f\x00\x00\x00\xb8\x3c\x00\x00\x00\x0f\x05\xeb.)",
        alignment=16,
    ),
    # musl's clone: syscall; test %eax,%eax; jne; in the thread xor %ebp,%ebp; pop %rdi; call *%r; mov %eax,%edi ... syscall; hlt
    rb"\x0f\x05\x85\xc0\x75.(\x31\xed\x5f\x41?\xff[\xd0-\xd7]\x89\xc7.{2,8}\x0f\x05\xf4)\xc3",
    # glibc's __start_context: perhaps endbr64; mov %rbx,%rsp; mov (%rsp),%rdi; test %rdi,%rdi; je; call; mov %rax,%rdi; call; hlt
    rb"\x48\x89\xdc(?:(?<=(\xf3\x0f\x1e\xfa)...)|)\x48\x8b\x3c\x24\x48\x85\xff\x74\x08\xe8....\x48\x89\xc7\xe8....\xf4",
    # glibc's clone and clone3: mov $number,%eax; syscall; test %rax,%rax; jl; je; ret
    rb"\xb8(?:\x38\x00|\xb3\x01)\x00\x00(\x0f\x05\x48\x85\xc0(?:\x7c.|\x0f\x8c....)\x74.\xc3)",
)
