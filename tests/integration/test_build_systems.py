"""docs/linking.md: its examples give sections with every link, once; a failure stops only builds that ask for it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

import sframegen
from sframegen import Severity, add_section, check, read
from sframegen.cli import integration
from sframegen.cli.commands import cli
from sframegen.cli.integration import DIRECTORY, INSTALLED_FILES
from tests import ROOT
from tests.packages.package_makers import needs

DOCUMENT = (ROOT / "docs" / "linking.md").read_text()
START = "from sframegen.cli.start import"
SOURCES = {"say.c": "int say(void) { return 7; }\n", "main.c": "int say(void);\nint main(void) { return say(); }\n"}
SIGNED = '__attribute__((section(".signature"), used)) static char signature[] = "by elfsign";\n'  # add-section refuses it
PLAIN = {
    "Makefile": "main: main.o libsay.so\nlibsay.so: say.c\n\t$(CC) -shared -fPIC -o $@ $<\n",
    "CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.21)
project(example C)
add_library(say SHARED say.c)
add_executable(main main.c)
target_link_libraries(main say)
""",
    "meson.build": """\
project('example', 'c')
executable('main', 'main.c', link_with: shared_library('say', 'say.c'))
""",
}


class Example(NamedTuple):
    heading: str
    commands: int  # the how manieth of the section's shell blocks
    project: str  # the name of the project file
    language: str | None  # of the section's block that it is; without one, it is PLAIN
    tools: tuple[str, ...]
    other: tuple[str, str] = ("", "")  # words of the commands, and others in their place


EXAMPLES = {
    "any build": Example("Any build", 0, "Makefile", None, ("make",)),
    "cmake, ninja": Example("CMake", 0, "CMakeLists.txt", "cmake", ("cmake", "ninja")),
    "cmake, make": Example("CMake", 0, "CMakeLists.txt", "cmake", ("cmake", "make"), ("Ninja", "'Unix Makefiles'")),
    "cmake, unchanged": Example("CMake", 1, "CMakeLists.txt", None, ("cmake", "make")),
    "meson": Example("Meson", 1, "meson.build", "meson", ("meson", "ninja")),
    "meson, unchanged": Example("Meson", 0, "meson.build", None, ("meson", "ninja")),
    "make": Example("GNU make", 0, "Makefile", "make", ("make",)),
    "ninja": Example("Ninja", 0, "build.ninja", "ninja", ("ninja",)),
}
IN_PROJECT = ("cmake, ninja", "meson", "make")  # these ask for sframegen themselves, each time


def blocks(heading: str, language: str) -> list[str]:
    [section] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", DOCUMENT, re.DOTALL | re.MULTILINE)
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


