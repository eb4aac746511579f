"""The columns of the tables of `sframegen fleet run`, from the code that writes them, into docs/fleet.md.

usage: python -m tools.fleet_columns
"""

from __future__ import annotations

import inspect
import io
import re
from pathlib import Path

from benchmarks.figures import written_into
from sframegen.fleet.collecting import ParquetTable
from sframegen.fleet.result_rows import FileRow, PackageRow

DOCUMENT = Path("docs/fleet.md")
BEGIN = "<!-- python -m tools.fleet_columns writes this: begin -->"
FIELD = re.compile(r"^    (\w+): .*?#: (.*)$", re.MULTILINE)
TABLES = {"files.parquet": FileRow, "packages.parquet": PackageRow}


def columns() -> str:
    """A Markdown table for each file."""
    parts = []
    for name, kind in TABLES.items():
        texts = dict(FIELD.findall(inspect.getsource(kind)))
        with ParquetTable(kind, io.BytesIO()) as table:
            types = {field.name: re.sub(r"<\w+: ", "<", str(field.type)) for field in table.schema}
        lines = [f"| `{column}` | {of} | {texts[column]} |" for column, of in types.items()]
        parts.append("\n".join([f"| `{name}` | type | |", "| --- | --- | --- |", *lines]))
    return "\n\n".join(parts)


if __name__ == "__main__":
    DOCUMENT.write_text(written_into(DOCUMENT.read_text(), columns(), BEGIN))
