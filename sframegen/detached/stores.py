"""Finds the detached section for a file in the stores that a command reads.

A store is a directory of detached sections (detached_file.py), each in a file that is named by the build-id.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from sframegen.base.errors import FormatError, name_file_in_errors
from sframegen.detached.detached_file import ADDRESS, Identity, identity_of, path_in_store, read_section
from sframegen.elf.file import ElfFile, map_descriptor, open_regular
from sframegen.format.decode import SframeSection, open_section
from sframegen.format.locate import find_sframe, open_sframe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")
StrPath = str | os.PathLike[str]

VARIABLE = "SFRAMEGEN_PATH"
DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
ROOT = 0  # user and group id of root


def list_stores(options: Iterable[str]) -> list[str]:
    """Return the stores: the directories of a command line, then those of the environment variable."""
    return [*options, *filter(None, os.environ.get(VARIABLE, "").split(":"))]


class Stores:
    """The stores to search, in order. The object is true if there are any.

    A file is used only if root, this user or the owner of the directory owns it, and nobody else can write to it.
    """

    def __init__(self, directories: Iterable[StrPath] = ()) -> None:
        self._directories = [os.fspath(directory) for directory in directories]
        self._notes: dict[str, bool] = {}  # message about a file that is not used -> has `take_notes` returned it?

    def __bool__(self) -> bool:
        return bool(self._directories)

    def find(self, identity: Identity | None, use: Callable[[memoryview], T]) -> T | None:
        """Return the result of `use` for the first usable section of a file with that identity; None if there is none.

        `use` gets the section's bytes, which stay mapped while referenced, and raises FormatError if the section is damaged. The
        section is at address 0. `find` does not raise: `take_notes` returns which files are not used, and why.
        """
        for directory in self._directories if identity else ():
            assert identity is not None
            path = _path_in(directory, identity.build_id)
            try:
                with name_file_in_errors(path):
                    return use(read_section(_map_section(directory, path, identity.build_id), path, identity))
            except FileNotFoundError:
                continue
            except (FormatError, OSError) as error:
                reason = str(error) if isinstance(error, FormatError) else f"{path}: {error.strerror}"
                self._notes.setdefault(f"{reason}; not used", False)
        return None

    def find_for_file(self, elf: ElfFile, use: Callable[[memoryview], T]) -> T | None:
        """Call `find` with the identity of an ELF file."""
        return self.find(self._identity_of(elf), use)

    def open_for_file(self, elf: ElfFile) -> SframeSection:
        """Open the file's own section, else the one in a store. Raises FormatError if there is none, or its own is bad."""
        if find_sframe(elf) is None:

            def open_searchable(data: memoryview) -> SframeSection:
                section = open_section(data, ADDRESS)
                _ = section.seeker  # raises FormatError if the section cannot be searched
                return section

            detached = self.find_for_file(elf, open_searchable)
            if detached is not None:
                return detached
        return open_sframe(elf)

    def take_notes(self) -> list[str]:
        """Return a line for each file that was not used, except lines that an earlier call returned."""
        new = [note for note, is_returned in self._notes.items() if not is_returned]
        self._notes.update(dict.fromkeys(new, True))
        return new

    def describe_state_for(self, elf: ElfFile) -> str:
        """Return a text that changes when a store gets, loses or replaces a section for the file; "" if none has one."""
        identity = self._identity_of(elf)
        if identity is None:
            return ""
        states = [_read_file_state(directory, identity.build_id) for directory in self._directories]
        return repr(states) if any(states) else ""

    def _identity_of(self, elf: ElfFile) -> Identity | None:
        if self:
            with suppress(FormatError):  # a file with damaged notes does not have an identity
                return identity_of(elf)
        return None


def _path_in(directory: str, build_id: bytes) -> str:
    """Return the path of a section's file, for messages."""
    return os.path.join(directory, path_in_store(build_id))  # noqa: PTH118 - pathlib takes longer


def _map_section(directory: str, path: str, build_id: bytes) -> memoryview:
    """Open and map a section's file; no links are followed below the directory. Raises FormatError and OSError."""
    *folders, name = path_in_store(build_id).split("/")
    here = os.open(directory, DIRECTORY)
    try:
        owner = os.fstat(here).st_uid
        for folder in folders:
            inner = os.open(folder, DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = inner
        descriptor = open_regular(name, path, os.O_NOFOLLOW, directory=here)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise FormatError("a symbolic link or another file has its name", file=path) from error
        raise
    finally:
        os.close(here)
    try:
        _check_trusted(os.fstat(descriptor), owner, path)
        return map_descriptor(descriptor, path)[0]
    finally:
        os.close(descriptor)


def _check_trusted(status: os.stat_result, owner: int, path: str) -> None:
    """Raise FormatError if somebody untrusted may have written the file. `owner`: user id of the store's owner."""
    user = os.geteuid()
    if status.st_uid not in (ROOT, user, owner):
        raise FormatError("it belongs to another user than you, root or the owner of the store", file=path)
    if status.st_mode & stat.S_IWOTH or (user == ROOT and status.st_gid != ROOT and status.st_mode & stat.S_IWGRP):
        raise FormatError("others can write to it", file=path)


def _read_file_state(directory: str, build_id: bytes) -> tuple[int, ...] | None:
    try:
        status = os.lstat(_path_in(directory, build_id))
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