class Build:
    def __init__(self, directory: Path, example: Example) -> None:
        needs("gcc", *example.tools)
        self.directory = directory
        commands = blocks(example.heading, "sh")[example.commands].replace(*example.other)
        self.first, self.again = commands, commands.splitlines()[-1]
        project = PLAIN[example.project] if example.language is None else blocks(example.heading, example.language)[0]
        for name, text in {**SOURCES, example.project: project}.items():
            (directory / name).write_text(text)

    def run(self, commands: str, path: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SFRAMEGEN", "PYTHON", "MAKE"))}
        return subprocess.run(
            ["sh", "-e", "-c", commands],
            cwd=self.directory,
            env=kept | {"PATH": path} | environment,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def output(self, name: str) -> Path:
        [file] = (file for file in self.directory.rglob(name) if "shims" not in file.parts)
        return file

    def state(self, name: str) -> tuple[int, int]:
        status = self.output(name).stat()
        return status.st_ino, status.st_mtime_ns


@pytest.fixture(scope="module")
def without() -> str:
    directories = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(directory for directory in directories if not Path(directory, "sframegen").exists())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, without: str) -> str:
    program = tmp_path_factory.mktemp("bin") / "sframegen"
    code = f"import sys; sys.path.append({str(Path(sframegen.__file__).parents[1])!r}); {START} main; main()"
    program.write_text(f"""#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -c "{code}" "$@"\n""")
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{without}"


def good(file: Path) -> bool:
    return all(finding.severity is Severity.NOTE for finding in check(file).findings)


@pytest.mark.dear
@pytest.mark.parametrize("name", EXAMPLES)
def test_example(tmp_path: Path, path: str, name: str) -> None:
    build = Build(tmp_path, EXAMPLES[name])
    done = build.run(build.first, path)
    assert done.returncode == 0, done.stdout
    assert "warning: " not in done.stdout
    assert good(build.output("main"))
    assert good(build.output("libsay.so"))
    assert subprocess.run([build.output("main")], env={"LD_LIBRARY_PATH": str(tmp_path)}, check=False).returncode == 7

    before = build.state("main"), build.state("libsay.so")
    assert build.run(build.again, path).returncode == 0
    assert (build.state("main"), build.state("libsay.so")) == before

    # main gets no section any more: a warning
    (tmp_path / "main.c").write_text(SIGNED + SOURCES["main.c"])
    done = build.run(build.again, path)
    assert done.returncode == 0, done.stdout
    assert re.search(r"sframegen: warning: \S*main: .*signature", done.stdout)
    assert not good(build.output("main"))
    assert build.state("libsay.so") == before[1]
    before = build.state("main"), before[1]
    assert build.run(build.again, path).returncode == 0
    assert (build.state("main"), build.state("libsay.so")) == before

    # or a failure, that time and the next
    (tmp_path / "main.c").write_text(SOURCES["main.c"] + SIGNED)
    for _ in range(2):
        done = build.run(build.again, path, SFRAMEGEN_LINK_OPTIONS="--strict", SFRAMEGEN_FLAGS="--strict")
        assert done.returncode != 0
        assert re.search(r"sframegen: \S*main: .*signature", done.stdout)
        assert list(tmp_path.rglob("main")) == []


@pytest.mark.parametrize("name", IN_PROJECT)
def test_without_sframegen_all_is_built_and_is_what_gets_the_section(tmp_path: Path, path: str, without: str, name: str) -> None:
    build = Build(tmp_path, EXAMPLES[name])
    done = build.run(build.first, without)
    assert done.returncode == 0, done.stdout
    assert "sframegen" in done.stdout
    expected = {}
    for output in ("main", "libsay.so"):
        file = build.output(output).rename(tmp_path / f"{output}.with")
        assert not good(file)
        add_section(file, verify=False)
        expected[output] = file.read_bytes()
    build.run("rm -rf build main.o", path)
    assert build.run(build.first, path).returncode == 0
    assert {output: build.output(output).read_bytes() for output in expected} == expected


# -- CMake


def cmake(directory: Path, path: str, text: str) -> subprocess.CompletedProcess[str]:
    """Configures and builds with those lines after the project's."""
    build = Build(directory, EXAMPLES["cmake, unchanged"])
    project = PLAIN["CMakeLists.txt"].replace("project(example C)\n", "project(example C)\nfind_package(Sframegen REQUIRED)\n")
    (directory / "CMakeLists.txt").write_text(project + text)
    return build.run(f"cmake -S . -B build -DSframegen_DIR={DIRECTORY / 'cmake'}\ncmake --build build", path)


def test_cmake_targets_with_options(tmp_path: Path, path: str) -> None:
    options = "SFRAME_VERSION 2 OPTIMIZE size STRICT NO_VERIFY"
    done = cmake(tmp_path, path, f"sframegen_add_section(main)\nsframegen_add_section(main {options})\n")
    assert done.returncode == 0, done.stdout
    assert read(tmp_path / "build" / "main").header.version == 2
    assert not good(tmp_path / "build" / "libsay.so")
    [launcher] = re.findall(r"\S+/sframegen-link", (tmp_path / "build" / "CMakeFiles" / "main.dir" / "link.txt").read_text())
    assert '"--sframe-version 2 --optimize size --no-verify --strict ' in Path(launcher).read_text()


def test_cmake_directories_below_and_what_the_project_does_afterwards(tmp_path: Path, path: str) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "CMakeLists.txt").write_text(
        "add_library(plugin MODULE ../say.c)\nadd_library(archive STATIC ../say.c)\n"
        "add_custom_command(TARGET plugin POST_BUILD COMMAND cp $<TARGET_FILE:plugin> copy.so)\n"
    )
    done = cmake(tmp_path, path, "sframegen_add_section_directory(STRICT)\nadd_subdirectory(below)\n")
    assert done.returncode == 0, done.stdout
    assert good(tmp_path / "build" / "below" / "copy.so")
    assert not good(tmp_path / "build" / "main")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("add_library(archive STATIC say.c)\nsframegen_add_section(archive)", "nothing is linked for archive"),
        ("add_executable(there IMPORTED)\nsframegen_add_section(there)", "nothing is linked for there"),
        ("sframegen_add_section(mian)", "mian"),
        ("sframegen_add_section_directory(FATALLY)", "no such option: FATALLY"),
        ("sframegen_add_section(main FORMAT 9)", "link --install: 2"),
    ],
)
def test_cmake_says_what_is_wrong(tmp_path: Path, path: str, text: str, message: str) -> None:
    done = cmake(tmp_path, path, text)
    assert done.returncode != 0
    assert message in " ".join(done.stdout.split())


