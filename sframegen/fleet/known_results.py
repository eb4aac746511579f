"""Which result a package has already, and the result of one that has no content: refused or failed before it was read."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from sframegen.fleet.loose_files import states_of
from sframegen.fleet.result_rows import Finished, Outcome, PackageResult, PackageRow, one_line
from sframegen.fleet.sources.fetching import remote_identity

if TYPE_CHECKING:
    from sframegen.fleet.output_directory import OutputDirectory
    from sframegen.fleet.run_options import RunOptions
    from sframegen.fleet.sources.items import Item


def failed_key(item: Item, options: RunOptions) -> str:
    """The key of a result without a content."""
    return options.key_of("no content", item.name, item.place, item.refused)


class Seen(NamedTuple):
    """What is known of an item's content before it is read."""

    identity: str  #: what `seen` of the output knows it by; "" if only the content shows a change
    state: str = ""  #: of a path: the same on each machine that sees the same content
    size: int = -1  #: of a path, in bytes


def seen(item: Item, options: RunOptions) -> Seen:
    """Raises FormatError, OSError."""
    if item.is_local and not item.sha256:
        states = states_of(item)
        identity = _key("\n".join((item.place, *map("\0".join, states.items()))), item, options)
        return Seen(identity, shared_state(states), sum(int(state.split()[0]) for state in states.values()))
    identity = f"sha256:{item.sha256}" if item.sha256 else remote_identity(item)
    return Seen(_key(identity, item, options) if identity else "", size=item.size)


def _key(identity: str, item: Item, options: RunOptions) -> str:
    return options.key_of("seen", item.name, item.kind, identity)


def shared_state(states: dict[str, str]) -> str:
    """Sizes and times of an item's files. Numbers of inodes, and times of their changes, differ between copies."""
    lines = (f"{name}\0{state.split()[:2]}\n" for name, state in states.items())
    return sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def known(identity: str, output: OutputDirectory) -> Finished | None:
    """The result that an item has already."""
    key = output.seen_as(identity) if identity else ""
    package = output.done(key) if key else None
    return Finished(key, package.outcome, package.reason, is_new=False) if package else None


def refuse_or_fail(item: Item, options: RunOptions, output: OutputDirectory, outcome: Outcome, reason: str) -> Finished:
    """Write the result of a package that has none of its own. Raises OSError."""
    reason = one_line(reason)
    key = failed_key(item, options)
    output.write_result(key, PackageResult(PackageRow(item.name, item.source, outcome=outcome, reason=reason)))
    return Finished(key, outcome, reason)
