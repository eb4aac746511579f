"""Which result a package has already, and the result of one that has no content: refused or failed before it was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.fleet.loose_files import states_of
from sframegen.fleet.result_rows import Finished, Outcome, PackageResult, PackageRow, one_line
from sframegen.fleet.sources.fetching import item_identity
from sframegen.fleet.sources.items import ItemKind

if TYPE_CHECKING:
    from sframegen.fleet.output_directory import OutputDirectory
    from sframegen.fleet.run_options import RunOptions
    from sframegen.fleet.sources.items import Item


def failed_key(item: Item, options: RunOptions) -> str:
    """The key of a result without a content."""
    return options.key_of("no content", item.name, item.place, item.refused)


def identity_key(item: Item, options: RunOptions) -> str:
    """What `seen` knows an item by; "" if only its content shows a change. Raises OSError."""
    if item.kind is ItemKind.FILE:
        identity = item_identity(item)
    else:
        identity = "\n".join(f"{name}\0{state}" for name, state in states_of(item).items())
    return options.key_of("seen", item.name, item.kind, identity) if identity else ""


def known(item: Item, options: RunOptions, output: OutputDirectory) -> Finished | None:
    """The result that an item has already. Raises OSError where its identity cannot be found."""
    identity = identity_key(item, options)
    key = output.seen_as(identity) if identity else ""
    package = output.done(key) if key else None
    return Finished(key, package.outcome, package.reason, is_new=False) if package else None


def refuse_or_fail(item: Item, options: RunOptions, output: OutputDirectory, outcome: Outcome, reason: str) -> Finished:
    """Write the result of a package that has none of its own. Raises OSError."""
    reason = one_line(reason)
    key = failed_key(item, options)
    output.write_result(key, PackageResult(PackageRow(item.name, item.source, outcome=outcome, reason=reason)))
    return Finished(key, outcome, reason)