def test_cmake_finds_no_program(tmp_path: Path, without: str) -> None:
    elsewhere = shutil.copytree(DIRECTORY / "cmake", tmp_path / "a" / "b" / "c" / "d" / "e" / "cmake")
    build = Build(tmp_path, EXAMPLES["cmake, ninja"])
    done = build.run(f"cmake -S . -B build -DSframegen_DIR={elsewhere} -DSFRAMEGEN=/gone/sframegen", without)
    assert done.returncode == 0, done.stdout
    assert "no program sframegen" in done.stdout


# -- others


def test_cargo_s_linker_is_a_shim_that_stands_for_the_compiler(tmp_path: Path, path: str) -> None:
    [configuration], [commands] = blocks("Cargo", "toml"), blocks("Cargo", "console")
    linker = tomllib.loads(configuration)["target"]["x86_64-unknown-linux-gnu"]["linker"]
    build = Build(tmp_path, EXAMPLES["any build"])
    *install, cargo = commands.splitlines()
    assert cargo == "cargo build"
    done = build.run("\n".join([*install, "gcc -c main.c say.c", f"{linker} -o main main.o say.o"]), path)
    assert done.returncode == 0, done.stdout
    assert good(tmp_path / "main")


def test_make_includes_from_a_path_with_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a place/make").mkdir(parents=True)
    (tmp_path / "a place/make/sframe.mk").write_text("all: ; @echo included\n")
    monkeypatch.setattr(integration, "DIRECTORY", tmp_path / "a place")
    printed = CliRunner().invoke(cli, ["integration", "--make-file"]).stdout
    make = ["make", "--no-print-directory", "-f", "-"]
    done = subprocess.run(make, input=f"include {printed}", text=True, check=True, capture_output=True)
    assert done.stdout == "included\n"


@pytest.mark.parametrize("name", INSTALLED_FILES)
def test_integration_prints_what_is_there(name: str) -> None:
    done = CliRunner().invoke(cli, ["integration", f"--{name}"])
    assert (done.exit_code, done.stdout.replace("\\ ", " ")) == (0, f"{DIRECTORY / INSTALLED_FILES[name].path}\n")
    assert (DIRECTORY / INSTALLED_FILES[name].path).exists()
    assert name in CliRunner().invoke(cli, ["integration"]).stdout
