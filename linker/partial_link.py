"""Several objects made one by a linker's `-r`."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from cfi.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class PartialLink(NamedTuple):
    """`messages`: the linker's, without those about the SFrame sections, which are not its business here."""

    output: Path
    map_file: Path
    messages: list[str]


def link(linker: str, objects: Iterable[str | os.PathLike[str]], directory: Path) -> PartialLink:
    """Runs `linker -r`, any that writes a map; its files go into `directory`. Raises FormatError with its own words if it fails."""
    output, map_file, arguments = directory / "linked.o", directory / "map", directory / "arguments"
    arguments.write_text("".join(f'"{_quoted(os.fspath(path))}"\n' for path in objects), encoding="utf-8", errors="surrogateescape")
    command = [linker, "-r", "-o", str(output), f"-Map={map_file}", f"@{arguments}"]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env={**os.environ, "LC_ALL": "C"}
        )
    except OSError as error:
        raise FormatError(f"{linker}: {error.strerror}; --linker names another") from error
    messages = _messages(run.stderr)
    if run.returncode:
        said = messages or run.stderr.splitlines() or [f"exit status {run.returncode}"]
        raise FormatError(f"{linker} -r failed: {said[0]}")
    return PartialLink(output, map_file, messages)


def _messages(text: str) -> list[str]:
    """One line each; what lld says further of one begins with `>>>`."""
    whole = text.replace("\n>>> ", ": ").splitlines()
    return [line for line in whole if line and "sframe" not in line.lower()]


def _quoted(path: str) -> str:
    return path.replace("\\", "\\\\").replace('"', '\\"')
