"""Runs the command line in forked processes, each with one fault; to be started with the library of faults.c preloaded.

python server.py LIBRARY < {"arguments": [...], "below": DIRECTORY, "call": N, "action": A, "error": E, "poor": 0 or 1} each line
> {"status": ..., "stderr": ..., "calls": [names of the calls that were counted]} each line
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import tempfile
from typing import Any

from sframegen import api  # noqa: F401 - here, and not in each process
from sframegen.cli import add_section, convert  # noqa: F401
from sframegen.cli.commands import main

MAX_CALLS, NAME = 1000, 24


class Seen(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int), ("names", ctypes.c_char * NAME * MAX_CALLS)]


def run(library: ctypes.CDLL, seen: Seen, request: dict[str, Any]) -> dict[str, Any]:
    if "--no-verify" not in request["arguments"]:
        import linker.inject.verify  # noqa: F401, PLC0415 - LIEF, which makes a process slow to fork

    with tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if not child:
            os.dup2(stderr.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - to the end of the process
            sys.argv[1:] = map(str, request["arguments"])
            library.faults_arm(os.fsencode(request["below"]), *(request[name] for name in ("call", "action", "error", "poor")))
            status = 99
            try:
                main()
            except SystemExit as end:
                status = int(end.code or 0)
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        stderr.seek(0)
        calls = [bytes(seen.names[number]).partition(b"\0")[0].decode() for number in range(min(seen.count, MAX_CALLS))]
        return {"status": status, "stderr": stderr.read().decode(), "calls": calls}


def serve() -> None:
    library = ctypes.CDLL(sys.argv[1])
    library.faults_share.restype = ctypes.POINTER(Seen)
    seen = library.faults_share().contents
    gc.freeze()  # collecting would copy every page into every process
    for line in sys.stdin:
        print(json.dumps(run(library, seen, json.loads(line))), flush=True)


if __name__ == "__main__":
    serve()
