/* Tables that say how to unwind code made at run time, for programs that make it. C11 or later, C++11 or later; GCC or Clang.

   docs/registration.md of sframegen describes the format. One writer at a time for each table and for the list; any number of
   readers, in other processes too, at any time. Nothing here allocates or locks. */
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
    SFRAMEGEN_JIT_OUTERMOST = 0x08, /* there is no caller; no other bit but these two */
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

/* Entries follow, in the order of their code, without overlaps. The lengths are bytes of entries. */
struct sframegen_jit_table {
    uint64_t reserved_len;
    uint64_t used_len; /* stored last, with release */
    uint64_t next;     /* address of the table that goes on; stored with release */
    uint32_t fre_stride;
    uint32_t fre_size; /* bytes of an entry that mean something */
};

/* A range of code and its first table. Stays where it is, and readable, as long as the process runs; may be used again. */
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

/* By this name others find the list. A program has to export it, if it is to be found when the program is stripped:
   -Wl,--export-dynamic-symbol=__sframegen_jit_tables
   Who only reads the tables of its process defines SFRAMEGEN_JIT_READER: then there is a list if somebody else has one. */
#ifdef SFRAMEGEN_JIT_READER
extern __attribute__((weak)) struct sframegen_jit_list __sframegen_jit_tables;
#else
__attribute__((weak, visibility("default"), used)) struct sframegen_jit_list __sframegen_jit_tables = {1, 0, 0};
#endif

/* Makes a table of `bytes` bytes of memory, aligned to 8: its header, and as many entries as there is room for. */
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

/* Publishes an entry; before its code runs. -1 where the table is full or has a next one, or the code is not after all that
   this table describes. */
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

/* Publishes an empty table as the next one of the chain: for code after all that the chain describes. -1 where there is one. */
static inline int sframegen_jit_extend(struct sframegen_jit_table *table, struct sframegen_jit_table *next) {
    if (table->next != 0 || next->used_len != 0) return -1;
    __atomic_store_n(&table->next, (uint64_t)(uintptr_t)next, __ATOMIC_RELEASE);
    return 0;
}

/* Says that the code at an offset is gone; before it is, and when no thread is in it. `first`: of the chain. -1 where no entry
   covers the offset. */
static inline int sframegen_jit_remove(struct sframegen_jit_table *first, uint32_t ip_off) {
    struct sframegen_jit_table *table = first;
    for (; table != NULL; table = (struct sframegen_jit_table *)(uintptr_t)table->next) {
        struct sframegen_jit_fre *entries = sframegen_jit_entries(table);
        size_t low = 0, high = sframegen_jit_count(table);
        while (low < high) { /* the first one after the offset */
            const size_t middle = low + (high - low) / 2;
            if (entries[middle].ip_off <= ip_off) low = middle + 1;
            else high = middle;
        }
        if (low != 0 && ip_off - entries[low - 1].ip_off < entries[low - 1].size) {
            __atomic_store_n(&entries[low - 1].info, (uint8_t)(entries[low - 1].info | SFRAMEGEN_JIT_REMOVED), __ATOMIC_RELEASE);
            __atomic_thread_fence(__ATOMIC_SEQ_CST); /* seen before what the memory is used for next */
            return 0;
        }
    }
    return -1;
}

/* Puts a region into the list. `region` is zeroed memory, or one that was unregistered. */
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

/* The region's code and tables may go afterwards. */
static inline void sframegen_jit_unregister(struct sframegen_jit_region *region) {
    __atomic_store_n(&region->serial, region->serial + 1, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* seen before what the memory is used for next */
}

#ifdef __cplusplus
}
#endif

#endif
