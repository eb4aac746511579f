"""Builds real projects without and with the post-link step, and compares: corpus/README.md.

Needs the tools of tools/get-peers, the build systems of the projects, and Debian's archive for their sources, which are kept in
CACHE/projects. Exit status 1: something is not as it should be.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from corpus import measured
from corpus.projects.judge import Judge
from corpus.projects.manifest import MANIFEST, environment, projects
from tests.support.peers import Peers


def main() -> int:
    known = {project.name: project for project in projects(MANIFEST.read_text())}
    parser = measured.argument_parser("corpus.projects", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *known], help=f"only these: {', '.join(known)}")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this new folder, and leave what was built there")
    options = parser.parse_args()

    program = shutil.which("sframegen", path=str(Path(sys.executable).parent)) or shutil.which("sframegen")
    if program is None:
        parser.error("sframegen is not installed")
    peers = Peers()
    with tempfile.TemporaryDirectory(prefix="corpus-projects-") as temporary:
        scratch = (options.keep or Path(temporary)).absolute()
        judge = Judge(program, peers.tool("readelf"), environment(program), scratch)
        judged = []
        for name in options.names or known:
            judged.append(one := judge.judge(known[name]))
            print(f"{name} {one.version}: {'; '.join(one.differences) or 'as it should be'}", file=sys.stderr, flush=True)
    versions = dict(line.split() for line in (peers.directory / "versions").read_text().splitlines())
    measured.write(options.json, {"binutils": versions["binutils"], "projects": [one.record() for one in judged]})
    return int(any(one.differences for one in judged))


if __name__ == "__main__":
    sys.exit(main())
