"""One boot under qemu-system, without virtualization by the host's processor: what the guest's first process printed."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING, Any

from corpus.kernels.in_guest import PREFIX

if TYPE_CHECKING:
    from pathlib import Path

MEBIBYTES = 1024
CONSOLES = {"amd64": "ttyS0", "arm64": "ttyAMA0"}
# The emulated processors have all that qemu knows, so that return addresses are signed on AArch64; an architecture's own
# way to sign is much slower to emulate.
QEMU = {
    "amd64": ("qemu-system-x86_64", "-machine", "q35", "-cpu", "max"),
    "arm64": ("qemu-system-aarch64", "-machine", "virt", "-cpu", "max,pauth-impdef=on"),
}
LAST_LINES = 15


def command(architecture: str, kernel: Path, initramfs: Path) -> list[str]:
    line = f"console={CONSOLES[architecture]} quiet panic=-1 rdinit=/init"
    return [
        *("nice", *QEMU[architecture], "-accel", "tcg", "-m", str(MEBIBYTES), "-display", "none", "-nodefaults", "-no-reboot"),
        *("-serial", "stdio", "-kernel", str(kernel), "-initrd", str(initramfs), "-append", line),
    ]


def result_in(console: str) -> dict[str, Any]:
    """Return the line of JSON, or `failed` with the last lines if there is none."""
    lines = console.splitlines()
    for line in lines:
        if line.startswith(PREFIX):
            try:
                found: dict[str, Any] = json.loads(line.removeprefix(PREFIX))
            except json.JSONDecodeError as error:
                return {"failed": f"the line of results is damaged: {error}"}
            return found
    return {"failed": "\n".join(["no line of results", *lines[-LAST_LINES:]])}


def boot(architecture: str, kernel: Path, initramfs: Path, timeout: float) -> dict[str, Any]:
    """Return what the guest found, with `seconds`. Raises OSError without qemu."""
    started = time.monotonic()
    with subprocess.Popen(
        command(architecture, kernel, initramfs), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as machine:
        try:
            console, _ = machine.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            machine.kill()
            console, _ = machine.communicate()
            console += f"\nno end within {timeout:.0f} s\n".encode()
    return result_in(console.decode(errors="replace")) | {"seconds": time.monotonic() - started}
