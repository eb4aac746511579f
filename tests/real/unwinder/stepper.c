/* Walks the stack of a child at every instruction, and knows what must come out: what calls have pushed and returns not yet popped. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scenarios.h"
#include "unwind.h"

enum { MAX_DEPTH = 256, LONGEST_INSTRUCTION = 15 };

struct caller {
    uint64_t pc, sp, fp;
};

static struct caller stack[MAX_DEPTH];
static int depth;
static long steps, compared, outside, shapes[SHAPES];

static void push(uint64_t pc, uint64_t sp, uint64_t fp)
{
    if (depth == MAX_DEPTH) {
        fprintf(stderr, "stack too deep\n");
        exit(2);
    }
    stack[depth++] = (struct caller){pc, sp, fp};
}

static struct frame registers_of(pid_t child)
{
    struct user_regs_struct r;
    struct frame frame = {.known = (1u << REGISTERS) - 1, .exact = true};
    if (ptrace(PTRACE_GETREGS, child, NULL, &r)) {
        perror("PTRACE_GETREGS");
        exit(2);
    }
    const uint64_t values[REGISTERS] = {r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8,
                                        r.r9,  r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rip};
    memcpy(frame.value, values, sizeof values);
    return frame;
}

static void print_place(const char *what, int level, const struct frame *frame, const char *reason)
{
    uint64_t base = 0;
    const char *object = object_of(frame->value[PC], &base);
    printf("%s %#lx %s level %d: %s\n", what, frame->value[PC] - base, object && *object ? object : "-", level, reason);
}

/* The whole chain, from where the child stands: (pc, sp, fp) of each caller, then the end. */
static void check(const struct process *child, struct frame frame)
{
    const char *reason = "";
    char difference[200];
    for (int level = 0;; level++) {
        enum shape shape;
        struct frame callee = frame;
        enum outcome outcome = step(child, &frame, &shape, &reason);
        if (outcome == LOST) {
            if (strcmp(reason, NO_SECTION) == 0)
                outside++;
            else
                print_place("lost", level, &callee, reason);
            return;
        }
        shapes[shape]++;
        compared++;
        if (outcome == OUTERMOST && level == depth)
            return;
        struct caller truth = level < depth ? stack[depth - 1 - level] : (struct caller){0};
        bool found = outcome == CALLER && frame.value[PC] == truth.pc && frame.value[RSP] == truth.sp;
        bool fp_found = frame.known >> RBP & 1 && frame.value[RBP] == truth.fp;
        if (!found || !fp_found) {
            snprintf(difference, sizeof difference, "(pc, sp, fp) = (%#lx, %#lx, %#lx), true (%#lx, %#lx, %#lx)", frame.value[PC],
                     frame.value[RSP], frame.value[RBP], truth.pc, truth.sp, truth.fp);
            print_place(found ? "wrong-fp" : "wrong", level, &callee, difference);
            return;
        }
    }
}

/* What is below the child's first stop is taken from the walk itself: other tests judge such stacks. */
static void begin(const struct process *child, struct frame frame)
{
    struct caller found[MAX_DEPTH];
    enum shape shape;
    const char *reason;
    int count = 0;
    while (count < MAX_DEPTH && step(child, &frame, &shape, &reason) == CALLER)
        found[count++] = (struct caller){frame.value[PC], frame.value[RSP], frame.value[RBP]};
    while (count)
        stack[depth++] = found[--count];
}

/* One instruction, or the delivery of a signal, has led from one frame to the other. */
static void follow_stack(const struct process *child, const struct frame *before, const struct frame *after, int number)
{
    uint64_t sp = after->value[RSP], top;
    while (depth && stack[depth - 1].sp <= sp)
        depth--;
    if (!read_word(child, sp, &top))
        return;
    bool delivered = number != 0;
    uint64_t length = top - before->value[PC];
    bool called = sp == before->value[RSP] - 8 && length >= 2 && length <= LONGEST_INSTRUCTION && after->value[PC] != top;
    if (delivered)
        push(before->value[PC], before->value[RSP], before->value[RBP]);
    if (delivered || called)
        push(top, sp + 8, after->value[RBP]);
}

int step_through(void (*scenario)(void))
{
    int status, number = 0;
    char path[40];
    silent = true;
    pid_t pid = fork();
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        __asm__ volatile("int3");
        scenario();
        _exit(0);
    }
    if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) {
        fprintf(stderr, "the child did not stop\n");
        return 2;
    }
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    struct process child = {open(path, O_RDONLY)};
    struct frame before = registers_of(pid);
    begin(&child, before);
    for (;;) {
        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, number) || waitpid(pid, &status, 0) != pid) {
            perror("PTRACE_SINGLESTEP");
            return 2;
        }
        if (!WIFSTOPPED(status))
            break;
        struct frame after = registers_of(pid);
        bool signalled = WSTOPSIG(status) != SIGTRAP;
        follow_stack(&child, &before, &after, number);
        number = signalled ? WSTOPSIG(status) : 0;
        check(&child, after);
        before = after;
        steps++;
    }
    printf("count steps %ld\ncount compared %ld\ncount outside %ld\n", steps, compared, outside);
    for (int i = 0; i < SHAPES; i++)
        printf("count %s %ld\n", shape_names[i], shapes[i]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}
