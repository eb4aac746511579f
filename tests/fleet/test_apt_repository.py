from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from sframegen.cli.fleet import _how_to_sign
from sframegen.elf.file import ElfFile
from sframegen.fleet.apt_repository import WrittenPackages
from sframegen.fleet.output_directory import OutputDirectory
from sframegen.fleet.package_work import work_on
from sframegen.fleet.result_rows import PackageResult, PackageRow
from sframegen.fleet.run_options import Mode, RunOptions
from sframegen.fleet.sources.items import Item
from sframegen.format.locate import sframe_of
from tests.fleet.made_packages import programs, served
from tests.packages.needed_tools import needs
from tests.packages.package_makers import deb_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.peers import Compiler

pytestmark = pytest.mark.full

CONTROL = b"""Package: {name}
Version: 1.0
Architecture: all
Maintainer: Nobody <nobody@example.org>
Installed-Size: 20
Filename: /elsewhere
Description: a program
 in two lines
"""
NAMES = ("one", "two")


@pytest.fixture(autouse=True)
def _extra() -> None:
    pytest.importorskip("debian")
    pytest.importorskip("pyarrow")


@pytest.fixture
def pool(tmp_path: Path, compile_c: Compiler) -> Path:
    for name, program in zip(NAMES, programs(compile_c, 2), strict=True):
        path = tmp_path / f"pool/main/{name}_1.0_all.deb"
        path.parent.mkdir(parents=True, exist_ok=True)
        deb_of(path, {f"usr/bin/{name}": program}, control=CONTROL.replace(b"{name}", name.encode()))
    return tmp_path / "pool"


@pytest.fixture
def rewritten(pool: Path, tmp_path: Path) -> Callable[[], Path]:
    """A run without Dask."""

    def run() -> Path:
        findings: list[str] = []
        with (
            OutputDirectory.opened(str(tmp_path / "out"), make=True) as output,
            WrittenPackages(output, findings.append) as written,
        ):
            for path in sorted(pool.rglob("*.deb")):
                item = Item(str(path.relative_to(pool)), str(path))
                written.add(output.read_result(work_on(item, RunOptions(Mode.REWRITE), output).key))
        assert findings == []
        return tmp_path / "out"

    return run


def test_the_index_has_the_new_packages(rewritten: Callable[[], Path], pool: Path) -> None:
    from debian.deb822 import Packages, Release  # noqa: PLC0415 - of the extra

    out = rewritten()
    with (out / "Packages").open("rb") as file:
        paragraphs = list(Packages.iter_paragraphs(file, use_apt_pkg=False))
    assert [one["Package"] for one in paragraphs] == list(NAMES)
    replaced = {}
    for one in paragraphs:
        content = (out / one["Filename"]).read_bytes()
        assert (one["Size"], one["SHA256"]) == (str(len(content)), hashlib.sha256(content).hexdigest())
        assert int(one["Installed-Size"]) > 20
        assert one["Description"] == "a program\n in two lines"
        old = (pool / one["Filename"].removeprefix("packages/")).read_bytes()
        replaced[one["Filename"].removeprefix("packages/")] = [hashlib.sha256(old).hexdigest(), one["SHA256"]]
    index = (out / "Packages").read_bytes()
    release = Release((out / "Release").read_bytes())
    assert [dict(line) for line in release["SHA256"]] == [
        {"sha256": hashlib.sha256(index).hexdigest(), "size": str(len(index)), "name": "Packages"}
    ]
    lines = [line.split() for line in (out / "replaced.txt").read_text().splitlines()]
    assert {name: checksums for *checksums, name in lines} == replaced


def test_without_debian_packages_there_is_no_index(rewritten: Callable[[], Path], pool: Path) -> None:
    assert (rewritten() / "Release").exists()
    shutil.rmtree(pool / "main")
    out = rewritten()
    assert not (out / "Release").exists()
    assert not (out / "Packages").exists()
    assert (out / "replaced.txt").read_text() == ""


