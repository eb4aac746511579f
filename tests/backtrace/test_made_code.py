"""Code made at run time: walked with the tables of sframegen_jit.h, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.own_stack import OwnStack


def test_tables_of_made_code(own_stack: OwnStack) -> None:
    program = own_stack.program("made_code.c", own_stack.object(), "-O2", "-fomit-frame-pointer")
    lines = dict(line.split(": ", 1) for line in own_stack.run(program).splitlines())
    assert lines["described"] == "frame 1, no guesses, the outermost frame"
    no_rule = "frame 1, no guesses, no rule describes this code, and no frame pointer leads on"
    assert lines["removed"] == no_rule
    assert lines["unknown"] == lines["unregistered"] == no_rule
