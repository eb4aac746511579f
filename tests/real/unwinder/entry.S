/* Where walks start, and faults at instructions that were chosen with care. */
	.text

/* void report(void): print_walk() with the registers as they are on entry to report. */
	.globl report
	.hidden report
	.type report, @function
report:
	.cfi_startproc
	subq $152, %rsp
	.cfi_adjust_cfa_offset 152
	movq %rax, 0(%rsp)
	movq %rdx, 8(%rsp)
	movq %rcx, 16(%rsp)
	movq %rbx, 24(%rsp)
	movq %rsi, 32(%rsp)
	movq %rdi, 40(%rsp)
	movq %rbp, 48(%rsp)
	leaq 152(%rsp), %rax
	movq %rax, 56(%rsp)
	movq %r8, 64(%rsp)
	movq %r9, 72(%rsp)
	movq %r10, 80(%rsp)
	movq %r11, 88(%rsp)
	movq %r12, 96(%rsp)
	movq %r13, 104(%rsp)
	movq %r14, 112(%rsp)
	movq %r15, 120(%rsp)
	leaq report(%rip), %rax
	movq %rax, 128(%rsp)
	movq %rsp, %rdi
	call print_walk
	addq $152, %rsp
	.cfi_adjust_cfa_offset -152
	ret
	.cfi_endproc
	.size report, . - report

/* Ends where fault_at_once begins, with another CFA: a look-up at PC - 1 of the faulting instruction would take that. */
	.type before_fault, @function
before_fault:
	.cfi_startproc
	subq $264, %rsp
	.cfi_adjust_cfa_offset 264
	ud2
	.cfi_endproc
	.size before_fault, . - before_fault

/* void fault_at_once(int *null) */
	.globl fault_at_once
	.hidden fault_at_once
	.type fault_at_once, @function
fault_at_once:
	.cfi_startproc
	movl $1, (%rdi)
	ret
	.cfi_endproc
	.size fault_at_once, . - fault_at_once

/* void fault_while_realigning(int *null): faults where CFA = r10 + 0. */
	.globl fault_while_realigning
	.hidden fault_while_realigning
	.type fault_while_realigning, @function
fault_while_realigning:
	.cfi_startproc
	leaq 8(%rsp), %r10
	.cfi_def_cfa %r10, 0
	andq $-64, %rsp
	pushq -8(%r10)
	pushq %rbp
	movq %rsp, %rbp
	.cfi_escape 0x10, 6, 2, 0x76, 0			/* rbp at *(rbp + 0) */
	pushq %r10
	movl $1, (%rdi)
	.cfi_escape 0x0f, 3, 0x76, 0x78, 6		/* CFA = *(rbp - 8) */
	popq %r10
	.cfi_def_cfa %r10, 0
	popq %rbp
	leaq -8(%r10), %rsp
	.cfi_def_cfa %rsp, 8
	ret
	.cfi_endproc
	.size fault_while_realigning, . - fault_while_realigning

/* void odd_rules(void): to be stepped through. What compilers seldom do, or never. */
	.globl odd_rules
	.hidden odd_rules
	.type odd_rules, @function
odd_rules:
	.cfi_startproc
	movq %rbp, %r11
	.cfi_register %rbp, %r11
	xorl %ebp, %ebp
	movq (%rsp), %rax
	.cfi_register %rip, %rax
	movq %rbp, (%rsp)
	nop
	movq %rax, (%rsp)
	.cfi_offset %rip, -8
	xorl %eax, %eax
	leaq -16(%r11), %rbp
	.cfi_escape 0x16, 6, 2, 0x76, 16		/* rbp = rbp + 16 */
	xorl %r11d, %r11d
	addq $16, %rbp
	.cfi_same_value %rbp
	leaq 8(%rsp), %r10
	.cfi_def_cfa %r10, 0
	subq $40, %rsp
	movq %r10, 16(%rsp)
	.cfi_escape 0x0f, 3, 0x77, 16, 6		/* CFA = *(rsp + 16) */
	xorl %r10d, %r10d
	movq %rbp, 24(%rsp)
	.cfi_escape 0x10, 6, 2, 0x77, 24		/* rbp at *(rsp + 24) */
	xorl %ebp, %ebp
	movq 40(%rsp), %rax
	movq %rax, 8(%rsp)
	.cfi_escape 0x10, 16, 2, 0x77, 8		/* rip at *(rsp + 8) */
	movq %rbp, 40(%rsp)
	call odd_callee
	movq 8(%rsp), %rax
	movq %rax, 40(%rsp)
	.cfi_offset %rip, -8
	movq 24(%rsp), %rbp
	.cfi_same_value %rbp
	addq $40, %rsp
	.cfi_def_cfa %rsp, 8
	ret
	.cfi_endproc
	.size odd_rules, . - odd_rules

	.type odd_callee, @function
odd_callee:
	.cfi_startproc
	pushq $0
	.cfi_adjust_cfa_offset 8
	popq %rcx
	.cfi_adjust_cfa_offset -8
	ret
	.cfi_endproc
	.size odd_callee, . - odd_callee

	.section .note.GNU-stack, "", @progbits
