"""Control groups: samples of those in one and below it, and their names."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sframegen.base.errors import SframegenError
from sframegen.profile.bpf.kernel_records import NewStack, Unfinished
from sframegen.profile.bpf.sampling_settings import Only, Sampling
from sframegen.profile.following import cgroups
from sframegen.profile.following.cgroups import CgroupNames, folder_of, mount_point
from tests.support.kernel_events import needs_bpf
from tests.support.processes.kernel_walks import Sampled

if TYPE_CHECKING:
    from collections.abc import Iterator

SPIN = "echo here; while :; do :; done"


@contextmanager
def new_cgroups() -> Iterator[tuple[Path, Path, Path]]:
    """Yield a control group, one below it, and one beside it."""
    mounted = mount_point()
    if mounted is None:
        pytest.skip("no BPF: control groups of version 2 are not mounted")
    parent, other = (Path(mounted, f"sframegen-test-{os.getpid()}-{name}") for name in ("a", "b"))
    child = parent / "child"
    made: list[Path] = []
    try:
        for folder in (parent, child, other):
            try:
                folder.mkdir()
            except OSError as error:
                pytest.skip(f"no BPF: a control group cannot be made: {error.strerror}")
            made.append(folder)
        yield parent, child, other
    finally:
        for folder in reversed(made):
            folder.rmdir()


@contextmanager
def spinning_in(folder: Path) -> Iterator[int]:
    with subprocess.Popen(["sh", "-c", SPIN], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"here\n"
            (folder / "cgroup.procs").write_text(str(process.pid))
            yield process.pid
        finally:
            process.kill()
            process.wait()


@pytest.mark.dear
@needs_bpf
def test_samples_of_a_control_group_and_those_below_it() -> None:
    with new_cgroups() as (parent, child, other):
        with spinning_in(parent) as first, spinning_in(child) as second, spinning_in(other) as third:
            names = CgroupNames()
            everybody = {first, second, third}
            for chosen, pids in [
                ((parent,), {first, second}),
                ((child,), {second}),
                ((child, other), {second, third}),
                ((), everybody),
            ]:
                only = Only(cgroups=tuple(map(str, chosen)))
                with Sampled(everybody, Sampling(frequency=999, only=only)) as sampled:
                    sampled.sample(100)
                    records = [record for record in sampled.records if isinstance(record, (NewStack, Unfinished))]
                assert {record.pid for record in records} == pids
                found = {record.pid: names.name(record.cgroup) for record in records}
                wanted = {first: parent, second: child, third: other}
                assert found == {pid: f"/{wanted[pid].relative_to(str(mount_point()))}" for pid in pids}
        assert names.name(1 << 40) == f"[cgroup {1 << 40}]"


def test_folders_by_both_names(tmp_path: Path) -> None:
    with new_cgroups() as (parent, child, _):
        assert folder_of(str(child)) == str(child)
        assert folder_of(f"/{parent.name}/child") == str(child)
        assert folder_of("/") == mount_point()
    for wrong in (str(tmp_path), "/no such group", "../../../etc", "", "/proc"):
        if wrong:
            with pytest.raises(SframegenError, match="no control group of version 2; they are in"):
                folder_of(wrong)


def test_without_control_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroups, "MOUNTS", tmp_path / "none")
    with pytest.raises(SframegenError, match="are not mounted"):
        folder_of("/")
    assert CgroupNames().name(7) == "[cgroup 7]"
