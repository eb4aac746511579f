"""The machines for which there are wheels, and what compiles for them: Debian's cross compilers and Python headers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from benchmarks.places import CACHE

ROOT = Path(__file__).resolve().parents[2]
# The oldest Python of the limited API that is used, and the suite that has it.
HEADERS_SUITE, HEADERS_PACKAGE, HEADERS = "bookworm", "libpython3.11-dev", "python3.11"


class Machine(NamedTuple):
    name: str  # as uname, wheels and qemu call it
    debian: str
    magic: bytes  # how its programs begin: an ELF header with the bits of `mask`
    mask: bytes

    @property
    def triplet(self) -> str:
        return f"{self.name}-linux-gnu"

    def environment(self) -> dict[str, str]:
        """Return the variables with which setuptools compiles for the machine. Raises OSError or CalledProcessError."""
        compiler = f"{self.triplet}-gcc"
        if shutil.which(compiler) is None:
            raise FileNotFoundError(f"{compiler} is missing: apt-get install gcc-{self.triplet.replace('_', '-')}")
        headers = self._headers() / "usr/include"
        # Those of the Python that runs setuptools come after them.
        including = f"{compiler} -I{headers / HEADERS} -I{headers}"
        return {
            "CC": including,
            "LDSHARED": f"{compiler} -shared",
            "_PYTHON_HOST_PLATFORM": f"linux-{self.name}",
            "SFRAMEGEN_PURE": "0",  # what cannot be compiled is an error
        }

    def _headers(self) -> Path:
        """Return where Debian's package of headers is unpacked."""
        place = CACHE / "python-headers" / self.debian
        if not place.exists():
            new = place.with_name(f"{self.debian}.{os.getpid()}")
            new.mkdir(parents=True)
            suite = f"{HEADERS_SUITE}:{self.debian}"
            subprocess.run([ROOT / "tools/apt-suite", suite, "apt-get", "-qq", "download", HEADERS_PACKAGE], cwd=new, check=True)
            [package] = new.glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", package, new], check=True)
            package.unlink()
            new.rename(place)
        return place


def _elf(data: int, machine: bytes, mask: bytes) -> tuple[bytes, bytes]:
    """The beginning of programs, ET_EXEC or ET_DYN, and which of its bits count."""
    kind = b"\x00\x02" if data == 2 else b"\x02\x00"
    return b"\x7fELF\x02" + bytes([data, 1]) + bytes(9) + kind + machine, b"\xff" * 7 + b"\x00" + b"\xff" * 8 + mask + b"\xff\xff"


MACHINES = (
    Machine("x86_64", "amd64", *_elf(1, b"\x3e\x00", b"\xfe\xff")),
    Machine("aarch64", "arm64", *_elf(1, b"\xb7\x00", b"\xfe\xff")),
    Machine("s390x", "s390x", *_elf(2, b"\x00\x16", b"\xff\xfe")),
)
