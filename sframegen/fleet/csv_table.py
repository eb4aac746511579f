"""Rows -> CSV, which spreadsheets open: texts that they would take for formulas begin with an apostrophe there."""

from __future__ import annotations

import csv
from dataclasses import fields
from typing import TYPE_CHECKING, BinaryIO, TextIO

from sframegen.elf.text import printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FORMULAS = ("=", "+", "-", "@")


class CsvTable:
    """A header line, then a line for each row, in a private file until all are there."""

    def __init__(self, kind: type[DataclassInstance], text: TextIO) -> None:
        self._names = [field.name for field in fields(kind)]
        self._text = text
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._writer.writerow(self._names)

    def add(self, row: DataclassInstance) -> None:
        self._writer.writerow([_cell(getattr(row, name)) for name in self._names])

    def write(self, file: BinaryIO) -> None:
        """Raises OSError."""
        self._text.seek(0)
        file.writelines(line.encode() for line in self._text)


def _cell(value: str | float | dict[str, int] | list[str]) -> str | float:
    """Return a mapping as `name: number; name: number`, a list with semicolons, a text in one line."""
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, dict):
        value = "; ".join(f"{name}: {number}" for name, number in value.items())
    elif isinstance(value, list):
        value = "; ".join(value)
    text = printable(value)
    return f"'{text}" if text.startswith(FORMULAS) else text
