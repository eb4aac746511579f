"""Runs the command line in forked processes, each with one fault; to be started with the library of faults.c preloaded.

python server.py LIBRARY < {"arguments": [...], "below": DIRECTORY, "call": N, "action": A, "error": E, "poor": 0 or 1} each line
> {"status": ..., "stderr": ..., "calls": [names of the calls that were counted]} each line
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import sys
import tempfile
from typing import Any

from sframegen.cli.commands import run_command

MAX_CALLS, NAME = 1000, 24


class Seen(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int), ("names", ctypes.c_char * NAME * MAX_CALLS)]


def importable(name: str) -> bool:
    """Compiled modules enter what they share under names that no import finds."""
    spec = getattr(sys.modules[name], "__spec__", None)
    return spec is not None and spec.name == name


def run(library: ctypes.CDLL, seen: Seen, request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as stderr, tempfile.TemporaryFile("w+") as imported:
        here = set(sys.modules)
        child = os.fork()
        if not child:
            os.dup2(stderr.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - to the end of the process
            sys.argv[1:] = map(str, request["arguments"])
            library.faults_arm(os.fsencode(request["below"]), *(request[name] for name in ("call", "action", "error", "poor")))
            status = 99
            try:
                status = run_command()
            except SystemExit as end:
                status = int(end.code or 0)
            finally:
                imported.write("\n".join(name for name in sorted(sys.modules.keys() - here) if importable(name)))
                imported.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        stderr.seek(0)
        imported.seek(0)
        for name in imported.read().split():  # here, and not in each process: it takes longer than the rest
            importlib.import_module(name)
        gc.freeze()  # collecting would copy every page into every process
        calls = [bytes(seen.names[number]).partition(b"\0")[0].decode() for number in range(min(seen.count, MAX_CALLS))]
        return {"status": status, "stderr": stderr.read().decode(), "calls": calls}


def serve() -> None:
    library = ctypes.CDLL(sys.argv[1])
    library.faults_share.restype = ctypes.POINTER(Seen)
    seen = library.faults_share().contents
    for line in sys.stdin:
        print(json.dumps(run(library, seen, json.loads(line))), flush=True)


if __name__ == "__main__":
    serve()
