/* Makes functions at run time, describes them in chained tables, takes some away again, all while other threads run them.

   Each function is computed from a seed, so that a reader of the code knows what has to be said of each of its bytes; before it
   stand the bytes of struct ident. A chain of functions, each calling the next, is what a thread has on its stack. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sframegen_jit.h"

enum { RUNNERS = 3, DEPTH = 12, TEXT_BYTES = 1 << 17, TABLE_BYTES = 2048, MAX_FUNCTIONS = TEXT_BYTES / 64, MAGIC = 0x4a495421 };

struct ident {
    uint32_t magic, kind, frame, size; /* size: of the code behind this */
};
struct function {
    uint32_t offset, references;
    int alive;
};
struct heap { /* a range of code and its tables */
    struct sframegen_jit_region region;
    unsigned char *text;
    char *tables;
    size_t tables_used;
    struct sframegen_jit_table *first, *last;
    uint32_t used;
    int count, users, is_open;
    struct function functions[MAX_FUNCTIONS];
};
struct runner { /* read by who checks the walks */
    uint64_t tid, depth, chain[DEPTH + 1];
};
struct runner runners[RUNNERS];

static struct heap heaps[2];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t removed;

/* enter(chain): calls the first, which calls the next, up to leaf(). RBX: the place in the chain. */
void enter(void **chain);
void leaf(void);
__asm__(".text\n .globl enter, leaf\n .type enter,@function\n .type leaf,@function\n"
        "enter: .cfi_startproc\n push %rbx\n .cfi_adjust_cfa_offset 8\n .cfi_rel_offset rbx,0\n mov %rdi,%rbx\n call *(%rbx)\n"
        " pop %rbx\n .cfi_adjust_cfa_offset -8\n .cfi_restore rbx\n ret\n .cfi_endproc\n .size enter,.-enter\n"
        "leaf: .cfi_startproc\n mov $40,%ecx\n1: dec %ecx\n jnz 1b\n ret\n .cfi_endproc\n .size leaf,.-leaf\n");

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525 + 1013904223; }

static unsigned char *put(unsigned char *at, const void *bytes, size_t size) { return (unsigned char *)memcpy(at, bytes, size) + size; }
#define PUT(...) at = put(at, (const unsigned char[]){__VA_ARGS__}, sizeof((const unsigned char[]){__VA_ARGS__}))

static void say(struct heap *heap, uint32_t from, uint32_t to, int32_t cfa_off, int info) {
    const struct sframegen_jit_fre entry = {
        .size = to - from,
        .ip_off = from,
        .cfa_off = cfa_off,
        .ra_off = -8,
        .fp_off = info & SFRAMEGEN_JIT_FP_SAVED ? -16 : 0,
        .info = (uint8_t)(info | SFRAMEGEN_JIT_RA_SAVED),
    };
    if (from == to || sframegen_jit_append(heap->last, entry) == 0) return;
    struct sframegen_jit_table *more = sframegen_jit_init(heap->tables + heap->tables_used, TABLE_BYTES);
    heap->tables_used += TABLE_BYTES;
    if (sframegen_jit_extend(heap->last, more) != 0) abort();
    heap->last = more;
    if (sframegen_jit_append(more, entry) != 0) abort();
}

/* Three kinds of frame: by RSP; by RBP; by RSP, with RBP saved and used for something else. */
static uint32_t make(struct heap *heap, uint32_t seed) {
    const struct ident ident = {MAGIC, next_random(&seed) >> 16 & 0xff, 0, 0};
    struct ident known = {MAGIC, ident.kind % 3, (next_random(&seed) >> 16 & 63) * 8 + 8, 0};
    unsigned char *const start = heap->text + heap->used + sizeof known, *at = start;
    const uint32_t offset = heap->used + (uint32_t)sizeof known;
    enum { SP = SFRAMEGEN_JIT_CFA_SP, SP_FP = SP | SFRAMEGEN_JIT_FP_SAVED, FP_FP = SFRAMEGEN_JIT_FP_SAVED };
    uint32_t rows[6][3], count = 0; /* from, CFA offset, info */
#define ROW(cfa, kind) (rows[count][0] = offset + (uint32_t)(at - start), rows[count][1] = (uint32_t)(cfa), rows[count++][2] = (kind))
    const unsigned char frame[] = {(unsigned char)known.frame, (unsigned char)(known.frame >> 8), 0, 0};
    ROW(8, SP);
    if (known.kind != 0) {
        PUT(0x55); /* push %rbp */
        ROW(16, SP_FP);
    }
    if (known.kind == 1) {
        PUT(0x48, 0x89, 0xe5); /* mov %rsp,%rbp */
        ROW(16, FP_FP);
    }
    PUT(0x48, 0x81, 0xec, frame[0], frame[1], 0, 0); /* sub $frame,%rsp */
    if (known.kind != 1) ROW(8 + 8 * (known.kind == 2) + known.frame, known.kind ? SP_FP : SP);
    if (known.kind == 2) PUT(0x48, 0xc7, 0xc5, 1, 2, 3, 4);                     /* mov $...,%rbp */
    PUT(0x48, 0x83, 0xc3, 8, 0xff, 0x13, 0x48, 0x83, 0xeb, 8);                    /* add $8,%rbx; call *(%rbx); sub $8,%rbx */
    if (known.kind == 1) PUT(0xc9);                                               /* leave */
    else PUT(0x48, 0x81, 0xc4, frame[0], frame[1], 0, 0);                         /* add $frame,%rsp */
    if (known.kind == 2) {
        ROW(16, SP_FP);
        PUT(0x5d); /* pop %rbp */
    }
    ROW(8, SP);
    PUT(0xc3); /* ret */
    known.size = (uint32_t)(at - start);
    memcpy(start - sizeof known, &known, sizeof known);
    rows[count][0] = offset + known.size;
    for (uint32_t row = 0; row < count; row++) say(heap, rows[row][0], rows[row + 1][0], (int32_t)rows[row][1], (int)rows[row][2]);
    heap->used = (offset + known.size + 15) & ~15u;
    return offset;
}

