"""Links several objects into one with a linker's `-r`."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.errors import FormatError, Refusal, RefusedError
from sframegen.elf.file import check_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


class PartialLink(NamedTuple):
    """The result of a partial link. `messages`: those of the linker, except about SFrame sections."""

    output: Path
    map_file: Path
    messages: list[str]


def check_regular_files(objects: Iterable[str | os.PathLike[str]]) -> None:
    """Raise FormatError for a FIFO, at which a linker would wait, or a device; OSError for a missing file."""
    for path in objects:
        check_regular(os.stat(path).st_mode, os.fspath(path))  # noqa: PTH116 - there are thousands


def partial_link(
    linker: str, objects: Iterable[str | os.PathLike[str]], directory: Path, meanwhile: Callable[[], object]
) -> PartialLink:
    """Run `linker -r` with any linker that writes a map; output goes to `directory`. `meanwhile` is called while it runs.

    Raises FormatError if the link fails, with the linker's output as notes (PEP 678), RefusedError if the linker does not exist.
    """
    output, map_file, arguments = directory / "linked.o", directory / "map", directory / "arguments"
    text = "".join(f"{_argument(os.fspath(path))}\n" for path in objects)
    arguments.write_text(text, encoding="utf-8", errors="surrogateescape")
    command = [linker, "-r", "-o", str(output), f"-Map={map_file}", f"@{arguments}"]
    try:
        run = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise RefusedError(Refusal.NO_LINKER, error.strerror or str(error), file=os.fsdecode(linker)) from error
    with run:
        try:
            meanwhile()
            _, errors = run.communicate()
        except BaseException:  # signals, too
            run.kill()
            raise
    messages = _messages(errors)
    absent = [what for what, file in (("object", output), ("map", map_file)) if not file.exists()]
    if run.returncode or absent:
        reason = f"-r failed: {_reason(run.returncode)}" if run.returncode else f"-r wrote no {' and no '.join(absent)}"
        failed = FormatError(reason, file=os.fsdecode(linker))
        for line in errors.splitlines():
            failed.add_note(line)
        raise failed
    return PartialLink(output, map_file, messages)


def _messages(text: str) -> list[str]:
    """Return the linker's messages, a line each; lld continues a message with `>>>`."""
    whole = text.replace("\n>>> ", ": ").splitlines()
    return [line for line in whole if line and "sframe" not in line.lower()]


def _reason(status: int) -> str:
    return f"exit status {status}" if status > 0 else f"killed by signal {-status} ({signal.strsignal(-status)})"


def _argument(path: str) -> str:
    """Return a path quoted for an argument file, with `./` where a linker would take it for an option or another such file."""
    path = f"./{path}" if path.startswith(("-", "@")) else path
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
