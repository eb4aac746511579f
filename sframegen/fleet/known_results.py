"""Which result a package has already, and the result of one that has no content: refused or failed before it was read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from sframegen.fleet.result_rows import Finished, Outcome, PackageResult, PackageRow, one_line
from sframegen.fleet.sources.fetching import opened_file, remote_identity

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


def seen(item: Item, options: RunOptions) -> Seen:
    """Raises FormatError, OSError."""
    if item.is_local and not item.sha256:
        with opened_file(item.place) as file:
            status = os.fstat(file.fileno())
        return Seen(_key(f"{item.place}\n{status_text(status)}", item, options), shared_state(status))
    identity = f"sha256:{item.sha256}" if item.sha256 else remote_identity(item)
    return Seen(_key(identity, item, options) if identity else "")


def _key(identity: str, item: Item, options: RunOptions) -> str:
    return options.key_of("seen", item.name, identity)


def status_text(status: os.stat_result) -> str:
    """What shows a change of a file on this machine."""
    return f"{shared_state(status)} {status.st_ctime_ns} {status.st_ino}"


def shared_state(status: os.stat_result) -> str:
    """Size and time: numbers of inodes, and times of their changes, differ between copies."""
    return f"{status.st_size} {status.st_mtime_ns}"


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
