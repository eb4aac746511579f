"""Code made at run time: walked with the tables of sframegen_jit.h, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sframegen.backtrace.library_files import SHARED, SONAME, compile_libraries
from tests.support.loops import for_each
from tests.support.own_stack import LIBRARY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.own_stack import OwnStack


@pytest.mark.dear
@for_each("is_shared", [False, True], ids=["linked", "shared library"])
def test_tables_of_made_code(is_shared: bool, own_stack: OwnStack, tmp_path: Path) -> None:
    """The shared library finds the list of the program, which it does not have itself."""
    library = [own_stack.object()]
    if is_shared:
        assert compile_libraries(LIBRARY, tmp_path, ["gcc"]) == ""
        (tmp_path / SONAME).symlink_to(SHARED)
        library = [f"-L{tmp_path}", f"-Wl,-rpath,{tmp_path}", "-lsframe-backtrace"]
    program = own_stack.program("made_code.c", *library, "-O2", "-fomit-frame-pointer")
    lines = dict(line.split(": ", 1) for line in own_stack.run(program).splitlines())
    assert lines["described"] == "frame 1, no guesses, the outermost frame"
    no_rule = "frame 1, no guesses, no rule describes this code, and no frame pointer leads on"
    assert lines["removed"] == no_rule
    assert lines["unknown"] == lines["unregistered"] == no_rule
