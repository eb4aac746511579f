"""glibc's reader of version 2 (2.42 to 2.44), which looks at no length: what it reads outside of the section is reported."""

from __future__ import annotations

from tests.checks.readers.memory import V2_INDEX, Memory, header_of


class NotUsedError(Exception):
    """backtrace() goes by DWARF instead, always."""


class NotFoundError(Exception):
    """backtrace() ends here, or goes by DWARF."""


class GivenUpError(Exception):
    """A row is found, and no CFA in it: backtrace() forgets the frames that it has, and goes by DWARF."""


def int32(number: int) -> int:
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


class Glibc:
    """A section that was decoded. Raises NotUsedError where glibc refuses it, and OutOfBoundsError."""

    def __init__(self, data: bytes, order: str) -> None:
        self.memory = Memory(data, order)
        header = header_of(self.memory)
        if header.magic != 0xDEE2 or header.version != 2 or header.flags & ~7 or header.fdeoff > header.freoff:
            raise NotUsedError
        if not header.num_fdes or not header.flags & 1:
            raise NotUsedError
        self.header = header
        self.index = 28 + header.auxhdr_len
        self.fres = self.index + header.num_fdes * V2_INDEX

    def start(self, number: int) -> int:
        """From the section's first byte."""
        entry = self.index + number * V2_INDEX
        return int32(self.memory.read(entry, 4, signed=True) + (entry if self.header.flags & 4 else 0))

    def find(self, pc: int) -> None:
        """`pc`: from the section's first byte. Raises NotFoundError, GivenUpError, ZeroDivisionError, OutOfBoundsError."""
        low, high, found = 0, int32(self.header.num_fdes - 1), -1
        while low <= high:
            middle = (low + high) // 2
            start = self.start(middle)
            if start <= pc and pc - start < self.memory.read(self.index + middle * V2_INDEX + 4, 4):
                found = middle
                break
            if start < pc:
                low = middle + 1
            else:
                high = middle - 1
        if found < 0:
            raise NotFoundError
        self.row(found, pc - self.start(found))

    def row(self, number: int, offset: int) -> None:
        read = self.memory.read
        entry = self.index + number * V2_INDEX
        size, at, count = read(entry + 4, 4), self.fres + read(entry + 8, 4), read(entry + 12, 4)
        info, period = read(entry + 16, 1), read(entry + 17, 1)
        width = {0: 1, 1: 2, 2: 4}.get(info & 0x0F, 0)
        wanted = offset
        for row in range(count):
            if not width:
                raise NotFoundError
            first, words = read(at, width), read(at + width, 1)
            number_of_words, word_size = words >> 1 & 0x0F, words >> 5 & 3
            after = at + width + 1 + number_of_words * {0: 1, 1: 2, 2: 4, 3: 1}[word_size]
            last = (read(after, width) if row < count - 1 else size) - 1
            if first > offset:
                raise NotFoundError
            if info & 0x10:
                wanted = offset % period
            if first <= wanted <= last % (1 << 32):
                if word_size == 3 or number_of_words > 3:
                    raise NotFoundError
                if not number_of_words:
                    raise GivenUpError
                for word in range(number_of_words):
                    read(at + width + 1 + (word << word_size), 1 << word_size)
                return
            at = after
        raise NotFoundError
