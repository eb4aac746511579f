"""What tools.bare runs in each root, as its root user. Exit status 1: a command failed.

usage: inside.py USER CHECKOUT UMASK first|release|TESTS
`first`: only what leads to the first section and flame graph. `release`: `make test`, and wheels. TESTS: what `make test` tries
there. The commands are README's and the ones that errors give as remedies, which are therefore tried, too.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

REMEDY = re.compile(r"To install: sudo (apt-get install .*)")
PERMITTED = "ok  perf events of own processes: allowed"
AT_THE_END = 1000  # characters: a remedy there is for what failed
ID = 1000
USUAL_FILES = 1024  # descriptors, where nobody has set another limit
SETPRIV = ("setpriv", f"--reuid={ID}", f"--regid={ID}", "--clear-groups")
# The program of one's own that README profiles.
PROGRAM = """
#include <stdio.h>
static unsigned long step(unsigned long sum) { return sum * 31 + 7; }
__attribute__((noinline)) unsigned long busy_function(unsigned long count) {
    unsigned long sum = 0;
    while (count--)
        sum = step(sum);
    return sum;
}
int main(void) { return printf("%lu\\n", busy_function(1000000000)) < 0; }
"""
# A program of the root, with a section from the package that the wheel installed.
TRIAL = """
python3 -m venv "$HOME/installed"
"$HOME/installed/bin/pip" install --quiet dist/sframegen-*-manylinux_*_"$(uname -m)".whl
cp "$(command -v bash)" "$HOME/bash"
"$HOME/installed/bin/sframegen" add-section "$HOME/bash"
"$HOME/bash" -c 'echo still runs'
"$HOME/installed/bin/sframegen" remove "$HOME/bash"
cmp "$HOME/bash" "$(command -v bash)"
"""


class User(NamedTuple):
    name: str
    home: Path
    checkout: Path
    umask: int
    temporary: Path

    def run(self, script: str) -> None:
        """Run a script in the checkout; if it fails with a remedy, once more after that. Ends the program if it fails."""
        status, lines = self._printed(script)
        if status and (remedies := REMEDY.findall(lines[-AT_THE_END:])):
            ROOT.run(unattended(remedies[-1]))
            status, lines = self._printed(script)
        if status:
            raise SystemExit(f"failed with status {status}: {script}")

    def _printed(self, script: str) -> tuple[int, str]:
        """The exit status, and all lines, which are printed."""
        print(f"$ {script.strip()}", flush=True)
        began = time.monotonic()
        environment = os.environ | {"HOME": str(self.home), "TMPDIR": str(self.temporary), "SFRAMEGEN_NO_SKIP": "fetched"}
        if self.name != "root":
            environment["PATH"] = "/usr/bin"  # Debian gives an ordinary user no /usr/sbin
        process = subprocess.Popen(
            [*([] if self.name == "root" else SETPRIV), "bash", "-euo", "pipefail", "-c", script],
            cwd=self.checkout,
            env=environment,
            umask=self.umask,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        lines = []
        with process:
            for line in process.stdout or ():
                lines.append(line)
                print("  " + line, end="", flush=True)
        print(f"-- {time.monotonic() - began:.0f} s", flush=True)
        return process.returncode, "".join(lines)


ROOT = User("root", Path("/root"), Path(), 0o022, Path("/tmp"))  # noqa: S108 - TMPDIR's default


def main() -> None:
    name, checkout, umask, extent = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (USUAL_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    shutil.copy("pip.conf", "/etc/pip.conf")
    home = Path("/root" if name == "root" else f"/home/{name}")
    user = User(name, home, Path(checkout), int(umask, 8), ROOT.temporary if name == "root" else home / "tmp")
    readme = Path(checkout, "README.md").read_text()
    [first, tests] = set_ups(readme)
    if name != "root":
        with Path("/etc/passwd").open("a") as users, Path("/etc/group").open("a") as groups:
            users.write(f"{name}:x:{ID}:{ID}::{home}:/bin/bash\n")
            groups.write(f"{name}:x:{ID}:\n")
        home.mkdir(0o700)
        user.temporary.mkdir(0o700)  # where nobody else can write
        subprocess.run(["chown", "-R", f"{ID}:{ID}", home, Path(checkout).parts[0]], check=True)
    ROOT.run("apt-get -qq update")
    user = user._replace(checkout=first_results(user, first, example(readme)))
    if extent == "first":
        return
    Path(user.checkout, ".venv/installed").touch()  # else make would install it once more
    [asked, *commands] = tests
    if name != "root":
        ROOT.run(unattended(asked.removeprefix("sudo ")))
    if extent == "release":
        # The wheels of all machines are made in one root only, for the time.
        wheels = "make release" if name == "root" else f"make wheel WHEEL_FLAGS='--machine {os.uname().machine}'"
        commands = [*commands, wheels, TRIAL]
    else:
        commands = [f"{one} TESTS='{extent}'" for one in commands]
    for command in commands:
        user.run(command)


def unattended(command: str) -> str:
    """The command of apt-get, which asks nothing and adds nothing that is only recommended."""
    return command.replace("install", "install -qq --yes --no-install-recommends", 1)


def set_ups(readme: str) -> list[list[str]]:
    """README's commands after which there are a section and a flame graph, and those that test a checkout."""
    blocks = re.findall(r"^    (sudo apt-get install .*\n(?:    .*\n)*)", readme, re.MULTILINE)
    return [[line.split("  #")[0].strip() for line in block.splitlines()] for block in blocks]


def example(readme: str) -> str:
    """README's first example, in a directory of its own."""
    [block] = re.findall(r"^```console\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    commands = re.findall(r"^\$ (.*)", block, re.MULTILINE)
    return "\n".join(['export PATH="$PWD/.venv/bin:$PATH"', "mkdir example && cd example", *commands])


def first_results(user: User, commands: list[str], example: str) -> Path:
    """Run the commands and the example in a new clone, and print how long that took. Return the clone."""
    [asked, *commands] = commands
    ROOT.run(unattended(asked.removeprefix("sudo ")))
    clone = user.home / user.checkout
    began, before = time.monotonic(), processor_seconds()
    user.run(f"git clone --quiet . {shlex.quote(str(clone))}")
    in_clone = user._replace(checkout=clone)
    for command in commands:
        if not command.startswith("sudo "):
            in_clone.run(command)
    print(f"-- {time.monotonic() - began:.0f} s from git clone to the first section", flush=True)
    in_clone.run(example)
    in_clone.run("./bash.sframe -c 'echo still runs'")
    Path(clone, "program.c").write_text(PROGRAM)
    in_clone.run("gcc -O2 -o program program.c")
    if PERMITTED not in printed_by(clone / ".venv/bin/sframegen", "profile", "--probe"):
        print("-- no flame graph: perf events are forbidden here", flush=True)
        return clone
    for command in commands:
        if command.startswith("sudo "):
            ROOT._replace(checkout=clone).run(command.removeprefix("sudo "))
    seconds = time.monotonic() - began
    if "busy_function" not in Path(clone, "p.html").read_text():
        raise SystemExit("p.html has no function of the program")
    print(f"-- {seconds:.0f} s from git clone to the flame graph, {processor_seconds() - before:.0f} s of CPU time", flush=True)
    return clone


def processor_seconds() -> float:
    """Of the commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def printed_by(*command: str | Path) -> str:
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


main()
