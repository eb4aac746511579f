"""Names of commands, options and values that are gone, with what to use instead: deleted again in 1.1."""

from __future__ import annotations

import click

LEVELLED = ("add-section", "add-tree", "convert", "link", "merge")
CHOSEN = "--no-verify, or nothing: sframegen chooses the library that reads back"
IN_PACKAGES = "add-section on the .deb before it is installed: it renews the package's md5sums"
# "command", "command --option", "command --option value"
REMOVED: dict[str, str] = {
    **dict.fromkeys((f"{name} --optimize share" for name in LEVELLED), "--optimize fast"),
    **dict.fromkeys((f"{name} --verify" for name in (*LEVELLED, "remove", "remove-tree")), CHOSEN),
    **dict.fromkeys((f"{name} --exclude-from" for name in ("add-tree", "remove-tree")), "--exclude, for each GLOB"),
    **dict.fromkeys((f"{name} --update-checksums" for name in ("add-tree", "remove-tree")), IN_PACKAGES),
    "check --no-second-reader": "nothing: only --second-reader reads twice",
    "fleet run --consumer": "check --consumer, on the packages",
    "fleet run --insecure": "--scheduler tls://HOST:PORT, or tcp://127.0.0.1:PORT with a port that SSH forwards",
    "fleet run --mode detached": "add-section --detached, on unpacked files",
    "fleet run --mode unloaded": "--mode rewrite, or add-tree --unloaded in the build of the package",
    "fleet run --policy": "--exclude and --min-coverage",
    "fleet run --workers": "--jobs",
    "profile --event CATEGORY:NAME": "bpftrace, or perf record -e",
    "profile --every": "an agent that profiles all the time, such as Parca's",
    "profile --filter": "bpftrace, or perf record --filter",
    "profile --keep": "an agent that profiles all the time, such as Parca's",
    "profile --list-events": "profile --probe, or perf list",
    "profile --output .firefox.json": ".pb.gz: profiler.firefox.com opens it",
    "profile --output .pprof": ".pb.gz",
    "profile --output .speedscope.json": ".pb.gz or .folded: speedscope opens both",
    "profile --perf-data": "perf report, or perf script",
    "profile-diff": "go tool pprof -base BEFORE AFTER",
    "profile-report": "go tool pprof FILE...",
    "register": "the calls of sframegen.registry: docs/registry.md",
    "stack --core": "gdb, eu-stack or coredumpctl",
    "stack --exe": "gdb, eu-stack or coredumpctl",
    "stack --sysroot": "gdb, eu-stack or coredumpctl",
    "table": "profile, which makes its tables itself",
}


class RemovedError(click.ClickException):
    """Wrong usage, in one line: nobody needs to be told how the rest of the command is used."""

    exit_code = 2


def refuse_removed(*words: str) -> None:
    """Raises RemovedError if these words, together, are a name that is gone."""
    name = " ".join(words)
    if name in REMOVED:
        raise RemovedError(f"{name} was removed; use {REMOVED[name]}")
