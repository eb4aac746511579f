"""corpus/run on a few small files."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests import with_checkout

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler, Peers

pytestmark = pytest.mark.full

PROGRAM = '#include <stdio.h>\nint main(int n, char **v) { printf("%d %s\\n", n, v[1]); return 0; }\n'
LIBRARY = "int f(int x) { return x + 1; }\n"


@pytest.fixture
def machine(compile_c: Compiler, tmp_path: Path) -> Path:
    """A folder with a program, by two names and a link, a library, a program that is refused, and what is not to be tried."""
    files = {
        "bin/program": compile_c(PROGRAM, "-O2").read_bytes(),
        "lib/library.so": compile_c(LIBRARY, "-O2", "-shared", "-fPIC").read_bytes(),
        "bin/payload": compile_c(PROGRAM, "-O2").read_bytes() + b"payload",
        "lib/object.o": compile_c(LIBRARY, "-c").read_bytes(),
        "lib/text": b"text",
    }
    for name, data in files.items():
        file = tmp_path / "machine" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(0o755)
    (tmp_path / "machine/bin/same").hardlink_to(tmp_path / "machine/bin/program")
    (tmp_path / "machine/bin/link").symlink_to("program")
    return tmp_path / "machine"


def test_each_file_is_tried_and_told(machine: Path, peers: Peers, tmp_path: Path) -> None:
    peers.tool("readelf")
    before = {file: file.read_bytes() for file in machine.rglob("*") if file.is_file()}
    command = [sys.executable, "-m", "corpus.run", "--sample", "1", "--json", str(tmp_path / "json"), str(machine)]
    done = subprocess.run(command, env=with_checkout(), check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    results = json.loads((tmp_path / "json").read_text())
    assert results["outcomes"] == {"added": 2, "refused": 1}
    [refused] = results["without_section"]
    assert refused["such_as"].endswith("/bin/payload")
    assert refused["reason"].startswith("7 bytes follow the ELF image at N: ")
    assert (results["rules_judged"], results["differences"]) == ({"equal": 2}, [])
    assert 0 < results["covered_bytes"] == results["code_bytes"]
    assert results["wholly_covered_files"] == 2
    files = {one["same"]: (one["files"], one["exit_status_0"], one["unsteady"]) for one in results["behaviour"]}
    assert files["ldd -r"] == (2, 2, 0)
    assert files["ld.so --verify"] in [(2, 1, 0), (2, 2, 0)]  # not 0 for a library
    assert {files["preloaded"], files["--version"]} <= {(1, 1, 0), (0, 0, 0)}  # without namespaces, nothing is run
    assert before == {file: file.read_bytes() for file in machine.rglob("*") if file.is_file()}
