"""Run a command as root of a namespace of users, in which programs of other machines run, and the machine itself does not change.

usage: python -m tools.release.namespace [--root DIR [--bind PATH]... ] COMMAND...

Other machines' programs run with qemu, which binfmt_misc starts; it has been the namespace's own since Linux 6.7. With --root,
COMMAND sees DIR with the PATHs in it and nothing else; there is no network; what it writes to DIR is gone when it ends. Needs root.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import subprocess
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.places import CACHE
from tools.release.machines import MACHINES, ROOT

NEW_MOUNTS, NEW_USERS, NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000
BINFMT = Path("/proc/sys/fs/binfmt_misc")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LC_ALL": "C.UTF-8", "PYTHONSAFEPATH": "1"}  # noqa: S108 - in a root


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.release.namespace")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--bind", type=Path, action="append", default=[])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    subprocess.run([ROOT / "tools/get-qemu"], check=True)
    enter(NEW_USERS | NEW_MOUNTS | (NEW_NETWORK if options.root else 0))
    emulate()
    if not options.root:
        os.execvp(options.command[0], options.command)  # noqa: S606
    with tempfile.TemporaryDirectory(prefix="root-") as layer:
        # The mounts are this process's own, and end with it: the command is another one.
        enter_root = partial(inside, options.root, Path(layer), options.bind)
        done = subprocess.run(options.command, check=False, env=ENVIRONMENT, preexec_fn=enter_root)
    raise SystemExit(done.returncode)


def enter(kinds: int) -> None:
    """Make this process root of new namespaces, in which all users have the numbers that they have outside. Raises OSError."""
    us, (reading, writing) = os.getpid(), os.pipe()
    child = os.fork()
    if child == 0:  # only from outside can all users be mapped
        os.read(reading, 1)
        for users in ("uid_map", "gid_map"):
            Path(f"/proc/{us}/{users}").write_text("0 0 65536\n")
        os._exit(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(kinds):
        raise OSError(ctypes.get_errno(), "no new namespace of users")
    os.write(writing, b"x")
    if os.waitpid(child, 0)[1]:
        raise OSError("the namespace's users cannot be mapped")


def emulate() -> None:
    """Let qemu start the programs of all machines but this one."""
    subprocess.run(["mount", "-t", "binfmt_misc", "none", BINFMT], check=True)
    for machine in MACHINES:
        if machine.name != platform.machine():
            magic, mask = ("".join(f"\\x{byte:02x}" for byte in some) for some in (machine.magic, machine.mask))
            qemu = CACHE / "qemu/bin" / f"qemu-{machine.name}"
            (BINFMT / "register").write_text(f":{qemu.name}:M::{magic}:{mask}:{qemu}:FP")


def inside(root: Path, layer: Path, paths: list[Path]) -> None:
    """Enter a root: writes go to the layer."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "no new namespace of mounts")
    for name in ("upper", "work", "merged"):
        (layer / name).mkdir()
    merged = layer / "merged"
    layers = f"lowerdir={root.absolute()},upperdir={layer / 'upper'},workdir={layer / 'work'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, merged], check=True)
    for path in [Path("/proc"), Path("/dev"), *(path.absolute() for path in paths)]:
        place = merged / path.relative_to("/")
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        subprocess.run(["mount", "--rbind", path, place], check=True)
    os.chroot(merged)
    os.chdir("/")


if __name__ == "__main__":
    main()
