"""An ELF file -> a file with its decoded table: `sframegen table`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cfi.errors import SframegenError
from linker.files.location import locate
from linker.files.rename_into_place import writing_new
from sframegen.profile.tables.make_table import make_proven_table, make_table
from sframegen.profile.tables.table_file import stored

if TYPE_CHECKING:
    import os

    from sframegen.detached.stores import Stores
    from sframegen.elf.file import ElfFile

MODE = 0o666  # less the umask
NOTHING = "no SFrame section and no call frame information that could be used"


class WrittenTable(NamedTuple):
    """What `sframegen table` did, as `--json` prints it."""

    file: str
    output: str
    source: str  #: what the table was made of
    machine: int  #: e_machine
    base: int  #: link-time address of the first page
    pages: int
    rows: int
    rules: int
    left_out: int
    table_bytes: int
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        return self._asdict()

    def one_line(self) -> str:
        a_row = f", {self.table_bytes / self.rows:.2f} a row" if self.rows else ""
        return f"{self.output}: {self.rows:,} rows, {self.rules:,} rules, {self.table_bytes:,} bytes{a_row}, from {self.source}"


def write_table(elf: ElfFile, output: str | os.PathLike[str], stores: Stores, *, synthesize: bool = False) -> WrittenTable:
    """Write the table of a file. `synthesize`: with rules that its instructions prove, for code without call frame information.

    Raises SframegenError if there is none, OSError if it cannot be written.
    """
    proven = make_proven_table(elf, None, stores) if synthesize else None
    made = proven if proven is not None and proven.table is not None else make_table(elf, None, stores)
    if made.table is None:
        raise SframegenError(made.why.removeprefix(f"{elf.name}: ") or NOTHING, file=elf.name)
    content = stored(made.table, elf.header.e_machine)
    with locate(output) as target:
        if elf.status is not None and target.is_at(elf.status):
            raise SframegenError("it is FILE itself; give another name", file=str(target))
        with writing_new(target, MODE) as file:
            file.write(content)
    table = made.table
    warnings = list(filter(None, dict.fromkeys((proven.why if proven else "", made.why))))
    return WrittenTable(
        elf.name, str(output), made.origin.value, elf.header.e_machine, table.base, table.pages, table.rows, table.rules,
        table.left_out, len(content), warnings,
    )  # fmt: skip
