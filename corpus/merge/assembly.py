"""Functions in assembly with hand-written CFI, for each machine: `int NAME(int x, int depth)` each.

`{n}`: bytes of stack, a multiple of 16. `{pad}`: instructions without effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

NOTE = '    .section .note.GNU-stack,"",%progbits\n'
SECTIONS = ("    .text", '    .section .text.{name},"ax",%progbits', '    .section .text.unlikely,"ax",%progbits')

AMD64 = (
    """    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq ${n}, %rsp
    {pad}
    testl %esi, %esi
    jle 1f
    decl %esi
    call {call}@PLT
1:  leave
    .cfi_def_cfa %rsp, 8
    ret
""",
    """    subq ${n} + 8, %rsp
    .cfi_adjust_cfa_offset {n} + 8
    {pad}
    movl %edi, %eax
    addq ${n} + 8, %rsp
    .cfi_adjust_cfa_offset -{n} - 8
    ret
""",
    """    pushq %rbx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbx, 0
    movq %rsp, %rbx
    .cfi_def_cfa %rbx, 16
    andq $-64, %rsp
    {pad}
    movl %edi, %eax
    movq %rbx, %rsp
    .cfi_def_cfa %rsp, 16
    popq %rbx
    .cfi_adjust_cfa_offset -8
    ret
""",
    """    .cfi_undefined %rip
    {pad}
    movl %edi, %eax
    ret
""",
    """    .cfi_signal_frame
    .cfi_def_cfa %rsp, 8
    {pad}
    movl %esi, %eax
    ret
""",
    """    .cfi_remember_state
    testl %esi, %esi
    jle 2f
    pushq %r12
    .cfi_adjust_cfa_offset 8
    {pad}
    movl %edi, %eax
    popq %r12
    .cfi_adjust_cfa_offset -8
    ret
2:  .cfi_restore_state
    movl %esi, %eax
    ret
""",
)
ARM64 = (
    """    stp x29, x30, [sp, #-{n}]!
    .cfi_def_cfa_offset {n}
    .cfi_offset 29, -{n}
    .cfi_offset 30, -{n} + 8
    mov x29, sp
    .cfi_def_cfa_register 29
    {pad}
    cmp w1, #0
    b.le 1f
    sub w1, w1, #1
    bl {call}
1:  ldp x29, x30, [sp], #{n}
    .cfi_def_cfa 31, 0
    .cfi_restore 29
    .cfi_restore 30
    ret
""",
    """    hint #25
    .cfi_negate_ra_state
    sub sp, sp, #{n}
    .cfi_def_cfa_offset {n}
    {pad}
    add sp, sp, #{n}
    .cfi_def_cfa_offset 0
    hint #29
    .cfi_negate_ra_state
    ret
""",
    """    {pad}
    ret
""",
    """    .cfi_undefined 30
    {pad}
    ret
""",
    """    .cfi_b_key_frame
    hint #27
    .cfi_negate_ra_state
    {pad}
    hint #31
    .cfi_negate_ra_state
    ret
""",
)
S390X = (
    """    stmg %r11, %r15, 88(%r15)
    .cfi_rel_offset %r11, 88
    .cfi_rel_offset %r14, 112
    .cfi_rel_offset %r15, 120
    aghi %r15, -160 - {n}
    .cfi_adjust_cfa_offset 160 + {n}
    {pad}
    ltr %r3, %r3
    jnh 1f
    ahi %r3, -1
    brasl %r14, {call}@PLT
1:  lmg %r11, %r15, 248 + {n}(%r15)
    .cfi_adjust_cfa_offset -160 - {n}
    .cfi_restore %r11
    .cfi_restore %r14
    .cfi_restore %r15
    br %r14
""",
    """    aghi %r15, -{n}
    .cfi_adjust_cfa_offset {n}
    {pad}
    aghi %r15, {n}
    .cfi_adjust_cfa_offset -{n}
    br %r14
""",
    """    ldgr %f0, %r11
    .cfi_register %r11, %f0
    {pad}
    lgdr %r11, %f0
    .cfi_restore %r11
    br %r14
""",
    """    .cfi_undefined %r14
    {pad}
    br %r14
""",
)
FUNCTIONS = {"x86-64": AMD64, "arm64": ARM64, "s390x": S390X}
# A range of no bytes: every linker has to make something of it.
EMPTY = """{name}_empty:
    .cfi_startproc
    .cfi_endproc
"""


def assembly(chance: random.Random, machine: str, number: int, calls: list[str]) -> str:
    lines = []
    for k, call in enumerate(calls):
        name = f"f{number:03}_{k}"
        body = chance.choice(FUNCTIONS[machine])
        lines.append(chance.choice(SECTIONS).format(name=name))
        lines.append(f"    .p2align {chance.choice((1, 4, 6))}\n    .globl {name}\n    .type {name}, %function\n{name}:")
        lines.append("    .cfi_startproc")
        lines.append(body.format(call=call, n=16 * chance.randint(1, 24), pad=_padding(chance)) + "    .cfi_endproc")
        lines.append(f"    .size {name}, . - {name}")
        if chance.random() < 0.2:
            lines.append(f"    {_padding(chance)}")
        if chance.random() < 0.1:
            lines.append(EMPTY.format(name=name))
    return "\n".join(lines) + "\n" + NOTE


def _padding(chance: random.Random) -> str:
    return f".rept {chance.randint(1, 90)}\n    nop\n    .endr"
