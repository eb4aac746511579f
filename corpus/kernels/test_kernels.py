"""What corpus/kernels is made of, without a virtual machine and without a network."""

from __future__ import annotations

import io
import json
import stat
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from corpus.kernels import guest_root
from corpus.kernels.debian_kernels import KERNELS, Kernel, image_package
from corpus.kernels.guest_root import Archive
from corpus.kernels.in_guest import PREFIX, SHORT, compared
from corpus.kernels.report import Outcome, markdown
from corpus.kernels.virtual_machine import result_in
from sframegen.stack.walking.ends import End

if TYPE_CHECKING:
    from pathlib import Path

NEW, OLD = Kernel("bookworm", "amd64"), Kernel("bullseye", "arm64")
FRAMES = [
    {"function": "_start", "object": "p", "path": "/p", "address": 9, "kind": "user"},
    {"function": "spin", "object": "p", "path": "/p", "address": 50, "kind": "user"},
    {"function": "clock_gettime", "object": "[vdso]", "path": "", "address": 7, "kind": "user"},
    {"function": "down", "object": "p", "path": "/p", "address": 29, "kind": "user"},
    {"function": "[callers unknown]", "object": "", "path": "", "address": None, "kind": "missing"},
]
STOPPED = {
    "threads": [
        {
            "frames": [
                {"function": "spin", "object": "/p", "address": 55},
                {"function": "down", "object": "/p", "address": 30},
                {"function": "_start", "object": "/p", "address": 10},
            ]
        }
    ]
}
WORKLOAD = {"samples": 5, "complete": 5, "equal": 5, "short": 0, "frames": 2, "in_vdso": 3, "differs": ""}
FOUND = {
    "release": "6.1.0-50-amd64",
    "machine": "x86_64",
    "verified": 12345,
    "tracepoint": True,
    "lost": {},
    "workloads": {"time": WORKLOAD},
}


def profile_of(*frames: int, end: str = "outermost") -> dict[str, Any]:
    """`frames`: numbers in FRAMES, the outermost first."""
    stack = {"pid": 1, "samples": 3, "complete": end == "outermost", "end": end, "frames": list(frames)}
    return {"frames": FRAMES, "stacks": [stack, stack | {"pid": 2}]}


def test_samples_are_equal_to_the_stopped_stack_or_not() -> None:
    found = compared(profile_of(0, 3, 1, 2), 1, STOPPED)
    assert (found["samples"], found["complete"], found["equal"], found["in_vdso"]) == (3, 3, 3, 3)
    assert compared(profile_of(0, 3, 1), 1, STOPPED)["in_vdso"] == 0
    wrong = [profile_of(0, 0, 3, 1), profile_of(3, 1), profile_of(1), profile_of(0, 3, 2), profile_of(0, 3, 1, end="no table")]
    for profile in wrong:
        found = compared(profile, 1, STOPPED)
        assert found["equal"] == 0
        assert found["differs"]


def test_a_copy_that_was_too_short_has_the_inner_frames_or_is_wrong() -> None:
    found = compared(profile_of(4, 3, 1, end=SHORT), 1, STOPPED)
    assert (found["short"], found["complete"], found["equal"], found["differs"]) == (3, 0, 0, "")
    found = compared(profile_of(4, 0, 1, end=SHORT), 1, STOPPED)
    assert found["short"] == 0
    assert found["differs"]
    assert End.COPY_TOO_SHORT.words == SHORT


def test_the_line_of_results_is_found() -> None:
    console = f"[ 1.0] booting\r\n\r\n{PREFIX}{json.dumps({'release': '6.1'})}\r\n[ 2.0] reboot: Power down\r\n"
    assert result_in(console) == {"release": "6.1"}
    assert "Kernel panic" in result_in("Kernel panic\n")["failed"]
    assert "damaged" in result_in(f'{PREFIX}{{"rel\n')["failed"]


@pytest.mark.parametrize(
    ("kernel", "found", "says"),
    [
        (NEW, FOUND, ""),
        (NEW, FOUND | {"workloads": {"time": WORKLOAD | {"equal": 4, "differs": "no table"}}}, "no table"),
        (NEW, FOUND | {"workloads": {"time": WORKLOAD | {"samples": 0, "equal": 0}}}, "no sample"),
        (NEW, FOUND | {"workloads": {"time": WORKLOAD | {"complete": 4, "equal": 4, "short": 1}}}, ""),
        (NEW, FOUND | {"lost": {"late": 1}}, "late"),
        (NEW, {"release": "6.1", "refused": "no BTF"}, "no BTF"),
        (NEW, {"failed": "no line of results\npanic"}, "panic"),
        (OLD, {"release": "5.10", "refused": "too old"}, ""),
        (OLD, FOUND, "should be refused"),
    ],
)
def test_what_is_not_as_it_should_be_is_reported(kernel: Kernel, found: dict[str, Any], says: str) -> None:
    outcome = Outcome(kernel, found)
    assert says in outcome.fault
    assert bool(says) == bool(outcome.fault)
    text = markdown([outcome], "made up:")
    assert ("All is as it should be." in text) == (not says)
    assert str(found.get("refused", "")) in text


def test_the_archive_is_what_cpio_reads(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(b"12345")
    (tree / "link").symlink_to("file")
    archive = Archive()
    archive.add("dev", stat.S_IFDIR | 0o755)
    archive.add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    archive.add_tree(tree)
    archive.write(tmp_path / "archive")
    data = (tmp_path / "archive").read_bytes()
    members, stream = {}, io.BytesIO(data)
    while True:
        head = stream.read(110)
        assert head[:6] == b"070701"
        fields = [int(head[6 + 8 * number : 14 + 8 * number], 16) for number in range(13)]
        name = stream.read(fields[11])[:-1].decode()
        stream.read(-stream.tell() % 4)
        if name == "TRAILER!!!":
            break
        members[name] = (fields[1], stream.read(fields[6]), (fields[9], fields[10]))
        stream.read(-stream.tell() % 4)
    assert list(members) == ["dev", "dev/console", "file", "link"]
    assert members["dev/console"][2] == (5, 1)
    assert members["file"][1] == b"12345"
    assert stat.S_ISLNK(members["link"][0])
    assert members["link"][1] == b"file"


def test_folders_are_before_what_is_in_them() -> None:
    archive = Archive()
    guest_root.add_packages(archive)
    names = [part[110:].partition(b"\0")[0].decode() for part in archive.parts if part.startswith(b"070701")]
    assert {"site/sframegen/cli/profile.py", "site/cfi/errors.py", "site/click/core.py", "site/elftools/__init__.py"} <= set(names)
    seen = {""}
    for name in names:
        assert name.rpartition("/")[0] in seen
        seen.add(name)


def test_the_package_with_the_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    depends = {
        "linux-image-amd64": "  Depends: linux-base-amd64\n  Depends: linux-image-7.2-amd64\n",
        "linux-image-7.2-amd64": " |Depends: dracut\n  Depends: linux-binary-7.2-amd64\n  Depends: linux-modules-7.2-amd64\n",
    }
    monkeypatch.setattr(subprocess, "check_output", lambda command, **_: f"{command[-1]}\n{depends.get(command[-1], '')}")
    assert image_package(Kernel("sid", "amd64")) == "linux-binary-7.2-amd64"


def test_each_suite_is_tried_for_both_machines() -> None:
    assert {kernel.architecture for kernel in KERNELS if kernel.suite == "sid"} == {"amd64", "arm64"}
    assert [kernel.suite for kernel in KERNELS if kernel.too_old] == ["bullseye", "bullseye"]
