"""The commands, each on a file: exit status 0, 1 or 2, and no traceback; what it was given stays unchanged."""

from __future__ import annotations

from importlib import import_module

from click.testing import CliRunner

import linker.inject.verify  # noqa: F401 - with LIEF: what is imported later would count as memory that an input takes
from sframegen.cli import commands as cli
from tests.support.memory_files import directory, written

SEEDS = (
    "program", "injected", "injected-tail", "sframe-file", "sframe-file-big", "gcc-library", "gcc-stripped", "gcc-debug",
    "gcc-compressed", "gcc-added", "gcc-added-2", "gcc-object", "gcc-object-groups", "gcc-archive",
)  # fmt: skip
COMMANDS = (
    ("dump", "--names"),
    ("dump", "--json"),
    ("convert", "--sframe-version", "2", "--no-verify", "-o", "OUT"),
    ("convert", "--sframe-version", "3", "-o", "OUT"),
    ("remove", "--force", "--no-verify", "-o", "OUT"),
    ("add-section", "--dry-run", "-v"),
    ("add-section", "--no-verify", "--json", "--replace", "--force", "-o", "OUT"),
    ("add-section", "--sframe-version", "2", "--optimize", "size", "-o", "OUT"),
)
for name in cli.COMMANDS:
    import_module(f"sframegen.cli.{name.replace('-', '_')}")
ADDRESSES = ("0x1000", "leaf", "twice+4", "0x3000")


def run(data: bytes) -> None:
    file = written(data)
    out = directory() / "output"
    command = COMMANDS[sum(data[-64:]) % len(COMMANDS)]
    invoked([str(out) if word == "OUT" else word for word in command] + [str(file)])
    out.unlink(missing_ok=True)
    invoked(["lookup", str(file), *ADDRESSES])
    assert file.read_bytes() == data
    assert list(directory().iterdir()) == [file]


def invoked(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.cli, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1)
    assert result.exit_code == 0 or "sframegen: " in result.output or arguments[0] == "lookup"
