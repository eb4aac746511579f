"""Programs that read or write a package as a stream while it is passed on."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, BinaryIO

from cfi.errors import FormatError
from sframegen.elf.text import printable, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 0.2  # seconds in which a tool ends after its output has


@contextmanager
def reading(name: str, remedy: str, options: list[str], source: BinaryIO) -> Iterator[IO[bytes]]:
    """What a tool makes of a file, its standard input. Raises FormatError where there is no tool, or it fails."""
    source.seek(0)
    with running([tool(name, remedy), *options], stdin=source, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout


@contextmanager
def running(
    command: list[str], *, stdin: BinaryIO | int, stdout: int = subprocess.DEVNULL, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A tool that reads or writes while the block runs, and ends with it. Raises FormatError with what it says if it fails."""
    with TemporaryFile() as said, subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=said, env=environment) as process:
        try:
            yield process
            status = process.wait()
        except FormatError:
            if not _failed(process):
                raise
            raise FormatError(_message(command, said)) from None
        except BrokenPipeError:
            process.wait()
            raise FormatError(_message(command, said)) from None
        finally:
            process.kill()
            with suppress(BrokenPipeError):
                process.communicate()
        if status:
            raise FormatError(_message(command, said))


def _failed(process: subprocess.Popen[bytes]) -> bool:
    """True if the tool has ended, and not well: what it wrote then ends early."""
    try:
        return process.wait(timeout=PATIENCE) != 0
    except subprocess.TimeoutExpired:
        return False


def _message(command: list[str], said: IO[bytes]) -> str:
    said.seek(0)
    lines = said.read(1 << 16).decode("utf-8", "replace").strip().splitlines() or ["failed, for no reason that it gives"]
    return f"{Path(command[0]).name}: {shortened(printable(lines[-1]))}"


def tool(name: str, remedy: str) -> str:
    """Its path. Raises FormatError with the remedy where there is none."""
    found = shutil.which(name)
    if found is None:
        raise FormatError(f"{name} is not on PATH: {remedy}")
    return found
