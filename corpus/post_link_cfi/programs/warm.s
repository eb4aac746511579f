# main calls caller 8 times, which calls leaf, work, leaf. Every fourth time, work counts the frames of its stack, between words that are no
# return addresses. warm.fdata is a profile of it; it names these instructions by their offsets.
        .text
        .globl  main
        .type   main, @function
main:   .cfi_startproc
        push    %rbx
        .cfi_adjust_cfa_offset 8
        .cfi_offset rbx, -16
        xor     %ebx, %ebx
.Lturn: mov     %ebx, %edi
        inc     %ebx
        call    caller
        cmp     $8, %ebx
        jne     .Lturn
        xor     %eax, %eax
        pop     %rbx
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_endproc
        .size   main, . - main

        .globl  caller
        .type   caller, @function
caller: .cfi_startproc
        sub     $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    leaf
        mov     %edi, %esi
        and     $3, %esi
        cmp     $3, %esi
        sete    %sil
        movzbl  %sil, %esi
        call    work
        mov     %rax, %rdi
        call    leaf
        add     $8, %rsp
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_endproc
        .size   caller, . - caller

        .globl  work
        .type   work, @function
work:   .cfi_startproc
        push    %rbx
        .cfi_adjust_cfa_offset 8
        .cfi_offset rbx, -16
        sub     $16, %rsp
        .cfi_adjust_cfa_offset 16
        movq    $20, (%rsp)
        movq    $20, 8(%rsp)
        test    %esi, %esi
        je      .Lhot
        mov     rare(%rip), %edx
        xor     %eax, %eax
        test    %edx, %edx
        jne     .Lend
        mov     %rdi, %rbx
        call    *when_warm(%rip)
        lea     (%rax, %rbx), %rdi
.Lhot:  mov     (%rsp), %rax
        add     8(%rsp), %rax
        add     %rdi, %rax
.Lend:  add     $16, %rsp
        .cfi_adjust_cfa_offset -16
        pop     %rbx
        .cfi_adjust_cfa_offset -8
        ret
        .cfi_endproc
        .size   work, . - work

        .globl  leaf
        .type   leaf, @function
leaf:   .cfi_startproc
        add     %rdi, total(%rip)
        ret
        .cfi_endproc
        .size   leaf, . - leaf

        .data
when_warm: .quad count_frames
        .bss
total:  .zero   8
rare:   .zero   8
        .section .note.GNU-stack, "", @progbits
