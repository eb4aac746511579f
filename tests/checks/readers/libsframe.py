"""GNU libsframe on sections that may be damaged. A process of one thread forks for each, as it may crash. After the section is a
page without rights, so that reading on is found out."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import sys

from tests import with_checkout
from tests.support.processes.answering import Answering

MAX_ROWS = 1000  # that are asked for one by one
NO_MEMORY = 2001  # the error: the header asks for more than there is
READS_OUT, CRASHES, FAILS, REJECTS = "reads out of bounds", "crashes", "fails", "rejects"
STATUS = {0: "", 1: REJECTS, 2: FAILS, 3: READS_OUT}
LIMIT = 4  # seconds
MEMORY = 1 << 32


class LibSframe(Answering):
    """The process that reads sections with the library."""

    def __init__(self, library: str) -> None:
        super().__init__([sys.executable, "-m", __name__, library], with_checkout())

    def outcome(self, section: bytes, pcs: list[int]) -> str:
        """What comes of decoding it, asking for all that readelf asks for, and finding `pcs`, from the section's first byte."""
        answer: str = self.ask([section.hex(), pcs])
        return answer


def _serve(library: str) -> None:
    for line in sys.stdin:
        section, pcs = json.loads(line)
        print(json.dumps(_outcome(library, bytes.fromhex(section), pcs)), flush=True)


def _outcome(library: str, section: bytes, pcs: list[int]) -> str:
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            signal.alarm(LIMIT)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os._exit(_read(ctypes.CDLL(library), section, pcs))
        finally:
            os._exit(99)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return READS_OUT if os.WTERMSIG(status) in (signal.SIGSEGV, signal.SIGBUS, signal.SIGALRM) else CRASHES
    return STATUS[os.waitstatus_to_exitcode(status)]


def _guarded(section: bytes) -> tuple[int, mmap.mmap]:
    page = mmap.PAGESIZE
    pages = (len(section) + page - 1) // page * page
    area = mmap.mmap(-1, pages + page)
    at = ctypes.addressof(ctypes.c_char.from_buffer(area))
    area[pages - len(section) : pages] = section
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(at + pages), ctypes.c_size_t(page), 0):
        raise OSError
    return at + pages - len(section), area


def _read(lib: ctypes.CDLL, section: bytes, pcs: list[int]) -> int:
    error = ctypes.c_int()
    lib.sframe_decode.restype = ctypes.c_void_p
    place, area = _guarded(section)
    decoded = lib.sframe_decode(ctypes.c_void_p(place), ctypes.c_size_t(len(section)), ctypes.byref(error))
    if not decoded:
        return 3 if error.value == NO_MEMORY else 1
    context = ctypes.c_void_p(decoded)
    lib.sframe_decoder_get_num_fidx.restype = ctypes.c_uint32
    lib.sframe_decoder_get_version.restype = ctypes.c_uint8
    describe = getattr(lib, f"sframe_decoder_get_funcdesc_v{lib.sframe_decoder_get_version(context)}")
    find, row_of = lib.sframe_find_fre, lib.sframe_decoder_get_fre
    find.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
    entry = ctypes.create_string_buffer(256)
    numbers = [ctypes.c_uint64() for _ in range(6)]
    places = [ctypes.byref(number) for number in numbers]
    result = 0
    for function in range(lib.sframe_decoder_get_num_fidx(context)):
        if describe(context, ctypes.c_uint32(function), *places):
            result = 2
            break
        for row in range(min(numbers[0].value & 0xFFFFFFFF, MAX_ROWS)):
            if row_of(context, ctypes.c_uint32(function), ctypes.c_uint32(row), entry):
                result = 2
                break
    for pc in pcs:
        if find(context, pc, entry):
            result = 2
    del area
    return result


if __name__ == "__main__":
    _serve(sys.argv[1])
