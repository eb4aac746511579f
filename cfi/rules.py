"""The content of CFI sections as cfi.reader returns it: CIEs, columns of FDEs and rows, and a CfiRule for each distinct row."""

from __future__ import annotations

from array import array

from sframegen.base.columns import Fdes, Rows
from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cfi.opcodes import RuleKind
    from sframegen.base.columns import Column

UNKNOWN_START = (1 << 64) - 2  # the start of an FDE whose address cannot be determined


class RegisterRule(NamedTuple):
    """The rule that finds one register, or the CFA. RuleKind defines `a` and `b`; `expression` has the bytes of an expression."""

    kind: RuleKind
    a: int = 0
    b: int = 0
    expression: bytes = b""


class CfiRule(NamedTuple):
    """The rules of one row that matter to a stack trace. `ra_column`: the CIE's return address register."""

    ra_column: int
    cfa: RegisterRule
    ra: RegisterRule
    fp: RegisterRule
    sp: RegisterRule
    ra_state: RegisterRule  # of RA_SIGN_STATE. UNSPECIFIED: bit 0 of `a` means signed (AArch64), bit 1 signed with the PC


class Cie(NamedTuple):
    """A common information entry (CIE). `offset`, `program` (of its instructions) and `end` are offsets in the section."""

    section: str  # name
    offset: int
    augmentation: str
    code_alignment: int
    data_alignment: int
    ra_column: int
    fde_encoding: int
    has_augmentation_data: bool
    address_size: int
    segment_selector_size: int
    program: int
    end: int

    @property
    def signal(self) -> bool:
        """True if its FDEs describe signal frames."""
        return "S" in self.augmentation

    @property
    def key_b(self) -> bool:
        """True if return addresses are signed with key B (AArch64)."""
        return "B" in self.augmentation


class FdeFault(NamedTuple):
    """An FDE whose instructions cannot be read. It has one row, whose CFA is UNREADABLE, or none if it is empty."""

    start: int  # address of the code that the FDE describes
    section: str
    offset: int  # where the fault is in the section
    fault: str

    def __str__(self) -> str:
        return f"{self.section}+{self.offset:#x}: {self.fault}"


class FdeTable:
    """The FDEs of a file in columns, in the order of their sections. The rows of FDE i are first_row[i] .. first_row[i + 1] - 1.

    A row applies from its `row_start` (bytes from the FDE's start) to that of the next row, or to the end of the FDE's range.
    """

    def __init__(self) -> None:
        self.start: Column = array("Q")  # address
        self.size: Column = array("Q")  # bytes
        self.cie: Column = array("I")  # index into `cies`
        self.list_ends: list[int] = []  # for each section and the sections that continue it: the number of FDEs up to their end
        self.first_row: Column = array("I", [0])
        self.row_start: Column = array("I")
        self.row_rule: Column = array("I")  # index into `rules`
        self.cies: list[Cie] = []
        self.rules: list[CfiRule] = []
        self.faulty = 0  # FDEs whose instructions cannot be read
        self.faults: list[FdeFault] = []  # up to MAX_REPORTED of them

    def __len__(self) -> int:
        return len(self.start)

    def columns(self) -> Fdes:
        return Fdes(self.start, self.size, self.cie)

    def rows(self) -> Rows:
        return Rows(self.first_row, self.row_start, self.row_rule)
