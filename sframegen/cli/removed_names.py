"""Commands and options that are gone, and what to use instead: whoever types one reads it, with exit status 2. Goes in 1.1."""

from __future__ import annotations

import click

STACK_CORE = "core files are no longer read: use gdb, eu-stack or coredumpctl"

VERIFY = "sframegen chooses the library that reads back; --no-verify does without"

REMOVED = {  # by command, or by command and option
    "stack --core": STACK_CORE,
    "stack --exe": STACK_CORE,
    "stack --sysroot": STACK_CORE,
    "check --no-second-reader": "pyelftools reads the call frame information only with --second-reader",
    "table": "no table files are written any more: `profile` makes its tables itself",
    "register": "use the calls of sframegen.registry: docs/registry.md",
    **{
        f"{command} --verify": VERIFY
        for command in ("add-section", "add-tree", "convert", "link", "merge", "remove", "remove-tree")
    },
}


def removed(name: str, ctx: click.Context) -> None:
    """Raises a usage error if the command, or the command's option, is one of these."""
    if name in REMOVED:
        raise click.UsageError(f"{name}: {REMOVED[name]}", ctx)
