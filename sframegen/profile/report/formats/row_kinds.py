"""Splits the rows of a call tree into parts, and numbers their kinds: rows of a kind have equal task, group and end of the walk.

Formats encode the fields of a kind once, and use the bytes for all its rows. NumberedItems numbers their names and other texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from sframegen.base.columns import zeros
from sframegen.profile.report.tree_passes import number_row_kinds
from sframegen.profile.stacks.numbered import Numbered

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator

    from sframegen.profile.report.named import NamedProfile

T = TypeVar("T")


class NumberedItems(Generic[T]):
    """Numbers items in the order of their first use. `first`: items to number at once; `start`: the first number."""

    def __init__(self, *first: T, start: int = 0) -> None:
        self._start = start
        self._numbers: dict[T, int] = {}
        for item in first:
            self.number_of(item)

    def number_of(self, item: T) -> int:
        return self._numbers.setdefault(item, len(self._numbers) + self._start)

    @property
    def items(self) -> list[T]:
        return [*self._numbers]


ROWS_IN_PART = 1 << 13
RELEASE_INTERVAL = 1 << 18  # rows before the memory of columns in files is released again


class RowKind(NamedTuple):
    """The numbers of the task and group of a row, and the End of its walk."""

    task: int
    group: int
    end: int


class RowKinds(NamedTuple):
    """The kinds of a part's rows. `kind_of`: for each row from `first` on its index in `kinds`; undefined without samples."""

    first: int
    kind_of: array[int]
    kinds: list[RowKind]


def split_rows_by_kind(named: NamedProfile) -> Iterator[RowKinds]:
    """Yield the kinds of all rows, in parts of ROWS_IN_PART rows."""
    tree, numbered = named.tree, Numbered(named.room)
    for first in range(0, tree.rows.count, ROWS_IN_PART):
        if first % RELEASE_INTERVAL == 0:
            named.room.release_pages()
        kind_of = zeros("I", min(ROWS_IN_PART, tree.rows.count - first))
        numbered.clear()
        number_row_kinds(tree, named.group_of, first, kind_of, numbered)
        yield RowKinds(first, kind_of, _decode_kinds(numbered))
    numbered.close()


def _decode_kinds(numbered: Numbered) -> list[RowKind]:
    keys = zip(numbered.first[: numbered.count], numbered.second, strict=False)
    return [RowKind(key & 0xFFFFFFFF, group, key >> 32) for key, group in keys]  # as number_row_kinds packs them
