"""Compiles the C libraries when the package is built. setup.py runs this file.

The shared objects refer to libc without symbol versions, so that they load with every glibc that has the functions: linked with a
new glibc, they would demand that one. For this, empty libraries with glibc's names stand in for it in the link.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path

HEADER = "sframe_backtrace.h"
SHARED = "libsframe-backtrace.so"
SONAME = "libsframe-backtrace.so.0"
STATIC = "libsframe-backtrace.a"
PRELOAD = "libsframe-backtrace-preload.so"

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion")
CODE = ("-O2", "-g0", "-fPIC", "-fno-omit-frame-pointer", "-fno-lto")
# Everything is bound when a library is loaded: the dynamic loader binds nothing in a signal handler.
LINK = ("-shared", "-nostdlib", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack", "-Wl,-Bsymbolic", "-Wl,--no-as-needed")
GLIBC = {"c": "libc.so.6", "dl": "libdl.so.2"}  # before glibc 2.34, dlsym is in the second one


def compiler_of_the_build() -> list[str]:
    """Return the C compiler that setuptools uses, with its arguments."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def compile_libraries(source: Path, folder: Path, compiler: list[str]) -> str:
    """Compile the C files in `source`, and put the libraries into `folder`. Return the reason if that fails, else an empty text."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            _compile(source.absolute(), folder.absolute(), Path(scratch), compiler)
    except FileNotFoundError:
        return f"there is no {compiler[0]}"
    except OSError as error:  # it is a directory, or a file of another machine
        return f"{error.filename} cannot be run: {error.strerror}"
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line.lower()] or error.stderr.splitlines()
        return f"{compiler[0]} cannot compile them: {next(iter(lines), '')}"
    return ""


def _compile(source: Path, folder: Path, scratch: Path, compiler: list[str]) -> None:
    anywhere = f"-ffile-prefix-map={source}=."  # the same bytes in each folder
    flags = (*shlex.split(os.environ.get("CFLAGS", "")), "-std=c11", *WARNINGS, *CODE, anywhere)
    for name in ("sframe_backtrace", "preload"):
        _run(compiler, *flags, "-c", source / f"{name}.c", "-o", scratch / f"{name}.o")
    stand_ins = _stand_ins(scratch, compiler)
    for name, soname, stem, needed in (
        (SHARED, SONAME, "sframe_backtrace", ["-lc"]),
        (PRELOAD, PRELOAD, "preload", ["-lc", "-ldl"]),
    ):
        names = (f"-Wl,-soname,{soname}", f"-Wl,--version-script={source / stem}.map")
        _run(compiler, *LINK, *names, f"{stem}.o", *stand_ins, *needed, "-lgcc", "-o", name, cwd=scratch)
    archiver = _run(compiler, "-print-prog-name=ar").strip()
    _run([archiver], "rcsD", STATIC, "sframe_backtrace.o", cwd=scratch)
    for name in (SHARED, PRELOAD, STATIC):
        (folder / name).unlink(missing_ok=True)  # a process may have mapped it
        (folder / name).write_bytes((scratch / name).read_bytes())


def _stand_ins(scratch: Path, compiler: list[str]) -> list[str]:
    """Make empty libraries with glibc's names; return the arguments that link with them. Another libc is linked as it is."""
    probe = scratch / "probe.c"
    probe.write_text("#include <features.h>\n__GLIBC__\n")
    if not _run(compiler, "-E", "-P", probe).split()[-1].isdecimal():
        return []
    (scratch / "empty.c").touch()
    for name, soname in GLIBC.items():
        _run(compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", "empty.c", "-o", f"lib{name}.so", cwd=scratch)
    return ["-L."]


def _run(command: list[str], *arguments: str | Path, cwd: Path | None = None) -> str:
    return subprocess.run([*command, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout
