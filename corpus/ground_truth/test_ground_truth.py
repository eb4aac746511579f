"""A small run of what corpus/ground_truth shows."""

from __future__ import annotations

import shutil

import pytest

from corpus.ground_truth.__main__ import profiled
from corpus.ground_truth.subjects import builds
from tests.support.kernel_events import needs_bpf

pytestmark = pytest.mark.full


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
