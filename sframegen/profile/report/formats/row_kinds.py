"""Rows of a tree in parts, with their kinds: rows of a kind have the same task, group and end of the walk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from sframegen.base.columns import zeros
from sframegen.profile.report.tree_passes import number_kinds
from sframegen.profile.stacks.numbered import Numbered

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator

    from sframegen.profile.report.named import Named


T = TypeVar("T")


class TableNumbers(Generic[T]):
    """Numbers items in the order of their first use. `start`: the first number."""

    def __init__(self, *first: T, start: int = 0) -> None:
        self._start = start
        self._numbers: dict[T, int] = {}
        for item in first:
            self.of(item)

    def of(self, item: T) -> int:
        return self._numbers.setdefault(item, len(self._numbers) + self._start)

    @property
    def items(self) -> list[T]:
        return [*self._numbers]


ROWS = 1 << 13  # of a part
REST = 1 << 18  # rows, after which the memory of columns in files is released


class RowKind(NamedTuple):
    """The task, group and end of a row; `task` and `group` are numbers."""

    task: int
    group: int
    end: int


class RowKinds(NamedTuple):
    """The kinds of a part's rows. `of_row`: the kind number of each row from `first` on; undefined for rows without samples."""

    first: int
    of_row: array[int]
    kinds: list[RowKind]


def rows_in_parts(named: Named) -> Iterator[RowKinds]:
    """Yield the kinds of all rows, in parts of ROWS rows."""
    tree, known = named.tree, Numbered(named.room)
    for first in range(0, tree.rows.count, ROWS):
        if first % REST == 0:
            named.room.release_pages()
        of_row = zeros("I", min(ROWS, tree.rows.count - first))
        known.clear()
        number_kinds(tree, named.group_of, first, of_row, known)
        yield RowKinds(first, of_row, _kinds(known))
    known.close()


def _kinds(known: Numbered) -> list[RowKind]:
    keys = zip(known.first[: known.count], known.second, strict=False)
    return [RowKind(key & 0xFFFFFFFF, group, key >> 32) for key, group in keys]