def test_a_control_file_cannot_add_a_paragraph(tmp_path: Path) -> None:
    findings: list[str] = []
    path = tmp_path / "out/packages/x.deb"
    path.parent.mkdir(parents=True)
    control = CONTROL.replace(b"{name}", b"x") + b"\nPackage: bash\nVersion: 99\nFilename: evil\n"
    deb_of(path, {"./a": b"x"}, control=control)
    deb_of(path.with_name("y.deb"), {"./a": b"x"}, control=b"Version: 1\n")
    with OutputDirectory.opened(str(tmp_path / "out")) as output, WrittenPackages(output, findings.append) as written:
        for name in ("x.deb", "y.deb"):
            written.add(PackageResult(PackageRow(name, name, kind="deb", new_sha256="00", new_package_bytes=1)))
    text = (tmp_path / "out/Packages").read_text()
    assert (text.count("Package:"), text.count("Filename:")) == (1, 1)
    assert "bash" not in text
    assert findings == ["y.deb: not in Packages: its control file names no package, or no version"]


def test_how_to_sign(tmp_path: Path) -> None:
    words = _how_to_sign(f"{tmp_path}/a b")
    assert f"gpg --clearsign --output '{tmp_path}/a b/InRelease' '{tmp_path}/a b/Release'" in words


@pytest.mark.parametrize("is_remote", [False, True])
def test_apt_installs_from_it(rewritten: Callable[[], Path], pool: Path, tmp_path: Path, *, is_remote: bool) -> None:
    """Into a root of its own, whose dpkg knows no other package, though a repository that is named first has the old ones."""
    needs("apt-get", "dpkg")
    if os.geteuid() != 0:
        pytest.skip("only root may install packages")
    out = rewritten()
    with (pool / "Packages").open("wb") as index:
        for path in sorted(pool.rglob("*.deb")):
            control = CONTROL.replace(b"{name}", path.name.partition("_")[0].encode()).replace(
                b"/elsewhere", path.relative_to(pool).name.encode()
            )
            checksum = hashlib.sha256(path.read_bytes()).hexdigest()
            index.write(
                control.replace(b"Filename: ", b"Filename: main/") + f"Size: {path.stat().st_size}\nSHA256: {checksum}\n\n".encode()
            )
    root = tmp_path / "root"
    for name in ("etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
        (root / name).mkdir(parents=True)
    for name in ("var/lib/dpkg/updates", "var/lib/dpkg/info", "var/log/apt", "usr/bin"):
        (root / name).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    configuration = tmp_path / "apt.conf"
    configuration.write_text(
        f'Dir "{root}"; Dir::State::status "{root}/var/lib/dpkg/status"; APT::Sandbox::User "root"; Acquire::Languages "none";\n'
        f'Dir::Bin::methods "/usr/lib/apt/methods"; DPkg::Options {{ "--root={root}"; "--force-not-root"; "--log={root}/log"; }};\n'
    )

    def apt(*words: str) -> str:
        environment = {"APT_CONFIG": str(configuration), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "no_proxy": "127.0.0.1"}
        done = subprocess.run(["apt-get", "-y", *words], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    with served(out) as (url, _):
        (root / "etc/apt/sources.list").write_text(
            f"deb [trusted=yes] file:{pool} ./\ndeb [trusted=yes] {url if is_remote else f'file:{out}'} ./\n"
        )
        (root / "etc/apt/preferences.d/sframegen").write_text("Package: *\nPin: release o=sframegen\nPin-Priority: 1001\n")
        apt("update")
        apt("install", *NAMES)
    for name in NAMES:
        program = root / "usr/bin" / name
        program.chmod(0o755)
        assert subprocess.run([program], check=False).returncode == 1
        assert sframe_of(ElfFile(memoryview(program.read_bytes()), name)) is not None
        verified = subprocess.run(["dpkg", f"--root={root}", "--verify", name], capture_output=True, text=True, check=True)
        assert verified.stdout == ""
