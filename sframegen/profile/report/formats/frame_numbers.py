"""Numbers for frames and strings, in the order of their first use: most formats have tables of them."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class TableNumbers(Generic[T]):
    """`start`: the first number."""

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
