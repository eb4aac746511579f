"""A small run of what corpus/ground_truth shows; and that its judge sees stacks that cannot be."""

from __future__ import annotations

import shutil

import pytest

from corpus.ground_truth.__main__ import profiled
from corpus.ground_truth.judge import judge
from corpus.ground_truth.subjects import CPP, C, builds
from tests.support.kernel_events import needs_bpf

pytestmark = [pytest.mark.once, pytest.mark.full]


@pytest.mark.sampled
@needs_bpf
@pytest.mark.parametrize("name", ["gcc -O2, none, PIE", "g++ -O2"])
def test_a_program_in_small(name: str) -> None:
    [build] = [one for one in builds() if one.name == name and one.subject != "assembly"]
    if shutil.which(build.commands[0][0]) is None:
        pytest.skip(f"no {build.commands[0][0]} on this machine")
    verdict = profiled(build, 0.5)
    assert verdict.own > 20
    assert not verdict.wrong


@pytest.mark.parametrize(
    ("stack", "own", "complete", "guessed_wrong", "wrong"),
    [
        ("p;_start;main;work;many;leaf 3", 3, 3, 0, 0),
        ("p;_start;main;many;leaf 3", 3, 3, 0, 3),
        ("p;_start;main;many [guess];leaf 3", 3, 3, 3, 0),
        ("p;_start;work;many;leaf 3", 3, 3, 0, 3),
        ("p;[callers unknown];work;many;leaf 3", 3, 0, 0, 0),
        ("p;[callers unknown];sorts;leaf 3", 3, 0, 0, 3),
        ("p;clone3;in_thread;work;sorts;qsort_r;compare;handler;inside 3", 3, 3, 0, 0),
        ("p;_start;__libc_start_main 3", 0, 3, 0, 0),
    ],
)
def test_judgement(stack: str, own: int, complete: int, guessed_wrong: int, wrong: int) -> None:
    verdict = judge([stack], C)
    assert (verdict.samples, verdict.own, verdict.complete, verdict.guessed_wrong) == (3, own, complete, guessed_wrong)
    assert verdict.wrong.total() == wrong


def test_parameters_and_parts_of_functions() -> None:
    frames = "main;catches(int);rethrows(int);recurses(int, int) [clone .cold];with_cleanup(int);Guarded::~Guarded()"
    assert not judge([f"p;{frames} 1"], CPP).wrong
    assert judge([f"p;{frames.replace('recurses(int, int) [clone .cold];', '')} 1"], CPP).wrong
