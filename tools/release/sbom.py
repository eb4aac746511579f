"""Write the SBOM of a release, in CycloneDX's form: what is released, and what an installation of it consists of besides.

The dependencies are those of Python 3.11 on x86-64, where all of them are needed; `condition` says where else.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

from tools.release.machines import ROOT

# From the license files of each: their metadata have it in words, or not at all.
LICENSES = {
    "backports.zstd": "PSF-2.0 AND BSD-3-Clause",
    "capstone": "BSD-3-Clause",
    "click": "BSD-3-Clause",
    "lief": "Apache-2.0",
    "pyelftools": "Unlicense",
}
TARGET = ("--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=abi3", "--abi=none")
PLATFORMS = ("--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_17_x86_64", "--platform=linux_x86_64")


def resolved(wheel: Path) -> list[dict[str, Any]]:
    """What pip would install for a wheel, from its report: the newest releases of today. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        choice = ("--only-binary=:all:", f"--target={folder}/none", *TARGET, *PLATFORMS)
        command = (sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", f"--report={report}")
        subprocess.run([*command, *choice, wheel], check=True)
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return [one for one in found if not one["is_direct"]]


def document(version: str, released: list[Path], installed: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the SBOM. Raises KeyError for a dependency whose license LICENSES does not have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    conditions = dict(map(condition_of, project["dependencies"]))
    ours = component("sframegen", version, project["license"]) | {"type": "application", "description": project["description"]}
    ours["externalReferences"] = [
        {"type": "distribution", "url": file.name, "hashes": hashes(sha256(file.read_bytes()).hexdigest())} for file in released
    ]
    components = []
    for one in sorted(installed, key=lambda one: str(one["metadata"]["name"]).lower()):
        name = one["metadata"]["name"].lower()
        properties = {"condition": conditions.get(name, ""), "file": one["download_info"]["url"].rpartition("/")[2]}
        components.append(
            component(name, one["metadata"]["version"], LICENSES[name])
            | {"hashes": hashes(one["download_info"]["archive_info"]["hashes"]["sha256"])}
            | {"properties": [{"name": f"sframegen:{key}", "value": value} for key, value in properties.items() if value]}
        )
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": ours},
        "components": components,
        "dependencies": [
            {"ref": ours["bom-ref"], "dependsOn": [one["bom-ref"] for one in components]},
            *({"ref": one["bom-ref"]} for one in components),
        ],
    }


def component(name: str, version: str, license_expression: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name.replace('.', '-')}@{version}"
    terms = [{"expression": license_expression}] if " " in license_expression else [{"license": {"id": license_expression}}]
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "licenses": terms}


def hashes(digest: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest}]


def condition_of(requirement: str) -> tuple[str, str]:
    """The name in a requirement, and its environment marker."""
    name = re.match(r"[\w.-]+", requirement)
    assert name
    return name[0].lower(), requirement.partition(";")[2].strip()


def main() -> None:
    dist = Path("dist")
    [pure] = dist.glob("sframegen-*-py3-none-any.whl")
    version = pure.name.split("-")[1]
    released = sorted(file for file in dist.glob(f"sframegen-{version}*") if file.suffix in {".whl", ".gz"})
    text = json.dumps(document(version, released, resolved(pure)), indent=2) + "\n"
    (dist / f"sframegen-{version}.cdx.json").write_text(text)


if __name__ == "__main__":
    main()