static void *reserve(size_t size, int protection) {
    void *memory = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    return memory;
}

static const size_t ALL_TABLES = (size_t)TABLE_BYTES * MAX_FUNCTIONS / 8;

static void open_heap(struct heap *heap) {
    heap->text = reserve(TEXT_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC);
    heap->tables = reserve(ALL_TABLES, PROT_READ | PROT_WRITE);
    heap->first = heap->last = sframegen_jit_init(heap->tables, TABLE_BYTES);
    heap->tables_used = TABLE_BYTES;
    heap->used = 0;
    heap->count = 0;
    sframegen_jit_register(&heap->region, heap->text, heap->text + TEXT_BYTES, heap->first);
    heap->is_open = 1;
}

/* Nobody runs in it any more. */
static void close_heap(struct heap *heap) {
    for (heap->is_open = 0; heap->users != 0;) {
        pthread_mutex_unlock(&lock);
        sched_yield();
        pthread_mutex_lock(&lock);
    }
    sframegen_jit_unregister(&heap->region);
    munmap(heap->text, TEXT_BYTES);
    munmap(heap->tables, ALL_TABLES);
}

static void take_away(struct heap *heap, struct function *function) {
    struct ident known;
    memcpy(&known, heap->text + function->offset - sizeof known, sizeof known);
    for (uint32_t at = function->offset; at < function->offset + known.size; at++)
        if (sframegen_jit_remove(heap->first, at) != 0) abort();
    memset(heap->text + function->offset, 0xcc, known.size); /* int3: who still runs there, ends */
    function->alive = 0;
    removed++;
}

static void *produce(void *pause) {
    struct heap *heap = &heaps[0];
    for (uint32_t seed = 1;;) {
        pthread_mutex_lock(&lock);
        if (heap->count == MAX_FUNCTIONS || heap->used + 128 > TEXT_BYTES) {
            heap = &heaps[heap == &heaps[0]];
            if (heap->is_open) close_heap(heap);
            open_heap(heap);
        }
        const struct function function = {make(heap, next_random(&seed)), 0, 1};
        heap->functions[heap->count++] = function;
        struct function *other = &heap->functions[(next_random(&seed) >> 8) % (uint32_t)heap->count];
        if (heap->count > 64 && seed >> 20 & 1 && other->alive && other->references == 0) take_away(heap, other);
        pthread_mutex_unlock(&lock);
        if (pause != NULL) nanosleep((const struct timespec *)pause, NULL);
    }
    return NULL;
}

static void *run(void *argument) {
    struct runner *self = argument;
    uint32_t seed = (uint32_t)(self - runners) + 7;
    self->tid = (uint64_t)syscall(SYS_gettid);
    for (;;) {
        struct heap *heap_of[DEPTH];
        struct function *taken[DEPTH];
        uint64_t depth = 0;
        pthread_mutex_lock(&lock);
        for (int attempt = 0; attempt < DEPTH; attempt++) {
            struct heap *heap = &heaps[next_random(&seed) >> 16 & 1];
            if (!heap->is_open || heap->count == 0) continue;
            const uint32_t recent = next_random(&seed) >> 16 & 1 && heap->count > 8 ? 8 : (uint32_t)heap->count;
            struct function *function = &heap->functions[(uint32_t)heap->count - 1 - (next_random(&seed) >> 8) % recent];
            if (!function->alive) continue;
            function->references++;
            heap->users++;
            heap_of[depth] = heap;
            taken[depth] = function;
            self->chain[depth++] = (uint64_t)(uintptr_t)(heap->text + function->offset);
        }
        self->depth = depth;
        self->chain[depth] = (uint64_t)(uintptr_t)leaf;
        pthread_mutex_unlock(&lock);
        for (int times = 0; times < 200; times++) enter((void **)self->chain);
        pthread_mutex_lock(&lock);
        while (depth-- > 0) {
            taken[depth]->references--;
            heap_of[depth]->users--;
        }
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

int main(int count, char **words) {
    static struct timespec pause;
    pause.tv_nsec = count > 1 ? atol(words[1]) * 1000 : 0; /* microseconds between two functions */
    pthread_t thread;
    open_heap(&heaps[0]);
    for (int i = 0; i < RUNNERS; i++) pthread_create(&thread, NULL, run, &runners[i]);
    pthread_create(&thread, NULL, produce, pause.tv_nsec ? &pause : NULL);
    printf("%p\n", (void *)runners);
    fflush(stdout);
    while (getchar() != EOF) { /* each line asks for the number of removed functions */
        pthread_mutex_lock(&lock);
        printf("%llu\n", (unsigned long long)removed);
        pthread_mutex_unlock(&lock);
        fflush(stdout);
    }
    _exit(0);
}
