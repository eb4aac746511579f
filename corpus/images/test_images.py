"""The study on an image of a few of this machine's programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from corpus.images.image_report import markdown
from corpus.images.image_trial import differences, tree, try_layout
from corpus.images.layered import make_layout
from tests.packages.needed_tools import needs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.full]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="not root: umoci cannot unpack owners")
PROGRAMS = {
    "bash": "for i in 1 2 3; do echo $((i * i)); done",
    "ls": "ls /usr/bin",
    "a hard link": "/usr/bin/list /usr/lib | head -1",
    "sort": "sort /text | head -2",
}


def with_libraries(root: Path, *programs: str) -> None:
    """Copy programs of this machine, and what they load, to where they are here."""
    for program in programs:
        path = shutil.which(program)
        assert path is not None
        (root / "usr/bin").mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / "usr/bin" / program)
        listed = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout
        for word in listed.split():
            if word.startswith("/"):
                (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, root / word[1:])


def first(root: Path) -> None:
    with_libraries(root, "bash", "ls", "sort", "head", "cat")
    (root / "text").write_text("b\na\n")
    (root / "usr/bin/list").hardlink_to(root / "usr/bin/ls")


def second(root: Path) -> None:
    (root / "usr/bin/cat").unlink()
    (root / "usr/bin").chmod(0o711)
    with_libraries(root, "true")


@needs_root
def test_small_image(tmp_path: Path) -> None:
    needs("umoci", "skopeo", "bwrap", "ldd")
    make_layout(tmp_path / "layout", tmp_path, [first, second])
    trials = list(try_layout(tmp_path / "layout", tmp_path, PROGRAMS))
    assert [trial.faults for trial in trials] == [(), (), ()]
    for trial in trials:
        assert trial.programs == len(PROGRAMS)
        assert trial.given == trial.checked >= 6
        assert len(trial.layers) == 2
    text = markdown(trials, 1.0)
    assert "None." in text
    assert all(f"| {trial.name} |" in text for trial in trials)


def test_what_differs_is_found(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    before = dict(tree(tmp_path))
    assert differences(before, dict(tree(tmp_path)), set()) == []
    (tmp_path / "a").chmod(0o600)
    (tmp_path / "b").unlink()
    (tmp_path / "c").write_text("c")
    found = differences(before, dict(tree(tmp_path)), set())
    assert [fault.split(":")[0] for fault in found] == ["there is no b any more", "c is new", "a"]
