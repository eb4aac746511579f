from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.runs import PACKAGES, programs, write_tar
from tests.support.peers import Compiler


@pytest.fixture(scope="session")
def some_programs(compile_c: Compiler) -> list[bytes]:
    return programs(compile_c, 3)


@pytest.fixture
def program(some_programs: list[bytes]) -> bytes:
    return some_programs[0]


@pytest.fixture
def pool(tmp_path: Path, some_programs: list[bytes]) -> Path:
    for number in range(PACKAGES):
        files = {f"usr/bin/{number}-{n}": content for n, content in enumerate(some_programs[: number % 3 + 1])}
        write_tar(tmp_path / f"pool/{number:02}.tar", {**files, "README": b"x"})
    return tmp_path / "pool"
