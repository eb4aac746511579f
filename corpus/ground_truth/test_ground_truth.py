"""A small run of what corpus/ground_truth shows."""

from __future__ import annotations

import shutil

import pytest

from corpus.ground_truth.__main__ import walked
from corpus.ground_truth.judge import judge
from corpus.ground_truth.subjects import GENERATORS, PYTHON, builds
from tests.support.kernel_events import needs_bpf

pytestmark = pytest.mark.full


def test_an_impossible_caller_is_found_by_its_name() -> None:
    coroutine = "program;[callers unknown];resumes(Generator&);{}(outer()::_Z5outerv.Frame*) (.actor);leaf(int) 3"
    python = "program;[callers unknown];py::{}:/tmp/program;_PyEval_EvalFrameDefault;py::leaf:/tmp/program 3"
    for calls, line, possible, impossible in ((GENERATORS, coroutine, "outer", "main"), (PYTHON, python, "deep", "repeats")):
        assert not judge([line.format(possible)], calls).wrong
        assert judge([line.format(impossible)], calls).wrong.total() == 3


@pytest.mark.sampled
@needs_bpf
@pytest.mark.parametrize("name", ["gcc -O2, none, PIE", "g++ -O2"])
def test_a_program_in_small(name: str) -> None:
    [build] = [one for one in builds() if one.name == name and one.subject != "assembly"]
    if shutil.which(build.commands[0][0]) is None:
        pytest.skip(f"no {build.commands[0][0]} on this machine")
    verdicts = walked(build, 0.5)
    assert verdicts["kernel program"].own > 20
    assert all(one.own for one in verdicts.values())
    assert not any(one.wrong for one in verdicts.values())
