"""How the modules that sframegen/program/build.py lists, the kernel program and the C libraries are compiled, or do without.

Such a module is plain Python. With a C compiler it becomes an extension module of the limited API; without one, or with
SFRAMEGEN_PURE=1 in the environment, the same file is interpreted, slower and with the same results. With SFRAMEGEN_PURE=0, what
cannot be compiled is an error; otherwise, where one of them cannot, none is compiled.

clang compiles the kernel program of `sframegen profile`. Without clang the package installs without that, and `profile` says so.

The C compiler compiles the libraries of sframegen/backtrace. The same two values of SFRAMEGEN_PURE leave them out, and demand them.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

BUILD = runpy.run_path("sframegen/program/build.py")
COMPILED = BUILD["MODULES"]
# What Cython would otherwise put into each of them, for columns: two thirds of the time to compile them all.
SHARED = BUILD["SHARED_MODULE"]
LIBRARIES = runpy.run_path("sframegen/backtrace/library_files.py")
# One file of each module for every Python from 3.11 on. Free-threaded Pythons have no limited API of that version.
LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")
DIRECTIVES = {"language_level": 3, "boundscheck": True, "wraparound": False, "initializedcheck": False, "cdivision": True}


def extensions() -> list[Extension]:
    if os.environ.get("SFRAMEGEN_PURE") == "1":
        return []
    compiler = LIBRARIES["find_build_compiler"]()[0]
    if shutil.which(compiler) is None:  # found out before Cython has written all sources
        why = f"there is no C compiler: {compiler} is not a program that can be run"
        if os.environ.get("SFRAMEGEN_PURE") == "0":
            raise CompileError(why)
        print(f"warning: no module is compiled: {why}", file=sys.stderr)
        return []
    from Cython.Build import cythonize  # noqa: PLC0415 - absent where nothing is compiled

    modules = [Extension(name, [name.replace(".", "/") + ".py"]) for name in COMPILED]
    # cythonize() writes the file of the shared one.
    modules = cythonize(
        [*modules, Extension(SHARED, [])],
        nthreads=os.cpu_count() or 1,
        compiler_directives=DIRECTIVES,
        build_dir="build/cython",
        shared_utility_qualified_name=SHARED,
    )
    for module in modules:  # said here, because cythonize() forgets some of it
        # Without -g: debug information of generated C is four fifths of a module, and a fifth of the time to compile it.
        module.extra_compile_args = ["-g0"]
        module.define_macros = [("Py_LIMITED_API", "0x030B0000")] if LIMITED else []
        module.py_limited_api = LIMITED
        module.optional = os.environ.get("SFRAMEGEN_PURE") != "0"
        if module.name == SHARED:
            name_no_folder(Path(module.sources[0]))
    # The largest first: else it is compiled last, by one processor, while the others have nothing to do.
    return sorted(modules, key=lambda module: -Path(module.sources[0]).stat().st_size)


def name_no_folder(source: Path) -> None:
    """Each build gives the same bytes: Cython 3.1 names the temporary folder of its input."""
    written = source.read_text(encoding="utf-8")
    without = re.sub(r'"[^"\n]*/(\w+\.pyx)"', r'"\1"', written)
    if without != written:  # else it would be compiled again
        source.write_text(without, encoding="utf-8")


class BuildAllOrNone(build_ext):  # type: ignore[misc]  # setuptools has no types
    """Compiled modules import one another: without one of them, others cannot be imported."""

    failed = False

    def build_extensions(self) -> None:
        super().build_extensions()
        if self.failed:
            self.warn("no module is compiled, as not all of them can be")
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception:  # setuptools prints it where a module is optional
            self.failed = True
            raise


class BuildWithPrograms(build_py):  # type: ignore[misc]  # setuptools has no types
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.kernel_program()
            if os.environ.get("SFRAMEGEN_PURE") != "1":
                self.libraries()

    def kernel_program(self) -> None:
        folder = "sframegen/profile/bpf"
        self.mkpath(f"{self.build_lib}/{folder}")
        compile_objects = runpy.run_path(f"{folder}/object_files.py")["compile_objects"]
        targets = runpy.run_path("sframegen/profile/machines.py")["BPF_TARGETS"]
        why = compile_objects(Path(folder), Path(self.build_lib, folder), targets)
        if why:
            self.warn(f"the kernel program of sframegen profile is not built: {why}")

    def libraries(self) -> None:
        folder = "sframegen/backtrace"
        self.mkpath(f"{self.build_lib}/{folder}")
        compiler = LIBRARIES["find_build_compiler"]()
        why = LIBRARIES["compile_libraries"](Path(folder), Path(self.build_lib, folder), compiler)
        if why and os.environ.get("SFRAMEGEN_PURE") == "0":
            raise CompileError(f"libsframe-backtrace is not built: {why}")
        if why:
            self.warn(f"libsframe-backtrace is not built: {why}")


def description() -> str:
    """README.md for where nothing lies beside it: without pictures, and with the names of files in place of links to them."""
    pictures = r"</?(?:a|img|p|picture|source)\b[^>]*>\n*|!\[[^]]*\]\((?!https?:)[^)]*\)\n*"
    text = re.sub(pictures, "", Path("README.md").read_text(encoding="utf-8"))
    return re.sub(r"(?<!!)\[([^]]+)\]\((?!https?:|#)([^)]+)\)", lambda link: named(link[1], link[2].partition("#")[0]), text)


def named(text: str, file: str) -> str:
    return file if text in {file, f"`{file}`"} else f"{text} [{file}]"


setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildAllOrNone, "build_py": BuildWithPrograms},
    options={"build_ext": {"parallel": os.cpu_count()}, "bdist_wheel": {"py_limited_api": "cp311"} if LIMITED else {}},
)
