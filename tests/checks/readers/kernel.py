"""The Linux kernel's reader of version 3, as the patches of spring 2026 have it: registering a section, and finding a row.

Other than those, a row without data words is an outermost frame here: they mean it to be one, but fail on its CFA rule, as they do
on what `limit` shows.
"""

from __future__ import annotations

from tests.checks.readers.memory import ATTRIBUTE, V3_INDEX, Memory, header_of

EINVAL, EFAULT = "EINVAL", "EFAULT"
U64 = (1 << 64) - 1
Words = tuple[int, int, int]  # of a row: place, number and width


class KernelError(Exception):
    @property
    def code(self) -> str:
        return str(self.args[0])


class Kernel:
    """A section that was registered with its code, [first, last). Raises KernelError where the kernel refuses it."""

    def __init__(self, data: bytes, address: int, order: str, text: tuple[int, int]) -> None:
        self.memory = Memory(data, order)
        self.address = address
        self.text = text
        if len(data) < 28:
            raise KernelError(EFAULT)
        header = header_of(self.memory)
        if header.magic != 0xDEE2 or header.version != 3 or header.flags & 5 != 5 or header.auxhdr_len:
            raise KernelError(EINVAL)
        if not header.num_fdes or not header.num_fres or len(data) <= 28:
            raise KernelError(EINVAL)
        self.count = header.num_fdes
        self.index = 28 + header.fdeoff
        self.fres = 28 + header.freoff
        self.fres_end = self.fres + header.fre_len
        if self.fres < self.index + self.count * V3_INDEX or self.fres_end > len(data):
            raise KernelError(EINVAL)
        self.fixed_fp, self.fixed_ra = header.cfa_fixed_fp_offset, header.cfa_fixed_ra_offset

    def start(self, number: int) -> int:
        entry = self.index + number * V3_INDEX
        return (self.address + entry + self.memory.read(entry, 8, signed=True)) & U64

    def validate(self) -> None:
        """What CONFIG_SFRAME_VALIDATION adds when the section is registered."""
        before = 0
        for number in range(self.count):
            fde = Fde(self, number)
            if fde.start <= before:
                raise KernelError(EFAULT)
            before, offset, at = fde.start, -1, fde.rows
            for _ in range(fde.count):
                row, words, next_at = fde.row(at)
                fde.rule(words)
                if row <= offset:
                    raise KernelError(EFAULT)
                offset, at = row, next_at

    def find(self, ip: int) -> tuple[Fde, Words]:
        """The function and its row. Raises KernelError where nothing is found: EFAULT has the section removed from the process."""
        low, high, found = 0, self.count - 1, -1
        lowest, highest = 0, U64
        while low <= high:
            middle = (low + high) // 2
            start = self.start(middle)
            if ip >= start:
                if start < lowest:
                    raise KernelError(EFAULT)
                lowest, found, low = start, middle, middle + 1
            else:
                if start > highest:
                    raise KernelError(EFAULT)
                highest, high = start, middle - 1
        if found < 0:
            raise KernelError(EINVAL)
        fde = Fde(self, found)
        if not fde.start <= ip < fde.start + fde.size:
            raise KernelError(EINVAL)
        return fde, fde.find(ip - fde.start)

    def limit(self, ip: int, sp: int, fp: int) -> str:
        """What its unwinder does with the row that it finds: nothing where it can always use it. Raises as `find` does."""
        fde, (at, count, wide) = self.find(ip)
        if not count:
            return "outermost"
        if fde.info2 & 0x1F == 0:
            has_fp = count == (2 if self.fixed_ra else 3)
            return "fp-at-cfa" if has_fp and not self.memory.read(at + (count - 1) * wide, wide) else ""
        controls = [self.memory.read(at, wide)]
        at, count = at + 2 * wide, count - 2
        while count >= 2 and len(controls) < 3:
            controls.append(self.memory.read(at, wide))
            taken = 2 if controls[-1] else 1
            at, count = at + taken * wide, count - taken
        cfa, *others = controls
        if cfa >> 3 not in (sp, fp):
            return "register"
        if cfa & 2:
            return "cfa-memory"
        return "register" if any(control & 1 for control in others) else ""


class Fde:
    def __init__(self, kernel: Kernel, number: int) -> None:
        self.kernel = kernel
        self.start = kernel.start(number)
        if not kernel.text[0] <= self.start < kernel.text[1]:
            raise KernelError(EINVAL)
        entry = kernel.index + number * V3_INDEX
        read = kernel.memory.read
        self.size = read(entry + 8, 4)
        at = kernel.fres + read(entry + 12, 4)
        if at + ATTRIBUTE > kernel.fres_end:
            raise KernelError(EINVAL)
        self.count, self.info, self.info2, self.period = read(at, 2), read(at + 2, 1), read(at + 3, 1), read(at + 4, 1)
        self.rows = at + ATTRIBUTE

    def find(self, offset: int) -> Words:
        if self.info & 0x10:
            offset %= self.period
        before, chosen, at = -1, None, self.rows
        for _ in range(self.count):
            row, words, at = self.row(at)
            if chosen is not None and row <= before:
                raise KernelError(EFAULT)
            if row > offset:
                break
            before, chosen = row, words
        if chosen is None:
            raise KernelError(EINVAL)
        if not self.rule(chosen):
            raise KernelError(EINVAL)
        return chosen

    def row(self, at: int) -> tuple[int, Words, int]:
        """Its start; place, number and width of its data words; what follows."""
        read, end = self.kernel.memory.read, self.kernel.fres_end
        if self.info & 0x0F > 2:
            raise KernelError(EFAULT)
        width = 1 << (self.info & 0x0F)
        if at + width + 1 > end:
            raise KernelError(EFAULT)
        row, info = read(at, width), read(at + width, 1)
        if (not self.info & 0x10 and row > self.size) or info >> 5 & 3 == 3:
            raise KernelError(EFAULT)
        count, wide, at = info >> 1 & 0x0F, 1 << (info >> 5 & 3), at + width + 1
        if at + count * wide > end:
            raise KernelError(EFAULT)
        return row, (at, count, wide), at + count * wide

    def rule(self, words: Words) -> bool:
        """True if the CFA has a base register; KernelError where the words do not come out even."""
        at, count, wide = words
        if not count:
            return True
        if self.info2 & 0x1F == 0:
            tracked = 1 + (not self.kernel.fixed_ra) + (not self.kernel.fixed_fp)
            if count > tracked:
                raise KernelError(EFAULT)
            return True
        if self.info2 & 0x1F > 1 or count < 2:
            raise KernelError(EFAULT)
        base = self.kernel.memory.read(at, wide)
        at, count = at + 2 * wide, count - 2
        for _ in ("ra", "fp"):
            if count >= 2:
                taken = 2 if self.kernel.memory.read(at, wide) else 1
                at, count = at + taken * wide, count - taken
        if count:
            raise KernelError(EFAULT)
        return bool(base & 1)
