"""The exceptions for bad files and failed changes, and the reasons why a good file is not changed."""

from __future__ import annotations

from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class SframegenError(Exception):
    """The base class of sframegen's errors. `str()` is one line: `app.so: .eh_frame+0x1a4: expected 4 bytes, have 2`."""

    __module__ = "sframegen"  # here and below: the module that users import the class from

    message: str  #: what is wrong, without the place
    place: str  #: name of a section or table, or ""
    offset: int | None  #: bytes from the start of that place
    file: str  #: path, or ""; callers that know it set it later (name_file_in_errors)

    def __init__(self, message: str, place: str = "", offset: int | None = None, file: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.offset = offset
        self.file = file

    def __str__(self) -> str:
        location = self.place + (f"+{self.offset:#x}" if self.offset is not None else "")
        return ": ".join(part for part in (self.file, location, self.message) if part)


class FormatError(SframegenError):
    """Bad input: a damaged file, or one of the wrong kind."""

    __module__ = "sframegen"


class VerificationError(SframegenError):
    """The new file differs from the plan, a fault of sframegen; the old one is still there."""

    __module__ = "sframegen"


@contextmanager
def name_file_in_errors(file: str) -> Iterator[None]:
    """Set the file of a SframegenError that the block raises, unless the error already has one."""
    try:
        yield
    except SframegenError as error:
        error.file = error.file or file
        raise


class Refusal(Enum):
    """The reasons not to change a good file. Comments name the parameter, if there is one, that allows the change."""

    SIGNED = "signed"  #: a signature or checksum would no longer hold: `force`
    OTHER_SECTION = "other section"  #: it has an SFrame section, and not the one to be added: `replace`
    FOREIGN_SECTION = "foreign section"  #: another tool made the section that is to be removed: `force`
    FOREIGN_OBJECT = "section of a foreign object"  #: the same of an object, without a record: objcopy -R .sframe
    DYNAMIC_LOADER = "dynamic loader"  #: Linux before 6.7 could not start programs with it: `min_kernel="6.7"` or `force`
    OLD_KERNELS = "old kernels"  #: Linux before 5.18 could not start it: `min_kernel="5.18"`
    NO_ROOM = "no room"  #: no place for the section or its headers
    NO_ROOM_LOADED = "no room to load it"  #: the same, but there is one for a section that is not loaded: `unloaded`
    NO_ROOM_IN_PLACE = "no room in place"  #: the section does not fit where the old one is; `add_section` with `replace` moves it
    APPENDED_DATA = "appended data"  #: what follows the ELF image would not be found any more
    INEXPRESSIBLE = "inexpressible"  #: the version cannot express any of it
    NO_BUILD_ID = "no build-id"  #: a detached section would have no name
    NO_LINKER = "no linker"  #: the linker cannot be run: `linker`


DIFFERENT_SECTION = "already has a different SFrame section"


class RefusedError(SframegenError):
    """A refusal to change good input, with the `reason`. Nothing was written."""

    __module__ = "sframegen"

    reason: Refusal  #: why

    def __init__(self, reason: Refusal, message: str, place: str = "", offset: int | None = None, file: str = "") -> None:
        super().__init__(message, place, offset, file)
        self.args = (reason, message)  # unpickling in another process calls the class with these
        self.reason = reason
