#define _GNU_SOURCE
#include "unwind.h"

#include <link.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#ifndef PT_GNU_SFRAME
#define PT_GNU_SFRAME 0x6474e554
#endif

enum { MAGIC = 0xdee2, VERSION = 3, AMD64 = 3, SORTED = 1, PCREL = 4 };
enum { REGISTER = 1, DEREF = 2, REGISTER_SHIFT = 3 }; /* of a control word */
enum { HEADER_SIZE = 28, INDEX_SIZE = 16, ATTRIBUTE_SIZE = 5 };

const char *const shape_names[SHAPES] = {
    "default-sp", "default-fp", "flex-register", "flex-fp-deref", "flex-other", "mask", "signal", "no-ra",
};

/* -- reading bytes within bounds */

struct bytes {
    const unsigned char *data;
    uint64_t size;
};

static bool part(struct bytes from, uint64_t offset, uint64_t size, struct bytes *to)
{
    if (offset > from.size || size > from.size - offset)
        return false;
    *to = (struct bytes){from.data + offset, size};
    return true;
}

/* A little-endian number of `width` bytes; what is outside fails the whole look-up. */
static bool number(struct bytes from, uint64_t offset, unsigned width, uint64_t *value)
{
    struct bytes place;
    if (!part(from, offset, width, &place))
        return false;
    *value = 0;
    memcpy(value, place.data, width);
    return true;
}

static int64_t sign_extended(uint64_t value, unsigned width)
{
    unsigned unused = 64 - 8 * width;
    return (int64_t)(value << unused) >> unused;
}

bool read_word(const struct process *process, uint64_t address, uint64_t *word)
{
    return pread(process->memory, word, sizeof *word, (off_t)address) == sizeof *word;
}

/* -- the loaded object that an address is in */

struct search {
    uint64_t pc;
    uint64_t base;
    const char *name;
    struct bytes section;
};

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
    struct search *search = data;
    bool inside = false;
    struct bytes section = {NULL, 0};
    (void)size;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uint64_t start = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD && search->pc >= start && search->pc - start < segment->p_memsz)
            inside = true;
        if (segment->p_type == PT_GNU_SFRAME)
            section = (struct bytes){(const unsigned char *)start, segment->p_memsz};
    }
    if (!inside)
        return 0;
    search->base = info->dlpi_addr;
    search->name = info->dlpi_name;
    search->section = section;
    return 1;
}

const char *object_of(uint64_t pc, uint64_t *base)
{
    struct search search = {.pc = pc};
    if (!dl_iterate_phdr(visit, &search))
        return NULL;
    *base = search.base;
    return search.name;
}

/* -- the row that holds at an address */

struct row {
    bool flex, mask, signal;
    unsigned info, count, width;
    struct bytes words;
    int64_t fixed_fp, fixed_ra;
};

