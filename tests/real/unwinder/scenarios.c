/* Programs whose stacks are walked: `scenarios NAME` prints the stack at each call of report(), `scenarios step NAME` compares
   the walk at every instruction with what the calls and returns so far imply, `scenarios backtrace` asks the C library. */
#define _GNU_SOURCE
#include <alloca.h>
#include <execinfo.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "scenarios.h"
#include "unwind.h"

#define APART __attribute__((noipa))
#define STAY() __asm__ volatile("" ::: "memory") /* after a call: no tail call */

bool silent;
static volatile int sink;

/* -- printing a walk */

enum { MAX_FRAMES = 256 };

static void print_frame(const struct frame *frame, const char *shape)
{
    uint64_t base = 0;
    const char *object = object_of(frame->value[PC] - !frame->exact, &base);
    printf("frame %#lx %s %s %s\n", frame->value[PC] - base, frame->exact ? "exact" : "call", shape, object && *object ? object : "-");
}

void print_walk(struct frame *frame)
{
    const char *reason = "too many frames";
    enum outcome outcome = CALLER;
    if (silent)
        return;
    struct process self = {open("/proc/self/mem", O_RDONLY)};
    struct frame here = *frame; /* REGISTERS words are what report() saved */
    here.known = (1u << REGISTERS) - 1;
    here.exact = true;
    for (int depth = 0; depth < MAX_FRAMES && outcome == CALLER; depth++) {
        enum shape shape = SHAPES;
        struct frame callee = here;
        outcome = step(&self, &here, &shape, &reason);
        print_frame(&callee, shape < SHAPES ? shape_names[shape] : "none");
    }
    printf("end %s\n", outcome == OUTERMOST ? "outermost" : reason);
    close(self.memory);
    fflush(stdout);
}

/* -- plain chains */

static APART void leaf(void)
{
    report();
    STAY();
}

static APART int second(int n)
{
    char text[40];
    sink = snprintf(text, sizeof text, "%d", n);
    leaf();
    return sink + text[0];
}

static APART int first(int n)
{
    return second(n + 1) + n;
}

static void chain(void)
{
    sink = first(sink);
}

static APART int descend(int n)
{
    if (n == 0) {
        leaf();
        return 0;
    }
    int below = descend(n - 1);
    STAY();
    return below + n;
}

static void recursion(void)
{
    sink = descend(20);
}

static int in_order(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    if (x == 3 && y == 5)
        leaf();
    return (x > y) - (x < y);
}

static void callback(void)
{
    int numbers[] = {3, 5};
    qsort(numbers, 2, sizeof *numbers, in_order);
    STAY();
}

/* -- realigned stacks */

static APART void use(char *text, int n)
{
    memset(text, n, (size_t)n);
}

static APART int realigned(int n, int b, int c, int d, int e, int f, int on_stack)
{
    _Alignas(64) char local[64];
    char *more = alloca((size_t)n);
    use(local, 64);
    use(more, n);
    leaf();
    return local[n % 64] + more[n - 1] + b + c + d + e + f + on_stack;
}

static APART __attribute__((force_align_arg_pointer)) int realigned_argument_pointer(int n)
{
    _Alignas(32) char local[32];
    use(local, 32);
    return realigned(n, 1, 2, 3, 4, 5, local[n % 32]) + 1;
}

static void realign(void)
{
    sink = realigned_argument_pointer(30);
}

/* -- signals */

static APART void handler(int number)
{
    sink = number;
    leaf();
    STAY();
}

static void fault_handler(int number)
{
    handler(number);
    _exit(0);
}

static void on(int number, void (*function)(int), int flags)
{
    struct sigaction action = {.sa_handler = function, .sa_flags = flags};
    sigaction(number, &action, NULL);
}

static void use_other_stack(void)
{
    static char other[1 << 16];
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
    sigaltstack(&stack, NULL);
}

static APART int raise_in_leaf(int number)
{
    raise(number);
    STAY();
    return number;
}

static APART int raise_in_realigned(int number)
{
    _Alignas(64) char local[64];
    char *more = alloca((size_t)number);
    use(local, 64);
    use(more, number);
    raise(number);
    return local[number] + more[0];
}

