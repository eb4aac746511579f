"""Names of commands, options and values that are gone, with what to use instead: deleted again in 1.1."""

from __future__ import annotations

import click

# "command", "command --option", "command --option value"
REMOVED: dict[str, str] = {
    "fleet run --mode detached": "add-section --detached, or add-tree --detached, on unpacked files",
    "fleet run --mode unloaded": "--mode rewrite, or add-tree --unloaded in the build of the package",
    "fleet run --policy": "--exclude and --min-coverage",
}


class RemovedError(click.ClickException):
    """Wrong usage, in one line: nobody needs to be told how the rest of the command is used."""

    exit_code = 2


def refuse_removed(*words: str) -> None:
    """Raises RemovedError if these words, together, are a name that is gone."""
    name = " ".join(words)
    if name in REMOVED:
        raise RemovedError(f"{name} was removed; use {REMOVED[name]}")
