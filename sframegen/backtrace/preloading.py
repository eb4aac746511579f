"""Finds the object that programs preload for stack traces, and lists the objects that a program's loader maps at its start."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from sframegen.backtrace.library_files import PRELOAD
from sframegen.base.errors import FormatError, SframegenError
from sframegen.elf.file import open_elf, read_beginning
from sframegen.elf.records import PT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HERE = Path(__file__).parent
STATISTICS = "SFRAMEGEN_PRELOAD_STATISTICS"  # preload.c reads it
SPACES = frozenset(" \t\n\v\f\r")  # in LD_PRELOAD, these separate paths, as a colon does
SEPARATORS = frozenset(":;")  # in LD_LIBRARY_PATH, these separate paths
MAX_SCRIPTS = 4  # scripts in a row, each the interpreter of the one before
FIRST_LINE_BYTES = 256  # of a script; the kernel reads no more to find its interpreter
LISTED_PATH = re.compile(rb"^\t(?:.* => )?(/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)  # `libc.so.6 => /lib/libc.so.6 (0x7f...)`


class NotPreloadedError(SframegenError):
    """The loader ignores LD_PRELOAD for this program, or the program has no loader."""


def find_preload_object() -> Path:
    """Return the path of the object for LD_PRELOAD. Raises SframegenError if it is missing."""
    path = HERE / PRELOAD
    if not path.exists():
        remedy = "install a C compiler, then sframegen again from its sources"
        raise SframegenError(f"this installation has no {PRELOAD}: {remedy}")
    return path


def make_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make programs load the object before all others. Raises SframegenError.

    LD_PRELOAD cannot name a path with spaces: then it has only the file's name, and LD_LIBRARY_PATH has the directory.
    """
    path = find_preload_object()
    if not SPACES.intersection(str(path)) and ":" not in str(path):
        return {"LD_PRELOAD": _put_first(path, environment, "LD_PRELOAD")}
    if SEPARATORS.intersection(str(path.parent)):
        remedy = "copy the file elsewhere, and set LD_PRELOAD to the copy"
        raise SframegenError(f"{path}: the dynamic loader does not accept paths with colons and semicolons: {remedy}")
    return {
        "LD_PRELOAD": _put_first(path.name, environment, "LD_PRELOAD"),
        "LD_LIBRARY_PATH": _put_first(path.parent, environment, "LD_LIBRARY_PATH"),
    }


def _put_first(added: str | Path, environment: Mapping[str, str], variable: str) -> str:
    return ":".join(filter(None, [str(added), environment.get(variable, "")]))


def is_program(path: str) -> bool:
    """Return True for an executable ELF file."""
    return os.path.isfile(path) and os.access(path, os.X_OK) and read_beginning(path, path, 4) == b"\x7fELF"  # noqa: PTH113 - a text


def find_program(command: str) -> str:
    """Return the ELF file that runs for a command: itself, or the interpreter of a script. Raises OSError and FormatError."""
    for _ in range(MAX_SCRIPTS):
        path = shutil.which(command)
        if path is None:
            raise FileNotFoundError(2, os.strerror(2), command)
        first_line = read_beginning(path, path, FIRST_LINE_BYTES).partition(b"\n")[0]
        if not first_line.startswith(b"#!"):
            return os.path.realpath(path)
        words = [os.fsdecode(word) for word in first_line[2:].split()] or [""]
        command = words[0]
        if os.path.basename(command) == "env":  # noqa: PTH119 - of a text
            operands = (word for word in words[1:] if not word.startswith("-") and "=" not in word)  # without options and variables
            command = next(operands, command)
    raise FormatError("scripts that interpret scripts", file=command)


def list_objects(program: str, others: Iterable[str] | None = None) -> list[str]:
    """Return the paths of a program and of the objects that its loader maps at its start, not of those that it loads later.

    If `others` are given, the loader runs only if it is also the loader of one of these programs, because a program that the user
    does not run may name any file as its loader. Raises OSError, FormatError, and NotPreloadedError with the reason.
    """
    status = os.stat(program)  # noqa: PTH116 - a text
    sets_user, sets_group = status.st_mode & stat.S_ISUID, status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP
    if (sets_user and status.st_uid != os.getuid()) or (sets_group and status.st_gid != os.getgid()):
        raise NotPreloadedError("a set-user-ID or set-group-ID program of another user or group ignores LD_PRELOAD", file=program)
    loader = _require_loader(program)
    if others is not None and not any(os.path.realpath(loader) == os.path.realpath(_loader_of(other)) for other in others):
        raise NotPreloadedError("its loader differs from the command, which is not run", file=program)
    return _run_loader_list(loader, program)


def list_libraries(path: str, program: str) -> list[str]:
    """Return the libraries in a directory, or the one file, each with the objects that the program's loader maps with it.

    Files whose names do not have `.so` are left out. Raises OSError, FormatError, and NotPreloadedError for a static program.
    """
    loader = _require_loader(program)
    if not os.path.isdir(path):  # noqa: PTH112 - a text
        return _run_loader_list(loader, os.path.realpath(path))
    libraries: dict[str, None] = {}  # in order, without duplicates
    for folder, _, names in os.walk(path):
        for name in sorted(names):
            file = os.path.realpath(os.path.join(folder, name))  # noqa: PTH118 - a text
            if ".so" in name and os.path.isfile(file):  # noqa: PTH113 - a text
                libraries |= dict.fromkeys(_run_loader_list(loader, file))
    return list(libraries)


def _require_loader(program: str) -> str:
    if loader := _loader_of(program):
        return loader
    raise NotPreloadedError("a static program: it has no loader that reads LD_PRELOAD", file=program)


def _loader_of(program: str) -> str:
    """Return the path of a program's dynamic loader; an empty text for a static one."""
    elf = open_elf(program)
    interpreter = next((segment for segment in elf.segments if segment.p_type == PT.INTERP), None)
    if interpreter is None:
        return ""
    return os.fsdecode(bytes(elf.slice(interpreter.p_offset, interpreter.p_filesz, "PT_INTERP")).rstrip(b"\0"))


def _run_loader_list(loader: str, path: str) -> list[str]:
    """Return the path, and those of the libraries that the loader maps for that file."""
    result = subprocess.run([loader, "--list", path], check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    libraries = (os.path.realpath(os.fsdecode(path)) for path in LISTED_PATH.findall(result.stdout))
    return list(dict.fromkeys([path, *libraries]))
