"""README's examples do what README says, but for the numbers of the machine's own bash."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def shape(line: str) -> str:
    """Numbers and rules are the machine's."""
    return re.sub(r"0x[0-9a-f]+|[0-9][0-9,.]*", "N", line.partition(" = ")[0])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


def test_commands_print_what_readme_shows(directory: Path) -> None:
    environment = dict(os.environ, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    commands = 0
    for block in blocks("console"):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *expected = example.splitlines()
            done = subprocess.run(
                command, shell=True, cwd=directory, env=environment, check=True, text=True, capture_output=True
            )  # fmt: skip
            printed = [shape(line.rstrip()) for line in done.stdout.splitlines()]
            if expected[-1:] == ["..."]:
                expected.pop()
                printed = printed[: len(expected)]
            assert printed == [shape(line) for line in expected], command
            assert done.stderr == ""
            commands += 1
    assert commands == 9


def test_python_prints_rows_and_a_rule(directory: Path) -> None:
    [code] = blocks("python")
    bash = directory / "python" / "bash"
    bash.parent.mkdir()
    bash.write_bytes(Path("/bin/bash").read_bytes())
    done = subprocess.run([sys.executable, "-c", code], cwd=bash.parent, check=True, text=True, capture_output=True)
    rows, rule = done.stdout.splitlines()
    assert re.fullmatch(r"\d+ \{.*\}", rows)
    assert rule.startswith("Rule(cfa=Where(register=7,")
