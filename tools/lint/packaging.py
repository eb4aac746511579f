"""Rules on what is released: pyproject.toml, the changelog, pinned releases, licenses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sframegen
from sframegen.program.build import MODULES
from tools.lint.sources import differ, files, project, text_of, tracked
from tools.release import sbom
from tools.rooms import PACKAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
HEADING = re.compile(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d")
BOTH_LICENSES = "SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only"


def the_changelog_has_each_version_and_kind_once() -> Iterator[str]:
    sections = [section.partition("\n") for section in re.split(r"^## ", text_of("CHANGELOG.md"), flags=re.MULTILINE)[1:]]
    versions = [heading for heading, _, _ in sections]
    yield from differ("CHANGELOG.md", "first section", versions[0], "[Unreleased]")
    yield from differ("CHANGELOG.md", "newest version", versions[1].partition(" ")[0], f"[{sframegen.__version__}]")
    yield from (f"CHANGELOG.md: {heading}: not [VERSION] - DATE" for heading in versions[1:] if not HEADING.fullmatch(heading))
    for heading, _, text in sections:
        kinds = re.findall(r"^### (.*)$", text, re.MULTILINE)
        wrong = [kind for kind in kinds if kind not in KINDS or kinds.count(kind) > 1]
        yield from (f"CHANGELOG.md: {heading}: {kind}: unknown, or there twice" for kind in dict.fromkeys(wrong))


def pinned_releases_are_those_that_pyproject_promises() -> Iterator[str]:
    """tests/constraints/: what `make test-constraints` tries."""
    lines = (*project()["project"]["dependencies"], *project()["build-system"]["requires"])
    needed = {canonicalize_name(one.name): one.specifier for one in map(Requirement, lines)}
    for which in ("oldest", "newest"):
        name = f"tests/constraints/{which}.txt"
        pairs = (line.split("==") for line in text_of(name).splitlines() if not line.startswith("#"))
        pinned = {canonicalize_name(package): version for package, version in pairs}
        yield from differ(name, "packages", sorted(pinned), sorted(needed))
        for package in pinned.keys() & needed.keys():
            bound = next(one.version for one in needed[package] if one.operator == ">=")
            if not needed[package].contains(pinned[package]):
                yield f"{name}: {package}: {pinned[package]} is not {needed[package]}"
            if which == "oldest":  # the bound `1` is 1.0.0
                yield from differ(name, package, _short(pinned[package]), _short(bound))


def _short(version: str) -> str:
    return version.removesuffix(".0").removesuffix(".0")


def an_sdist_has_the_types_of_all_compiled_modules() -> Iterator[str]:
    """Without its `.pxd`, a module compiles too: its attributes are then Python objects that nobody else sees."""
    patterns = project()["tool"]["setuptools"]["package-data"]
    packed = {path for package, those in patterns.items() for one in those for path in (ROOT / package).glob(one)}
    for path in ((ROOT / name.replace(".", "/")).with_suffix(".pxd") for name in MODULES):
        if path.exists() and path not in packed:
            yield f"pyproject.toml: package-data lacks {path.relative_to(ROOT)}"


def the_sbom_has_a_license_for_each_dependency() -> Iterator[str]:
    needed = {sbom.condition_of(requirement)[0] for requirement in project()["project"]["dependencies"]}
    yield from differ("tools/release/sbom.py", "LICENSES of", sorted(sbom.LICENSES), sorted(needed))


def what_makes_a_release_has_exact_versions_and_hashes() -> Iterator[str]:
    """Then nothing is installed without a hash; pyproject.toml's own build requirements are among them."""
    name = "tools/release/requirements.txt"
    asked = re.findall(r"^([\w-]+)(?:\[.*\])?==(\S+)$", text_of("tools/release/requirements.in"), re.MULTILINE)
    entries = {one.split()[0]: one for one in re.split(r"\n(?=\S)", text_of(name).strip())}
    yield from (f"{name}: lacks {one}=={version}" for one, version in asked if f"{one.lower()}=={version}" not in entries)
    yield from (f"{name}: {entry}: without a hash" for entry, text in entries.items() if "--hash=sha256:" not in text)


def debian_has_the_license_of_each_file() -> Iterator[str]:
    """Files that one may use under the GPL: debian/copyright lists them, and sdist and wheel have its text."""
    sources = {name for ending in (".c", ".h") for name in files(*PACKAGES, ending=ending) if BOTH_LICENSES in text_of(name)}
    patterns = "".join(re.findall(r"^Files: (sframegen/.*\n(?: .*\n)+)", text_of("debian/copyright"), re.MULTILINE))
    listed = {path.relative_to(ROOT).as_posix() for pattern in patterns.split() for path in ROOT.glob(pattern)} & set(tracked())
    yield from (f"{name}: under both licenses, or in debian/copyright: not in both" for name in sources ^ listed)


RULES = (
    the_changelog_has_each_version_and_kind_once,
    pinned_releases_are_those_that_pyproject_promises,
    an_sdist_has_the_types_of_all_compiled_modules,
    the_sbom_has_a_license_for_each_dependency,
    what_makes_a_release_has_exact_versions_and_hashes,
    debian_has_the_license_of_each_file,
)
