"""Builds real projects without and with the post-link step, and compares: corpus/README.md.

Also what the step does with each linker and kind of link, and what a build does when sframegen is missing, killed, or refuses a
file. Needs the tools of tools/get-peers, the build systems of the projects, and Debian's archive for their sources, which are kept
in CACHE/projects. Exit status 1: something is not as it should be.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from corpus import measured
from corpus.projects.badnews import PROJECT, try_all
from corpus.projects.judge import Judge
from corpus.projects.linkers import matrix
from corpus.projects.manifest import MANIFEST, environment, projects
from corpus.projects.report import results
from tests.support.peers import Peers

PARTS = ("linkers", "bad-news")


def main() -> int:
    known = {project.name: project for project in projects(MANIFEST.read_text())}
    parser = argparse.ArgumentParser(prog="python -m corpus.projects", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", choices=[[], *known, *PARTS], help=f"only these: {', '.join([*known, *PARTS])}"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this new folder, and leave what was built there")
    measured.add_json_option(parser)
    options = parser.parse_args()
    names = options.names or [*known, *PARTS]

    program = shutil.which("sframegen", path=str(Path(sys.executable).parent)) or shutil.which("sframegen")
    if program is None:
        parser.error("sframegen is not installed")
    peers = Peers()
    around = environment(program)
    with tempfile.TemporaryDirectory(prefix="corpus-projects-") as temporary:
        scratch = (options.keep or Path(temporary)).absolute()
        judge = Judge(program, peers.tool("readelf"), around, scratch)
        judged = []
        for name in names:
            if name in known:
                judged.append(judge.judge(known[name]))
                one = judged[-1]
                print(f"{name} {one.version}: {'; '.join(one.differences) or 'as it should be'}", file=sys.stderr, flush=True)
        cells = list(matrix(judge, peers)) if "linkers" in names else []
        news = list(try_all(judge, known[PROJECT])) if "bad-news" in names else []
    versions = dict(line.split() for line in (peers.directory / "versions").read_text().splitlines())
    measured.write(options.json, {"binutils": versions["binutils"], **results(judged, cells, news)})
    found = [[one.differences for one in judged], [one.differences for one in cells], [one.differences for one in news]]
    return int(any(any(of_kind) for of_kind in found))


if __name__ == "__main__":
    sys.exit(main())
