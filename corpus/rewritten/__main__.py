"""Gives sections to real wheels and Debian packages, and tries them before and after: docs/reports/rewritten.md.

Debian packages need root, mmdebstrap, debsums and lintian. Exit status 1: something is not as before.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from corpus.report_pages import write_or_print

from . import deb_trials, wheel_trials
from .obtaining import deb, wheel
from .rewriting import Rewritten, check_findings, rewritten
from .rewritten_report import markdown
from .roots import Root

MANIFEST = Path(__file__).with_name("rewritten.toml")
OTHERS = "others"  # the tests that try several wheels


def main() -> int:
    manifest = tomllib.loads(MANIFEST.read_text())
    parser = argparse.ArgumentParser(prog="python -m corpus.rewritten", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these packages of the manifest")
    parser.add_argument("--report", type=Path, help="write the report to this file, not to standard output")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this new folder, and leave it")
    options = parser.parse_args()
    known = [*manifest["wheels"]["packages"], *manifest["debian"]["packages"]]
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"not in the manifest: {', '.join(unknown)}; it has {', '.join(known)}")
    names = options.names or known
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="corpus-rewritten-") as temporary:
        scratch = (options.keep or Path(temporary)).absolute()
        of_wheels = try_wheels([name for name in manifest["wheels"]["packages"] if name in names], manifest, scratch)
        of_debs = try_debs([name for name in manifest["debian"]["packages"] if name in names], manifest, scratch)
        text = markdown(of_wheels, of_debs, f"{time.monotonic() - started:.0f} s")
    write_or_print(options.report, text)
    return int(any(one.differences for one in (*of_wheels, *of_debs)))


def try_wheels(names: list[str], manifest: dict[str, Any], scratch: Path) -> list[Rewritten]:
    if not names:
        return []
    results = [rewritten(name.partition("==")[0], wheel(name), scratch / "wheels") for name in names]
    before, after = (wheel_trials.Environment(scratch / which) for which in ("before", "after"))
    before.install_wheels([one.before for one in results])
    before.install(*manifest["wheels"]["tools"], *(one.before for one in results))
    after.install_wheels([one.after for one in results])
    after.install("--no-deps", *before.others([one.before for one in results]))
    for which, environment in (("before", before), ("after", after)):
        said = environment.run("-m", "pip", "check")
        if "exit status" in said:
            results[0].differences.append(f"pip check, {which}: {said}")
    for one in results:
        wheel_trials.compared(one, scratch / one.name)
        wheel_trials.read_by_others(one, before)
        one.differences += wheel_trials.installed_findings(one, after)
        test = manifest["tests"].get(one.name) or manifest["tests"][OTHERS]
        arguments = wheel_trials.prepared(test, scratch / one.name / "tests")
        if test is manifest["tests"][OTHERS]:
            arguments = [*arguments, "-k", one.name]
        old, new = (wheel_trials.outcomes(arguments, scratch / one.name / "tests", environment) for environment in (before, after))
        one.tests = wheel_trials.summary(old)
        if old != new:
            one.differences.append(f"tests: {wheel_trials.summary(new)} after; {list(new - old)[:5]}, not {list(old - new)[:5]}")
        said = "; ".join(one.differences) or f"as before; {one.tests}"
        print(f"{one.before.name}: {said}", file=sys.stderr, flush=True)
    return results


def try_debs(names: list[str], manifest: dict[str, Any], scratch: Path) -> list[Rewritten]:
    if not names:
        return []
    suite = manifest["debian"]["suite"]
    results = [rewritten(name, deb(name, suite), scratch / "debs") for name in names]
    for one in results:
        deb_trials.compared(one, scratch / one.name)
        print(f"{one.before.name}: {'; '.join(one.differences) or 'as before'}", file=sys.stderr, flush=True)
    root = Root(scratch / "root", suite, names)
    jobs = {one.name: manifest["jobs"][one.name] for one in results if one.name in manifest["jobs"]}
    said = {name: root.run(job) for name, job in jobs.items()}
    found = root.verified()
    steps = (
        ("dpkg -i", "after", "dpkg --install"),
        ("dpkg -i of the old", "before", "dpkg --install"),
        ("apt-get install", "after", "apt-get install -qq -o Dpkg::Use-Pty=0 --reinstall --allow-downgrades"),
    )
    for step, which, command in steps:
        output = root.install([getattr(one, which) for one in results], command)
        if not output.endswith("exit status 0\n"):
            results[0].differences.append(f"{step}: {output[-500:]}")
        if (now := root.verified()) != found:
            results[0].differences.append(f"{step}: dpkg -V and debsums say {now[-500:]}, before {found[-500:]}")
        for one in results:
            try_installed(one, root, jobs.get(one.name, ""), said.get(one.name, ""), (step, which))
    return results


def try_installed(one: Rewritten, root: Root, job: str, said: str, step: tuple[str, str]) -> None:
    """The files of the package are those that are installed; its programs print what they printed."""
    name, which = step
    paths = []
    for info, contents in deb_trials.entries(getattr(one, which), "--fsys-tarfile"):
        path = info.name.removeprefix("./")
        if info.isreg() and contents.startswith(b"\x7fELF"):
            installed = root.directory / path
            if installed.read_bytes() != contents or installed.stat().st_mode != root.modes.get(path):
                one.differences.append(f"{name}: {path}: another file or mode is installed")
            paths.append(path)
    if job:
        one.tests = f"{len(said.splitlines())} lines"
        if (now := root.run(job)) != said:
            one.differences.append(f"{name}: programs print {now!r}, before {said!r}")
    if which == "after":
        given = {
            new.name.removeprefix("./")
            for (_, old), (new, contents) in zip(
                deb_trials.entries(one.before, "--fsys-tarfile"), deb_trials.entries(one.after, "--fsys-tarfile"), strict=True
            )
            if old != contents
        }
        one.differences += check_findings([root.directory / path for path in paths if path in given])


if __name__ == "__main__":
    sys.exit(main())
