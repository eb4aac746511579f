from __future__ import annotations

import pytest

from tests.support.peers import Compiler


@pytest.fixture
def library(compile_c: Compiler) -> bytes:
    return compile_c("int f(int x) { return x + 1; }\n", "-shared", "-O1", "-nostdlib", "-s").read_bytes()
