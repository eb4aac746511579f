"""usage: python rattler_trial.py INDEX.json PACKAGE PREFIX

Installs a conda package with rattler, verifies each file with conda-meta, and removes it. Runs in the environment of building.py.
The last line is `done`: threads of rattler can abort the interpreter when it ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from pathlib import Path


async def main() -> None:
    from rattler import PackageRecord, PrefixRecord, RepoDataRecord, install  # type: ignore[import-not-found] # noqa: PLC0415

    index, package, prefix = map(Path, sys.argv[1:])
    data = package.read_bytes()
    sha256, md5 = (hashlib.new(name, data, usedforsecurity=False).hexdigest() for name in ("sha256", "md5"))
    record = PackageRecord.from_index_json(index, len(data), sha256, md5)
    records = [RepoDataRecord(record, package.name, package.as_uri(), "file:///here")]
    cache = prefix.with_name(prefix.name + "-cache")
    await install(records, prefix, cache_dir=cache, show_progress=False)
    [meta] = (prefix / "conda-meta").glob("*.json")
    for path in json.loads(meta.read_text())["paths_data"]["paths"]:
        file = prefix / path["_path"]
        if path["path_type"] == "hardlink" and hashlib.sha256(file.read_bytes()).hexdigest() != path["sha256"]:
            print(f"rattler: {path['_path']}: another checksum is installed")
    await install([], prefix, cache_dir=cache, installed_packages=[PrefixRecord.from_path(meta)], show_progress=False)
    for file in prefix.rglob("*"):
        if not file.is_dir() and file.name not in ("history", "CACHEDIR.TAG"):
            print(f"rattler: {file.relative_to(prefix)} is left after removal")
    print("done", flush=True)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
