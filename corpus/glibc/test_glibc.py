"""What corpus/glibc and tools/get-glibc are made of, without glibc's sources and without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sframegen
from corpus.glibc import objects, report
from corpus.glibc.walks import SCENARIOS, Compared, compared, unexplained
from sframegen.elf.file import open_elf
from sframegen.format.locate import read_sframe
from sframegen.format.model import OUTERMOST
from tests import ROOT

if TYPE_CHECKING:
    from tests.support.peers import Compiler

TOOLS = ROOT / "tools"
BOTTOM = r"""
__asm__(".globl bottom\n bottom:\n .cfi_startproc\n .cfi_undefined rip\n hlt\n .cfi_endproc\n");
int main(void) { return 0; }
"""
STACK = ["walks+0x10", "walks+0x20", "libc.so.6+0x30"]


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([STACK], "equal"),
        ([STACK, STACK], "equal"),
        ([[]], "0 of 3"),
        ([STACK[:2]], "2 of 3"),
        ([[STACK[0], "walks+0x21", STACK[2]]], "3 of 3, 1 the same"),
        ([[*STACK, "walks+0x40"]], "4 of 3, 3 the same"),
        ([STACK, STACK[:1]], "1 of 2 equal"),
    ],
)
def test_frames_are_compared_one_by_one(found: list[list[str]], says: str) -> None:
    assert compared(found, [STACK] * len(found)).text == says


def test_a_difference_is_excused_only_where_sframe_cannot_say_it() -> None:
    cut = [Compared(1, 0, 0, 0, 5) for _ in SCENARIOS]
    wrong = unexplained({"one": [Compared(1, 1)] * len(SCENARIOS), "other": cut})
    assert wrong == [f"other: {scenario.title}: 0 of 5" for scenario in SCENARIOS if not scenario.differs]


def test_nothing_but_the_type_of_pt_gnu_eh_frame_is_changed(compile_c: Compiler, tmp_path: Path) -> None:
    file = Path(shutil.copy(compile_c(BOTTOM), tmp_path))
    before, data = open_elf(file).segments, file.read_bytes()
    objects.hide_eh_frame(file)
    expected = [one._replace(p_type=0 if one.p_type == 0x6474E550 else one.p_type) for one in before]
    assert open_elf(file).segments == expected != before
    assert sum(one != other for one, other in zip(data, file.read_bytes(), strict=True)) == 4


def test_each_way_makes_the_section_that_it_names(compile_c: Compiler, tmp_path: Path) -> None:
    file = compile_c(BOTTOM, "-Wa,--gsframe", peer_binutils=True)
    tables = {}
    for name, change in (
        ("none", objects.with_section("none")),
        ("converted", objects.converted),
        ("outermost", objects.with_outermost_rows),
    ):
        left_out = objects.prepare([file], tmp_path / name, change, dwarf=False)
        section = read_sframe(open_elf(tmp_path / name / file.name))
        assert section.header.version == 2
        tables[name] = OUTERMOST in section.table.rules, any("outermost" in reason for reason in left_out)
    assert tables == {"none": (False, True), "converted": (False, True), "outermost": (True, False)}
    objects.prepare([file], tmp_path / "neither", objects.without_section, dwarf=True)
    with pytest.raises(sframegen.FormatError, match="no SFrame section"):
        sframegen.read(tmp_path / "neither" / file.name)
    assert objects.converted(tmp_path / "neither" / file.name) == {}


def test_the_tables_take_the_place_of_what_was_between_the_marks(tmp_path: Path) -> None:
    document = tmp_path / "consumers.md"
    document.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    text = report.markdown(
        "One run.", [1003] * len(SCENARIOS), {"`none`": [Compared(1, 1)] * len(SCENARIOS)}, {"`none`": {"why": 7}}
    )
    report.write(document, text)
    written = document.read_text()
    assert written == f"before\n{report.BEGIN}\n{text}{report.END}\nafter\n"
    assert f"| {SCENARIOS[0].title} | 1,003 | equal |\n" in written
    assert "| why | 7 |\n" in written


# -- tools/get-glibc, with an archive in place of Debian's, and a source that is built in a moment

APT_SUITE = """#!/bin/sh
case "$1 $2" in
"sid:source apt-cache") printf 'Package: glibc\\nVersion: 2.9-1\\nVersion: 2.43-7\\n' ;;
"experimental:source apt-cache") printf 'Version: 2.44-3\\nVersion: 2.44~rc1-1\\n' ;;
*"apt-get") echo "$@" >>{archive}/asked; cp {archive}/glibc_2.44.orig.tar.gz . ;;
esac
"""
CONFIGURE = """#!/bin/sh
[ -f ../source/manual/Makefile ] || exit 1
printf '%s\\n' "$@" >{archive}/options
mkdir elf
printf 'lib:\\n\\tcc -shared -nostdlib -Wl,-soname,libc.so.6 -o libc.so -x c /dev/null\\n' >Makefile
printf '\\tcc -shared -nostdlib -Wl,-soname,ld-linux-test.so.2 -o elf/ld.so -x c /dev/null\\n' >>Makefile
"""


class Checkout:
    """tools/ with get-glibc, and what it calls replaced."""

    def __init__(self, root: Path, configure: str) -> None:
        self.root, self.cache = root, root / "cache"
        for folder in ("bin", "tools", "glibc-2.44", "cache/peers/bin", "cache/gcc/root/usr/lib/machine"):
            (root / folder).mkdir(parents=True)
        shutil.copy(TOOLS / "get-glibc", root / "tools")
        for name, text in (("apt-suite", APT_SUITE), ("get-peers", "#!/bin/sh\n"), ("get-gcc", "#!/bin/sh\n")):
            self._script(root / "tools" / name, text)
        for name in ("bison", "gawk"):  # are asked for, and not needed here
            self._script(root / "bin" / name, "#!/bin/sh\n")
        self._script(root / "glibc-2.44" / "configure", configure)
        subprocess.run(["tar", "-czf", root / "glibc_2.44.orig.tar.gz", "-C", root, "glibc-2.44"], check=True)
        soname = "-Wl,-soname,libgcc_s.so.1"
        libgcc = self.cache / "gcc/root/usr/lib/machine/libgcc_s.so.1"
        subprocess.run(["cc", "-shared", "-nostdlib", soname, "-o", libgcc, "-x", "c", "/dev/null"], check=True)
        (self.cache / "peers/versions").write_text("binutils 2.47\nbinutils-common 2.47\nelfutils 0.196\n")
        (self.cache / "gcc/versions").write_text("gcc-16-machine 16.2\nlibc6 2.43\n")

    def _script(self, path: Path, text: str) -> None:
        path.write_text(text.replace("{archive}", str(self.root)))
        path.chmod(0o755)

    def get(self) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "SFRAMEGEN_CACHE": str(self.cache), "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}
        environ.pop("SFRAMEGEN_PEERS", None)
        return subprocess.run([self.root / "tools/get-glibc"], check=False, capture_output=True, text=True, env=environ)


@pytest.fixture(autouse=True)
def _has_tools(request: pytest.FixtureRequest) -> None:
    missing = [tool for tool in ("make", "dpkg", "cc", "readelf") if not shutil.which(tool)]
    if missing and "get_glibc" in request.node.name:
        pytest.skip(f"no {missing[0]} on this machine")


def test_get_glibc_builds_the_newest_once(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, CONFIGURE)
    done = checkout.get()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "asked").read_text() == "experimental:source apt-get -qq source --tar-only glibc=2.44-3\n"
    assert "--enable-sframe" in (tmp_path / "options").read_text().splitlines()
    glibc = checkout.cache / "glibc"
    assert sorted(one.name for one in glibc.iterdir()) == ["lib", "versions"]
    assert sorted(one.name for one in (glibc / "lib").iterdir()) == ["ld-linux-test.so.2", "libc.so.6", "libgcc_s.so.1"]
    assert (glibc / "versions").read_text() == "glibc 2.44-3\nbinutils 2.47\ngcc-16-machine 16.2\n"
    assert checkout.get().returncode == 0
    assert len((tmp_path / "asked").read_text().splitlines()) == 1


def test_get_glibc_leaves_nothing_of_a_build_that_fails(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, "#!/bin/sh\necho no compiler today\nexit 1\n")
    done = checkout.get()
    assert done.returncode == 1
    assert "no compiler today\nget-glibc: the build failed: " in done.stderr
    assert not list(checkout.cache.glob("glibc*/"))
