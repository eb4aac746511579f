"""Opens an input file, which is a linked file, a relocatable object, or an archive of objects."""

from __future__ import annotations

import io

from linker.files.copying import copy_file
from linker.objects.archive import is_archive, is_debian_package, read_members, rewrite_archive
from sframegen.base.errors import FormatError
from sframegen.base.quick_typing import TYPE_CHECKING, BinaryIO, NamedTuple
from sframegen.elf.file import ElfFile, map_file
from sframegen.elf.ranges import align_up
from sframegen.elf.records import ET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from linker.files.rights import Source


class Objects(NamedTuple):
    """A single object or an archive of objects. `members`: objects by the offset of their archive header; 0 for a single object."""

    file: str
    data: memoryview
    members: dict[int, ElfFile]

    @property
    def is_archive(self) -> bool:
        return is_archive(self.data)

    def copy(self, out: BinaryIO) -> None:
        """Write the file unchanged to an empty file."""
        if self.is_archive:
            out.write(self.data)
        else:
            copy_file(self.members[0], out)

    def size_with(self, sizes: Mapping[int, int]) -> int:
        """Return the size of the file with new sizes for some of its objects."""
        if not self.is_archive:
            return sizes.get(0, len(self.data))
        return len(self.data) + sum(align_up(size, 2) - align_up(len(self.members[at].data), 2) for at, size in sizes.items())

    def write(self, changed: Mapping[int, Callable[[BinaryIO], None]], out: BinaryIO) -> None:
        """Write the file to an empty one. `changed`: functions that write the new contents of some objects, by header offset."""
        if not self.is_archive:
            changed[0](out)
            return
        contents = {}
        for at, write in changed.items():
            buffer = io.BytesIO()
            write(buffer)
            contents[at] = buffer.getvalue()
        out.writelines(rewrite_archive(read_members(self.data, self.file), contents, self.file))

    def check(self, checks: Mapping[int, Callable[[ElfFile], list[str]]], written: ElfFile | Objects) -> list[str]:
        """Return the findings about a written file. `checks`: a function for each changed object, by header offset."""
        if isinstance(written, ElfFile) or len(written.members) != len(self.members):
            return ["other objects than before"]
        pairs = zip(self.members, written.members.values(), strict=True)
        return [f"{self.members[at].name}: {finding}" for at, elf in pairs if at in checks for finding in checks[at](elf)]


def open_input(path: str) -> ElfFile | Objects:
    """Open the file at `path`, and parse it with `parse_input`. Raises FormatError, OSError."""
    return parse_input(map_file(path)[0], path)


def parse_input(data: memoryview, path: str, source: Source | None = None) -> ElfFile | Objects:
    """Return a linked ELF file, or the objects of an object file or archive. Raises FormatError."""
    if is_archive(data):
        if is_debian_package(data):
            raise FormatError("a Debian package, not an archive of objects", file=path)
        return Objects(path, data, {at: elf for at, _, elf in read_archive_objects(data, path)})
    elf = ElfFile(data, path, source.status, source.descriptor) if source else ElfFile(data, path)
    return Objects(path, data, {0: elf}) if elf.header.e_type == ET.REL else elf


def read_archive_objects(data: memoryview, file: str) -> Iterator[tuple[int, str, ElfFile]]:
    """Yield (header offset, member name, object) for each object of an archive."""
    for member in read_members(data, file):
        if member.is_elf:
            elf = ElfFile(member.contents, f"{file}({member.name})")
            if elf.header.e_type == ET.REL:
                yield member.at, member.name, elf