static const char *find_row(struct bytes section, uint64_t pc, struct row *row)
{
    uint64_t magic, version, flags, abi, fixed_fp, fixed_ra, auxiliary, fdes, fre_size, index_offset, fre_offset;
    if (!(number(section, 0, 2, &magic) && number(section, 2, 1, &version) && number(section, 3, 1, &flags) &&
          number(section, 4, 1, &abi) && number(section, 5, 1, &fixed_fp) && number(section, 6, 1, &fixed_ra) &&
          number(section, 7, 1, &auxiliary) && number(section, 8, 4, &fdes) && number(section, 16, 4, &fre_size) &&
          number(section, 20, 4, &index_offset) && number(section, 24, 4, &fre_offset)))
        return "short header";
    if (magic != MAGIC || version != VERSION || abi != AMD64 || !(flags & SORTED))
        return "not a sorted V3 section for AMD64";
    row->fixed_fp = sign_extended(fixed_fp, 1);
    row->fixed_ra = sign_extended(fixed_ra, 1);

    struct bytes index, fres;
    uint64_t body = HEADER_SIZE + auxiliary;
    if (!part(section, body + index_offset, fdes * INDEX_SIZE, &index) || !part(section, body + fre_offset, fre_size, &fres))
        return "a table outside the section";

    /* The last function that starts at or before PC. */
    uint64_t low = 0, high = fdes, function = 0, start = 0;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2, distance;
        if (!number(index, middle * INDEX_SIZE, 8, &distance))
            return "index";
        uint64_t origin = (uint64_t)(uintptr_t)(flags & PCREL ? index.data + middle * INDEX_SIZE : section.data);
        if (origin + distance <= pc) {
            function = middle;
            start = origin + distance;
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    uint64_t size, first, rows, info, info2, period;
    if (low == 0 || !number(index, function * INDEX_SIZE + 8, 4, &size) || pc - start >= size)
        return "no function";
    if (!number(index, function * INDEX_SIZE + 12, 4, &first) || !number(fres, first, 2, &rows) ||
        !number(fres, first + 2, 1, &info) || !number(fres, first + 3, 1, &info2) || !number(fres, first + 4, 1, &period))
        return "attribute";
    row->signal = info >> 7;
    row->mask = info >> 4 & 1;
    row->flex = info2 & 1;
    if ((info2 & 0x1f) > 1 || (info & 0xf) > 2 || (row->mask && !period))
        return "attribute of a kind unknown";

    uint64_t offset = row->mask ? (pc - start) % period : pc - start;
    unsigned start_width = 1u << (info & 0xf);
    uint64_t at = first + ATTRIBUTE_SIZE;
    bool found = rows == 0; /* a function without rows is an outermost frame */
    row->count = 0;
    while (rows--) {
        uint64_t row_start, fre_info;
        if (!number(fres, at, start_width, &row_start) || !number(fres, at + start_width, 1, &fre_info) || (fre_info >> 5 & 3) > 2)
            return "row";
        unsigned count = fre_info >> 1 & 0xf, width = 1u << (fre_info >> 5 & 3);
        struct bytes words;
        if (!part(fres, at + start_width + 1, (uint64_t)count * width, &words))
            return "words of a row";
        if (row_start > offset)
            break;
        row->info = (unsigned)fre_info;
        row->count = count;
        row->width = width;
        row->words = words;
        found = true;
        at += start_width + 1 + (uint64_t)count * width;
    }
    return found ? NULL : "no row";
}

static uint64_t control_word(const struct row *row, unsigned n)
{
    uint64_t value = 0;
    memcpy(&value, row->words.data + (size_t)n * row->width, row->width);
    return value;
}

static int64_t offset_word(const struct row *row, unsigned n)
{
    return sign_extended(control_word(row, n), row->width);
}

/* -- applying it */

/* One item of a flexible row: register + offset or CFA + offset, or what is stored there. */
static bool follow(const struct process *process, const struct frame *frame, const uint64_t *cfa, uint64_t control, int64_t offset,
                   uint64_t *value)
{
    uint64_t base;
    if (control & REGISTER) {
        uint64_t number = control >> REGISTER_SHIFT;
        if (number >= PC || !(frame->known >> number & 1))
            return false;
        base = frame->value[number];
    } else {
        if (!cfa)
            return false;
        base = *cfa;
    }
    *value = base + (uint64_t)offset;
    return !(control & DEREF) || read_word(process, *value, value);
}

/* The kernel's ucontext is at SP in a signal frame. It has what SFrame doesn't say, and must agree with what it does say. */
static bool take_saved_registers(const struct process *process, uint64_t sp, struct frame *caller)
{
    enum { GENERAL = 40 }; /* offset of uc_mcontext in struct ucontext */
    /* R8-R15, RDI, RSI, RBP, RBX, RDX, RAX, RCX, RSP, RIP */
    static const unsigned char order[REGISTERS] = {8, 9, 10, 11, 12, 13, 14, 15, 5, 4, RBP, 3, 1, 0, 2, RSP, PC};
    for (unsigned i = 0; i < REGISTERS; i++) {
        uint64_t word;
        unsigned n = order[i];
        if (!read_word(process, sp + GENERAL + 8 * i, &word))
            return false;
        if (caller->known >> n & 1 && caller->value[n] != word)
            return false;
        caller->value[n] = word;
        caller->known |= 1u << n;
    }
    return true;
}

/* cfa, ra and fp of a flexible row. */
static bool follow_flexible(const struct process *process, const struct frame *frame, const struct row *row, uint64_t *cfa,
                            uint64_t *ra, uint64_t *fp, bool *fp_known, enum shape *shape)
{
    uint64_t control[3] = {0, 0, 0};
    int64_t offset[3] = {0, row->fixed_ra, row->fixed_fp};
    unsigned n = 0;
    for (unsigned item = 0; item < 3 && n < row->count; item++) {
        control[item] = control_word(row, n++);
        if (control[item] == 0)
            continue; /* a padding word: the fixed offset, if the ABI has one */
        if (n == row->count)
            return false;
        offset[item] = offset_word(row, n++);
    }
    if (n != row->count || !(control[0] & REGISTER))
        return false;
    uint64_t base = control[0] >> REGISTER_SHIFT;
    if (control[0] & DEREF)
        *shape = base == RBP ? FLEX_FP_DEREF : FLEX_OTHER;
    else
        *shape = base == RBP || base == RSP ? FLEX_OTHER : FLEX_REGISTER;
    if (control[1] == 0)
        control[1] = DEREF;
    if (control[2] == 0 && row->fixed_fp)
        control[2] = DEREF;
    if (!follow(process, frame, NULL, control[0], offset[0], cfa) || !follow(process, frame, cfa, control[1], offset[1], ra))
        return false;
    if (control[2])
        *fp_known = follow(process, frame, cfa, control[2], offset[2], fp);
    return true;
}

/* The same of a default row. */
static bool follow_default(const struct process *process, const struct frame *frame, const struct row *row, uint64_t *cfa,
                           uint64_t *ra, uint64_t *fp, bool *fp_known, enum shape *shape)
{
    unsigned base = row->info & 1 ? RSP : RBP;
    if (row->count > 2 || !(frame->known >> base & 1))
        return false;
    *shape = base == RSP ? DEFAULT_SP : DEFAULT_FP;
    *cfa = frame->value[base] + (uint64_t)offset_word(row, 0);
    int64_t fp_offset = row->count == 2 ? offset_word(row, 1) : row->fixed_fp;
    if (fp_offset)
        *fp_known = read_word(process, *cfa + (uint64_t)fp_offset, fp);
    return read_word(process, *cfa + (uint64_t)row->fixed_ra, ra);
}

enum outcome step(const struct process *process, struct frame *frame, enum shape *shape, const char **reason)
{
    struct search search = {.pc = frame->value[PC] - !frame->exact};
    if (!dl_iterate_phdr(visit, &search) || !search.section.data) {
        *reason = NO_SECTION;
        return LOST;
    }
    struct row row = {0};
    if ((*reason = find_row(search.section, search.pc, &row)))
        return LOST;
    if (row.count == 0) {
        *shape = NO_RA;
        return OUTERMOST;
    }
    uint64_t cfa, ra, fp = frame->value[RBP], sp = frame->value[RSP];
    bool fp_known = frame->known >> RBP & 1;
    if (!(row.flex ? follow_flexible : follow_default)(process, frame, &row, &cfa, &ra, &fp, &fp_known, shape)) {
        *reason = "a row that cannot be followed";
        return LOST;
    }
    if (row.mask)
        *shape = MASK;
    frame->value[PC] = ra;
    frame->value[RSP] = cfa;
    frame->value[RBP] = fp;
    frame->known = 1u << PC | 1u << RSP | (uint32_t)fp_known << RBP;
    frame->exact = row.signal;
    if (row.signal) {
        *shape = SIGNAL;
        if (!take_saved_registers(process, sp, frame)) {
            *reason = "SFrame disagrees with the context that the kernel saved";
            return LOST;
        }
    }
    return CALLER;
}
