"""Compiles the C libraries when the package is built. setup.py runs this file.

The shared objects refer to libc without symbol versions, so that they load with every glibc that has the functions. If they were
linked with glibc itself, they would need its version or a later one, so empty libraries with glibc's names are linked instead.
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

WARNING_FLAGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion")
CODE_FLAGS = ("-O2", "-g0", "-fPIC", "-fno-omit-frame-pointer", "-fno-lto")
# `-z now` binds all symbols when a library is loaded, so that the dynamic loader never has to in a signal handler.
LINK_FLAGS = ("-shared", "-nostdlib", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack", "-Wl,-Bsymbolic", "-Wl,--no-as-needed")
GLIBC_SONAMES = {"c": "libc.so.6", "dl": "libdl.so.2"}  # libdl has dlsym before glibc 2.34


def find_build_compiler() -> list[str]:
    """Return the C compiler that setuptools uses, with its arguments."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def compile_libraries(source: Path, folder: Path, compiler: list[str]) -> str:
    """Compile the C files in `source`, and put the libraries into `folder`. Return why that failed; an empty text if it worked."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            _compile(source.absolute(), folder.absolute(), Path(scratch), compiler)
    except FileNotFoundError:
        return f"there is no {compiler[0]}"
    except OSError as error:  # the compiler is a directory, or made for another machine
        return f"{error.filename} cannot be run: {error.strerror}"
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line.lower()] or error.stderr.splitlines()
        return f"{compiler[0]} cannot compile them: {next(iter(lines), '')}"
    return ""


def _compile(source: Path, folder: Path, scratch: Path, compiler: list[str]) -> None:
    prefix_map = f"-ffile-prefix-map={source}=."  # so that the libraries do not depend on the folder they are built in
    flags = (*shlex.split(os.environ.get("CFLAGS", "")), "-std=c11", *WARNING_FLAGS, *CODE_FLAGS, prefix_map)
    for name in ("sframe_backtrace", "preload"):
        _run(compiler, *flags, "-c", source / f"{name}.c", "-o", scratch / f"{name}.o")
    stand_ins = _make_stand_ins(scratch, compiler)
    for name, soname, stem, needed in (
        (SHARED, SONAME, "sframe_backtrace", ["-lc"]),
        (PRELOAD, PRELOAD, "preload", ["-lc", "-ldl"]),
    ):
        name_flags = (f"-Wl,-soname,{soname}", f"-Wl,--version-script={source / stem}.map")
        _run(compiler, *LINK_FLAGS, *name_flags, f"{stem}.o", *stand_ins, *needed, "-lgcc", "-o", name, cwd=scratch)
    archiver = _run(compiler, "-print-prog-name=ar").strip()
    _run([archiver], "rcsD", STATIC, "sframe_backtrace.o", cwd=scratch)
    for name in (SHARED, PRELOAD, STATIC):
        (folder / name).unlink(missing_ok=True)  # not overwritten, because a process may have mapped it
        (folder / name).write_bytes((scratch / name).read_bytes())


def _make_stand_ins(scratch: Path, compiler: list[str]) -> list[str]:
    """Make empty libraries with glibc's names, and return the arguments that link with them: none if the libc is another one."""
    probe = scratch / "probe.c"
    probe.write_text("#include <features.h>\n__GLIBC__\n")
    if not _run(compiler, "-E", "-P", probe).split()[-1].isdecimal():
        return []
    (scratch / "empty.c").touch()
    for name, soname in GLIBC_SONAMES.items():
        _run(compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", "empty.c", "-o", f"lib{name}.so", cwd=scratch)
    return ["-L."]


def _run(command: list[str], *arguments: str | Path, cwd: Path | None = None) -> str:
    return subprocess.run([*command, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout
