/* x86-64: functions with a frame, with rules of their own, and without anything, that call each other. */
	.text
	.macro function name
	.p2align 4
	.globl \name
	.type \name, @function
\name:
	.endm

	function asm_leaf			/* no rules at all: what a frame pointer and its return address say */
	mov $200, %eax
1:	dec %eax
	jnz 1b
	ret
	.size asm_leaf, . - asm_leaf

	function asm_pushes			/* no rules, and its frame is not where a frame pointer says */
	push %rbx
	sub $48, %rsp
	call asm_leaf
	add $48, %rsp
	pop %rbx
	ret
	.size asm_pushes, . - asm_pushes

	function asm_framed			/* no rules, a frame pointer */
	push %rbp
	mov %rsp, %rbp
	sub $80, %rsp
	call asm_leaf
	call asm_pushes
	leave
	ret
	.size asm_framed, . - asm_framed

	function asm_described			/* all rules */
	.cfi_startproc
	push %r12
	.cfi_def_cfa_offset 16
	sub $32, %rsp
	.cfi_def_cfa_offset 48
	call asm_framed
	add $32, %rsp
	.cfi_def_cfa_offset 16
	pop %r12
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size asm_described, . - asm_described
	.section .note.GNU-stack, "", @progbits
