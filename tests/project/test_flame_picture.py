"""tools/flame_picture.py: a flame graph as a picture that does not move."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from sframegen.profile.report.formats.flamegraph import DrawnFrame
from sframegen.profile.report.formats.pprof import pprof
from tests import ROOT
from tests.support.named_stacks import EXAMPLE, named, stack
from tools import flame_picture

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.once

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = ROOT / "docs/flame-graph.svg"


def frame(label: str) -> DrawnFrame:
    return DrawnFrame(label, "", "", guessed=False)


def test_a_frame_begins_where_its_caller_does_or_where_the_one_before_it_ended() -> None:
    frames = [
        (0, frame("all"), 10),
        (1, frame("a"), 6),
        (2, frame("b"), 2),
        (2, frame("c"), 3),
        (1, frame("d"), 4),
        (2, frame("e"), 4),
    ]
    assert [(box.frame.label, box.begin) for box in flame_picture.boxes(frames)] == [
        ("all", 0),
        ("a", 0),
        ("b", 0),
        ("c", 2),
        ("d", 6),
        ("e", 6),
    ]


def test_a_written_profile_is_drawn(tmp_path: Path) -> None:
    """Names of a profile are text, whatever is in them."""
    profile, output = tmp_path / "profile.pb.gz", tmp_path / "picture.svg"
    profile.write_bytes(b"".join(pprof(named(*EXAMPLE, stack("main@program <script>&@program", 5)))))
    flame_picture.main(str(profile), str(output))
    drawn = ET.fromstring(output.read_bytes())
    texts = [element.text for element in drawn.iter(f"{SVG}text")]
    assert texts[0] == "cpu-clock: 15 samples"
    assert {"all", "program", "main", "work", "spin", "<script>&", "libwork.so"} <= set(texts)
    assert not list(drawn.iter(f"{SVG}script"))


def test_a_profile_without_samples_is_drawn() -> None:
    assert "cpu-clock: 0 samples" in "".join(flame_picture.picture(named()))


def test_the_picture_of_the_pages_is_small_and_complete() -> None:
    drawn = ET.fromstring(PICTURE.read_bytes())
    assert len(PICTURE.read_bytes()) < 100_000
    assert "main" in [element.text for element in drawn.iter(f"{SVG}text")]
