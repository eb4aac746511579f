"""Removed and renamed commands, options and values, with replacements. This module is to be deleted in version 1.1."""

from __future__ import annotations

import click

WITH_OPTIMIZE = ("add-section", "add-tree", "convert", "link", "merge")
NO_VERIFY_INSTEAD = ": sframegen chooses the library that reads results back; --no-verify does without"
BEFORE_INSTALLATION = "add-section on the .deb before it is installed: it renews the package's md5sums"
# By "command", "command --option" or "command --option value": what to use instead, or after a colon why nothing is needed.
REMOVED: dict[str, str] = {
    **dict.fromkeys((f"{name} --optimize share" for name in WITH_OPTIMIZE), "--optimize fast"),
    **dict.fromkeys((f"{name} --verify" for name in (*WITH_OPTIMIZE, "remove", "remove-tree")), NO_VERIFY_INSTEAD),
    **dict.fromkeys((f"{name} --output-dir" for name in ("add-section", "convert", "remove")), "cp, and the command on the copies"),
    **{
        f"{name} {option}": "touch -r"
        for name in ("add-section", "add-tree", "convert", "remove", "remove-tree")
        for option in ("-p", "--preserve-timestamps")
    },
    **dict.fromkeys((f"{name} --compress" for name in ("add-section", "add-tree")), "objcopy --compress-sections of LLVM"),
    **dict.fromkeys((f"{name} --update-checksums" for name in ("add-tree", "remove-tree")), BEFORE_INSTALLATION),
    **dict.fromkeys((f"{name} --exclude-from" for name in ("add-tree", "remove-tree")), "--exclude, once for each"),
    "add-section --per-function": "lookup, or dump",
    "check --no-second-reader": ": only --second-reader reads twice",
    "fleet report": "summary.json, or files.parquet in pandas or DuckDB",
    "fleet run --consumer": "check --consumer, on the packages",
    "fleet run --insecure": "--scheduler tls://HOST:PORT, or tcp://127.0.0.1:PORT with a port that SSH forwards",
    "fleet run --mode detached": "add-section --detached, on unpacked files",
    "fleet run --mode unloaded": "--mode rewrite, or add-tree --unloaded in the build of the package",
    "fleet run --policy": "--exclude and --min-coverage",
    "fleet run --workers": "--jobs",
    "profile --event CATEGORY:NAME": "bpftrace, or perf record -e",
    "profile --buffer-size": ": the size follows --frequency",
    "profile --by cgroup": "--by pid",
    "profile --cgroup": "the process ids in cgroup.procs of its folder: their descendants are sampled, too",
    "profile --collapse-runtime": ": search the flame graph for the interpreter",
    "profile --debuginfod": "debuginfod-find debuginfo FILE, which keeps what it fetches where profile looks for it",
    **dict.fromkeys(("profile --every", "profile --keep"), "an agent that profiles all the time, such as Parca's"),
    "profile --filter": "bpftrace, or perf record --filter",
    "profile --idle": "mpstat, or the idle time in /proc/stat",
    "profile --inlined": ": inlined functions are frames where debug information is at hand",
    "profile --list-events": "profile --probe, or perf list",
    "profile --max-memory": ": tables take at most 1 GiB in the kernel",
    "profile --min-block": ": short times are narrow frames",
    "profile --no-lines": ": only --lines shows the lines of one function apart",
    "profile --output .firefox.json": ".pb.gz: profiler.firefox.com opens it",
    "profile --output .pprof": ".pb.gz",
    "profile --output .speedscope.json": ".pb.gz or .folded: speedscope opens both",
    "profile --perf-data": "perf report, or perf script",
    "profile --top": "profile -d 2 in watch, or perf top",
    "profile --user": "the process ids that pgrep -u prints",
    "profile-diff": "go tool pprof -base BEFORE AFTER",
    "profile-report": "go tool pprof FILE...",
    "register": ": no kernel has these calls",
    **dict.fromkeys(
        (f"stack {option}" for option in ("-n", "--count", "-d", "--duration", "--interval", "--until-exit")), "profile"
    ),
    **dict.fromkeys((f"stack {option}" for option in ("--folded", "--output", "-o")), "profile -o FILE.folded"),
    **dict.fromkeys(("stack --core", "stack --exe", "stack --sysroot"), "gdb, eu-stack or coredumpctl"),
    "table": "profile, which makes its tables itself",
}
# By "command --option": the present name. The old one still works.
RENAMED: dict[str, str] = {
    **dict.fromkeys((f"{name} --format" for name in (*WITH_OPTIMIZE, "fleet run")), "--sframe-version"),
    **dict.fromkeys((f"{name} --fatal" for name in ("add-tree", "link", "remove-tree")), "--strict"),
    "add-section --strict": "--min-coverage=100",
}


class RemovedError(click.ClickException):
    """Use of a removed name: an error of one line, without the usage of the command."""

    exit_code = 2


def refuse_removed(*words: str) -> None:
    """Raise RemovedError if these words, together, are a removed name."""
    name = " ".join(words)
    if name in REMOVED:
        instead = REMOVED[name]
        raise RemovedError(f"{name} was removed{instead if instead.startswith(':') else f'; use {instead}'}")