static APART int fault_in_leaf(int *null)
{
    char text[24];
    use(text, 24);
    *null = 1;
    return text[3];
}

static void raising(void)
{
    on(SIGUSR1, handler, 0);
    sink = raise_in_leaf(SIGUSR1);
}

static void raising_other_stack(void)
{
    use_other_stack();
    on(SIGUSR1, handler, SA_ONSTACK);
    sink = raise_in_leaf(SIGUSR1);
}

static void raising_realigned(void)
{
    on(SIGUSR1, handler, SA_SIGINFO);
    sink = raise_in_realigned(SIGUSR1);
}

static APART void handler_that_raises(int number)
{
    sink = raise_in_leaf(SIGUSR2) + number;
}

static void nested(void)
{
    use_other_stack();
    on(SIGUSR1, handler_that_raises, 0);
    on(SIGUSR2, handler, SA_ONSTACK);
    sink = raise_in_leaf(SIGUSR1);
}

static void fault(void)
{
    on(SIGSEGV, fault_handler, 0);
    sink = fault_in_leaf(NULL);
}

static void fault_other_stack(void)
{
    use_other_stack();
    on(SIGSEGV, fault_handler, SA_ONSTACK);
    sink = fault_in_leaf(NULL);
}

static void fault_first(void)
{
    on(SIGSEGV, fault_handler, 0);
    fault_at_once(NULL);
    STAY();
}

static void fault_realigning(void)
{
    on(SIGSEGV, fault_handler, 0);
    fault_while_realigning(NULL);
    STAY();
}

/* -- other ways in */

static void *in_thread(void *argument)
{
    leaf();
    return argument;
}

static void thread(void)
{
    pthread_t other;
    pthread_create(&other, NULL, in_thread, NULL);
    pthread_join(other, NULL);
}

static void at_end(void)
{
    leaf();
    STAY();
}

static void at_exit(void)
{
    atexit(at_end);
    exit(0);
}

/* -- much of the C library, for stepping */

static int backwards(const void *a, const void *b)
{
    return strcmp(*(char *const *)b, *(char *const *)a);
}

static void library(void)
{
    enum { COUNT = 12 };
    char *texts[COUNT], line[128];
    time_t then = 1700000000;
    struct tm parts;
    for (int i = 0; i < COUNT; i++) {
        snprintf(line, sizeof line, "%*d %.*g %s", i, i * i, i, 1e5 / (i + 1), i % 2 ? "odd" : "even");
        texts[i] = strdup(line);
    }
    qsort(texts, COUNT, sizeof *texts, backwards);
    gmtime_r(&then, &parts);
    strftime(line, sizeof line, "%A %d %B %Y %T", &parts);
    sink = (int)strtol(strstr(line, "20"), NULL, 10) + (int)strtod("1.25e3", NULL);
    for (int i = 0; i < COUNT; i++)
        free(texts[i]);
    free(realloc(malloc(100), 300000));
    setlocale(LC_ALL, "C");
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {
    {"chain", chain},
    {"recursion", recursion},
    {"callback", callback},
    {"realign", realign},
    {"raising", raising},
    {"raising-other-stack", raising_other_stack},
    {"raising-realigned", raising_realigned},
    {"nested", nested},
    {"fault", fault},
    {"fault-other-stack", fault_other_stack},
    {"fault-first", fault_first},
    {"fault-realigning", fault_realigning},
    {"thread", thread},
    {"at-exit", at_exit},
    {"library", library},
    {"odd-rules", odd_rules},
};

static void (*find(const char *name))(void)
{
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (strcmp(name, scenarios[i].name) == 0)
            return scenarios[i].run;
    fprintf(stderr, "no scenario %s\n", name);
    exit(2);
}

int main(int argc, char **argv)
{
    void *addresses[64];
    if (argc == 2 && strcmp(argv[1], "backtrace") == 0)
        printf("%d\n", backtrace(addresses, 64));
    else if (argc == 3 && strcmp(argv[1], "step") == 0)
        return step_through(find(argv[2]));
    else if (argc == 2)
        find(argv[1])();
    else
        return 2;
    return 0;
}
