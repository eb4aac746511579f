"""Small packages together: a task of its own would cost the scheduler more than such a package costs a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.fleet.sources.items import Item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

BATCH_BYTES = 1 << 22  # of packages: about a second of work
BATCH_PACKAGES = 64

NumberedItem = tuple[int, Item]


def batches(waiting: Iterable[NumberedItem], fair_share: Callable[[int], int]) -> Iterator[list[NumberedItem]]:
    """Packages in their order. One of unknown size is a batch of its own. `fair_share`: the most for a batch from a number on."""
    batch: list[NumberedItem] = []
    room = 0
    for number, item in waiting:
        size = item.size if item.size >= 0 else BATCH_BYTES
        if batch and (size > room or len(batch) >= min(BATCH_PACKAGES, fair_share(batch[0][0]))):
            yield batch
            batch = []
        if not batch:
            room = BATCH_BYTES
        batch.append((number, item))
        room -= size
    if batch:
        yield batch
