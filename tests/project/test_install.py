"""What an installation gives: the build that was asked for, and the same bytes from either."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

import cfi
import linker
import sframegen
from sframegen import read
from sframegen.program.build import MODULES, SHARED_MODULE
from tests import ROOT

INSTALLED_FROM = ("LICENSE", "LICENSES", "README.md", "cfi", "linker", "pyproject.toml", "setup.py", "sframegen")


def run(*command: str | Path, **environ: str) -> str:
    """Standard output of a command that finds only installed packages, or those in PYTHONPATH if given."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ = inherited | {"PYTHONSAFEPATH": "1"} | environ
    return subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture
def expected_build() -> str:
    """The build that the tests are to try: `compiled` or `interpreted`."""
    build = os.environ.get("SFRAMEGEN_EXPECT_BUILD")
    if build is None:
        pytest.skip("SFRAMEGEN_EXPECT_BUILD does not say which build should run: use make test-all")
    return build


def test_the_packages_under_test_are_installed_ones(expected_build: str) -> None:
    assert expected_build in {"compiled", "interpreted"}
    for package in (cfi, linker, sframegen):
        assert Path(package.__file__ or "").is_relative_to(sys.prefix)


def test_the_hot_modules_are_of_the_expected_build(expected_build: str) -> None:
    suffix = {"compiled": ".abi3.so", "interpreted": ".py"}[expected_build]
    files = {name: import_module(name).__file__ or "" for name in MODULES}
    assert {name: file for name, file in files.items() if not file.endswith(suffix)} == {}


def test_version_tells_which_build_runs(expected_build: str) -> None:
    output = run(sys.executable, "-m", "sframegen", "--version")
    assert output == f"sframegen {version('sframegen')} ({expected_build})\n"


def test_changed_modules_are_copied_in_a_second(tmp_path: Path) -> None:
    """`make quick`, of a checkout and an environment that have one file each."""
    site = tmp_path / "site"
    for folder in (tmp_path, site):
        for package in ("cfi", "linker", "sframegen"):
            (folder / package).mkdir(parents=True)
    (site / "cfi" / "errors.py").write_text("old")
    os.utime(site / "cfi" / "errors.py", (1, 1))
    (tmp_path / "cfi" / "errors.py").write_text("new")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho {site}\n")
    python.chmod(0o755)
    subprocess.run(["make", "--silent", "--file", ROOT / "Makefile", "quick"], check=True, cwd=tmp_path, capture_output=True)
    assert (site / "cfi" / "errors.py").read_text() == "new"


def copy_sources(folder: Path) -> None:
    for name in INSTALLED_FROM:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of what is installed from the checkout."""
    for tool in ("pip", "setuptools", "Cython"):
        if find_spec(tool) is None:
            pytest.skip(f"no {tool} in this environment: use make test-all")
    source = tmp_path / "source"
    source.mkdir()
    copy_sources(source)
    return source


def installed(source: Path, **environ: str) -> Path:
    """Where pip installed it to."""
    site = source.with_name("site")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    run(*pip, "--target", site, source, **environ)
    return site


@pytest.mark.full
@pytest.mark.parametrize(
    "environ",
    [{"CC": "/nonexistent/cc"}, {"CC": "/usr/bin"}, {"SFRAMEGEN_PURE": "1"}, {"PATH": "/nonexistent"}],
    ids=["no C compiler", "a directory", "SFRAMEGEN_PURE", "no compiler"],
)
def test_without_compiling_the_install_succeeds_and_runs_interpreted(source: Path, environ: dict[str, str]) -> None:
    site = installed(source, **environ)
    assert list(site.rglob("*.so")) == []
    kernel_programs = {path.name for path in site.rglob("*.bpf.o")}
    both = {"walker_x86_64.bpf.o", "walker_aarch64.bpf.o"}
    assert kernel_programs == (both if shutil.which("clang", path=environ.get("PATH")) else set())
    assert (site / "sframegen/profile/bpf/walker.bpf.c").exists()
    assert (site / "sframegen" / "integration" / "cmake" / "SframegenConfig.cmake").exists()
    works_interpreted(site)


def works_interpreted(site: Path) -> None:
    ours = (sys.executable, "-m", "sframegen")
    assert run(*ours, "--version", PYTHONPATH=str(site)).endswith(" (interpreted)\n")
    run(*ours, "add-section", "--no-verify", sys.executable, "-o", site.with_name("out"), PYTHONPATH=str(site))
    assert read(site.with_name("out")).table.row_start


@pytest.mark.full
def test_without_a_compiler_what_must_be_compiled_is_an_error(source: Path) -> None:
    for compiler in (str(source), "false"):
        with pytest.raises(subprocess.CalledProcessError):
            installed(source, CC=compiler, SFRAMEGEN_PURE="0")


TWO = {"sframegen.base.columns", "cfi.scan"}
# It makes modules without contents.
COMPILER = """#!/bin/sh
case "$*" in
    *{refused}*) exit 1 ;;
    *build/cython*) while [ "$1" != -o ]; do shift; done; : >"$2" ;;
    *) exit 1 ;;
esac
"""


@pytest.mark.full
@pytest.mark.parametrize(("refused", "kept"), [(SHARED_MODULE, set()), ("cfi.scan", set()), ("cfi.none", TWO | {SHARED_MODULE})])
def test_where_one_module_cannot_be_compiled_none_is(source: Path, refused: str, kept: set[str]) -> None:
    """Compiled modules import the shared one and one another: without it, none of them could be imported."""
    listed = source / "sframegen/program/build.py"
    listed.write_text(listed.read_text() + f"\nMODULES = {tuple(sorted(TWO))}\n")
    compiler = source.with_name("cc")
    compiler.write_text(COMPILER.replace("{refused}", refused.replace(".", "/")))
    compiler.chmod(0o755)
    site = installed(source, CC=str(compiler), LDSHARED=f"{compiler} -shared", PATH="/usr/bin:/bin")
    files = [file.relative_to(site) for package in ("cfi", "linker", "sframegen") for file in (site / package).rglob("*.so")]
    assert {".".join([*file.parent.parts, file.name.partition(".")[0]]) for file in files} == kept
    if not kept:
        works_interpreted(site)
