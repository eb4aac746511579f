/* Unwind tables for code that a program generates at run time. Needs C11 or C++11, or later, and GCC or Clang.

   sframegen's docs/registration.md describes the format. Each table, and the list of regions, may have one writer at a time, and
   any number of readers at any time, also in other processes. Nothing here allocates memory or takes locks. */
#ifndef SFRAMEGEN_JIT_H
#define SFRAMEGEN_JIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define SFRAMEGEN_JIT_ASSERT static_assert
extern "C" {
#else
#define SFRAMEGEN_JIT_ASSERT _Static_assert
#endif

enum {
    SFRAMEGEN_JIT_CFA_SP = 0x01,    /* CFA = SP + cfa_off, else FP + cfa_off */
    SFRAMEGEN_JIT_RA_SAVED = 0x02,  /* RA = *(CFA + ra_off), else it is in its register */
    SFRAMEGEN_JIT_FP_SAVED = 0x04,  /* FP = *(CFA + fp_off), else it is in its register */
    SFRAMEGEN_JIT_OUTERMOST = 0x08, /* there is no caller; may be combined with the next two bits only */
    SFRAMEGEN_JIT_SIGNAL = 0x10,    /* a signal frame: the caller was interrupted at its PC */
    SFRAMEGEN_JIT_REMOVED = 0x20,   /* the code is gone; set by sframegen_jit_remove */
    SFRAMEGEN_JIT_RA_SIGNED = 0x80  /* AArch64 */
};

/* One rule, for `size` bytes of code at text_start + ip_off. Offsets whose bit is not set are 0. */
struct sframegen_jit_fre {
    uint32_t size;
    uint32_t ip_off;
    int32_t cfa_off;
    int32_t ra_off;
    int32_t fp_off;
    uint8_t info;
    uint8_t padding[3];
};

/* The header of a table. Its entries follow, in the order of their code, without overlaps. The lengths are bytes of entries. */
struct sframegen_jit_table {
    uint64_t reserved_len;
    uint64_t used_len; /* stored last, with release */
    uint64_t next;     /* address of the next table of the chain, 0 for none; stored with release */
    uint32_t fre_stride;
    uint32_t fre_size; /* bytes of an entry without its padding */
};

/* A range of code and its first table. Must stay at its address, readable, until the process ends; it may be registered again. */
struct sframegen_jit_region {
    uint64_t next;
    uint64_t serial; /* odd while it is registered; stored with release */
    uint64_t text_start;
    uint64_t text_end;
    uint64_t unwind_head;
};

struct sframegen_jit_list {
    uint32_t version;
    uint32_t reserved;
    uint64_t first; /* address of a region, 0 for none; stored with release */
};

SFRAMEGEN_JIT_ASSERT(sizeof(struct sframegen_jit_fre) == 24 && offsetof(struct sframegen_jit_fre, info) == 20, "layout");
SFRAMEGEN_JIT_ASSERT(sizeof(struct sframegen_jit_table) == 32 && offsetof(struct sframegen_jit_table, fre_stride) == 24, "layout");
SFRAMEGEN_JIT_ASSERT(sizeof(struct sframegen_jit_region) == 40 && sizeof(struct sframegen_jit_list) == 16, "layout");

/* Readers find the list by this name. A program exports it, so that they also find it after the program has been stripped:
   -Wl,--export-dynamic-symbol=__sframegen_jit_tables
   Code that only reads the tables of its process defines SFRAMEGEN_JIT_READER: the list then exists only if a writer defines it. */
#ifdef SFRAMEGEN_JIT_READER
extern __attribute__((weak)) struct sframegen_jit_list __sframegen_jit_tables;
#else
__attribute__((weak, visibility("default"), used)) struct sframegen_jit_list __sframegen_jit_tables = {1, 0, 0};
#endif

/* Makes an empty table in `bytes` bytes of memory, which is aligned to 8. Returns NULL if there is no room for an entry. */
static inline struct sframegen_jit_table *sframegen_jit_init(void *memory, size_t bytes) {
    struct sframegen_jit_table *table = (struct sframegen_jit_table *)memory;
    const size_t stride = sizeof(struct sframegen_jit_fre);
    if (bytes < sizeof *table + stride || (uintptr_t)memory % 8 != 0) return NULL;
    table->reserved_len = (bytes - sizeof *table) / stride * stride;
    table->used_len = 0;
    table->next = 0;
    table->fre_stride = (uint32_t)stride;
    table->fre_size = (uint32_t)offsetof(struct sframegen_jit_fre, padding);
    return table;
}

static inline struct sframegen_jit_fre *sframegen_jit_entries(struct sframegen_jit_table *table) {
    return (struct sframegen_jit_fre *)(void *)(table + 1);
}

static inline size_t sframegen_jit_count(const struct sframegen_jit_table *table) {
    return (size_t)(__atomic_load_n(&table->used_len, __ATOMIC_ACQUIRE) / sizeof(struct sframegen_jit_fre));
}

/* Publishes an entry; to be called before its code runs. Returns -1 if the table is full or has a next one, or if the code is not
   behind all code that the table describes. */
static inline int sframegen_jit_append(struct sframegen_jit_table *table, struct sframegen_jit_fre entry) {
    const size_t count = sframegen_jit_count(table);
    struct sframegen_jit_fre *entries = sframegen_jit_entries(table);
    if (table->next != 0 || table->reserved_len - table->used_len < sizeof entry || entry.size == 0) return -1;
    if ((uint64_t)entry.ip_off + entry.size > UINT32_MAX) return -1;
    if (count != 0 && entry.ip_off < entries[count - 1].ip_off + entries[count - 1].size) return -1;
    entry.padding[0] = entry.padding[1] = entry.padding[2] = 0;
    entries[count] = entry;
    __atomic_store_n(&table->used_len, (uint64_t)((count + 1) * sizeof entry), __ATOMIC_RELEASE);
    return 0;
}

/* Publishes an empty table as the next one of the chain, for code behind all that the chain describes. Returns -1 if the table
   already has a next one, or if `next` is not empty. */
static inline int sframegen_jit_extend(struct sframegen_jit_table *table, struct sframegen_jit_table *next) {
    if (table->next != 0 || next->used_len != 0) return -1;
    __atomic_store_n(&table->next, (uint64_t)(uintptr_t)next, __ATOMIC_RELEASE);
    return 0;
}

/* Marks the entry at an offset as removed; to be called before its code is overwritten, when no thread runs it. `first`: the first
   table of the chain. Returns -1 if no entry covers the offset. */
static inline int sframegen_jit_remove(struct sframegen_jit_table *first, uint32_t ip_off) {
    struct sframegen_jit_table *table = first;
    for (; table != NULL; table = (struct sframegen_jit_table *)(uintptr_t)table->next) {
        struct sframegen_jit_fre *entries = sframegen_jit_entries(table);
        size_t low = 0, high = sframegen_jit_count(table);
        while (low < high) { /* finds the first entry behind the offset */
            const size_t middle = low + (high - low) / 2;
            if (entries[middle].ip_off <= ip_off) low = middle + 1;
            else high = middle;
        }
        if (low != 0 && ip_off - entries[low - 1].ip_off < entries[low - 1].size) {
            __atomic_store_n(&entries[low - 1].info, (uint8_t)(entries[low - 1].info | SFRAMEGEN_JIT_REMOVED), __ATOMIC_RELEASE);
            __atomic_thread_fence(__ATOMIC_SEQ_CST); /* visible before the memory is used again */
            return 0;
        }
    }
    return -1;
}

/* Adds a region to the list. `region` is zeroed memory, or a region that was unregistered. */
static inline void sframegen_jit_register(struct sframegen_jit_region *region, const void *text_start, const void *text_end,
                                          struct sframegen_jit_table *first) {
    const int is_new = region->serial == 0;
    region->text_start = (uint64_t)(uintptr_t)text_start;
    region->text_end = (uint64_t)(uintptr_t)text_end;
    region->unwind_head = (uint64_t)(uintptr_t)first;
    __atomic_store_n(&region->serial, region->serial + 1, __ATOMIC_RELEASE);
    if (is_new) {
        region->next = __sframegen_jit_tables.first;
        __atomic_store_n(&__sframegen_jit_tables.first, (uint64_t)(uintptr_t)region, __ATOMIC_RELEASE);
    }
}

/* Unregisters a region, after which its code and tables may be freed. */
static inline void sframegen_jit_unregister(struct sframegen_jit_region *region) {
    __atomic_store_n(&region->serial, region->serial + 1, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* visible before the memory is used again */
}

#ifdef __cplusplus
}
#endif

#endif
