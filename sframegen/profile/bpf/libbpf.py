"""Loads the kernel program's object file by calling libbpf.so.1 through ctypes. Errors have the last line of the verifier."""

from __future__ import annotations

import ctypes as c
import mmap
import os
from collections import deque
from errno import EACCES, ENOENT, EPERM
from functools import cache
from typing import TYPE_CHECKING

from sframegen.base.errors import SframegenError
from sframegen.profile.bpf.object_files import COMPILER, HERE, object_name
from sframegen.profile.this_machine import describe_root

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sframegen.profile.tables.decoded_table import DecodedTable

LIBRARY = "libbpf.so.1"
LOG_LINES = 40  # of the end of the log, where the verifier tells what it refuses
MAP_TYPE_ARRAY = 2
INNER_FLAGS = 0x1000 | 0x400  # BPF_F_INNER_MAP, BPF_F_MMAPABLE

_Print = c.CFUNCTYPE(c.c_int, c.c_int, c.c_char_p, c.c_void_p)

_POINTER, _INT, _TEXT, _U32 = c.c_void_p, c.c_int, c.c_char_p, c.c_uint32
# Result and argument types
_FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "libbpf_set_print": (_POINTER, (_POINTER,)),
    "libbpf_num_possible_cpus": (_INT, ()),
    "bpf_object__open_mem": (_POINTER, (_TEXT, c.c_size_t, _POINTER)),
    "bpf_object__load": (_INT, (_POINTER,)),
    "bpf_object__close": (None, (_POINTER,)),
    "bpf_object__find_program_by_name": (_POINTER, (_POINTER, _TEXT)),
    "bpf_object__find_map_by_name": (_POINTER, (_POINTER, _TEXT)),
    "bpf_object__next_map": (_POINTER, (_POINTER, _POINTER)),
    "bpf_map__fd": (_INT, (_POINTER,)),
    "bpf_map__name": (_TEXT, (_POINTER,)),
    "bpf_map__set_max_entries": (_INT, (_POINTER, _U32)),
    "bpf_map__initial_value": (_POINTER, (_POINTER, c.POINTER(c.c_size_t))),
    "bpf_program__set_autoload": (_INT, (_POINTER, c.c_bool)),
    "bpf_program__fd": (_INT, (_POINTER,)),
    "bpf_program__attach": (_POINTER, (_POINTER,)),
    "bpf_program__attach_perf_event": (_POINTER, (_POINTER, _INT)),
    "bpf_program__attach_iter": (_POINTER, (_POINTER, _POINTER)),
    "bpf_link__fd": (_INT, (_POINTER,)),
    "bpf_iter_create": (_INT, (_INT,)),
    "bpf_link__destroy": (_INT, (_POINTER,)),
    "bpf_map_create": (_INT, (_INT, _TEXT, _U32, _U32, _U32, _POINTER)),
    "bpf_map_update_elem": (_INT, (_INT, _POINTER, _POINTER, c.c_uint64)),
    "bpf_map_lookup_elem": (_INT, (_INT, _POINTER, _POINTER)),
    "bpf_map_delete_elem": (_INT, (_INT, _POINTER)),
    "bpf_map_update_batch": (_INT, (_INT, _POINTER, _POINTER, _POINTER, _POINTER)),
    "bpf_map_lookup_batch": (_INT, (_INT, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER)),
    "bpf_map_lookup_and_delete_batch": (_INT, (_INT, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER)),
}


class _CreateOptions(c.Structure):
    """struct bpf_map_create_opts of libbpf 1: unused members are 0."""

    _fields_ = (
        ("sz", c.c_size_t),
        ("btf_fd", c.c_uint32),
        ("btf_key_type_id", c.c_uint32),
        ("btf_value_type_id", c.c_uint32),
        ("btf_vmlinux_value_type_id", c.c_uint32),
        ("inner_map_fd", c.c_uint32),
        ("map_flags", c.c_uint32),
        ("map_extra", c.c_uint64),
        ("numa_node", c.c_uint32),
        ("map_ifindex", c.c_uint32),
    )


class _OpenOptions(c.Structure):
    _fields_ = (("sz", c.c_size_t), ("object_name", c.c_char_p))


class LoadError(SframegenError):
    """The kernel program cannot be loaded or attached."""


class _Library:
    """The functions of libbpf, and the last lines that they printed."""

    def __init__(self) -> None:
        try:
            self.functions = c.CDLL(LIBRARY, use_errno=True)
        except OSError as error:
            raise LoadError(
                f"{LIBRARY} cannot be loaded: install libbpf (Debian, Ubuntu: libbpf1; Fedora, Arch, SUSE: libbpf)"
            ) from error
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self.functions, name)
            function.restype, function.argtypes = result, arguments
        self.lines: deque[str] = deque(maxlen=LOG_LINES)
        format_text = c.CDLL(None).vsnprintf
        format_text.argtypes = (c.c_char_p, c.c_size_t, c.c_char_p, c.c_void_p)
        text = c.create_string_buffer(1 << 16)

        def keep_lines(_level: int, form: bytes, arguments: int) -> int:
            format_text(text, len(text), form, arguments)
            self.lines.extend(text.value.decode("utf-8", "replace").splitlines())
            return 0

        self._keep_lines = _Print(keep_lines)  # an attribute, because libbpf keeps only its address
        self.functions.libbpf_set_print(c.cast(self._keep_lines, c.c_void_p))

    def make_error(self, failure: str, number: int) -> LoadError:
        """Return the error for a failure with this errno, with advice for lack of rights, or the verifier's last line."""
        message = f"{failure}: {os.strerror(number)}"
        if number == EPERM:
            message += f"; it needs {describe_root()}, or CAP_BPF and CAP_PERFMON"
        elif number == EACCES:
            refused = next((line for line in reversed(self.lines) if "BPF program load failed" not in line and line.strip()), "")
            message += f"; the verifier: {refused.strip()}"
        return LoadError(message)


@cache
def library() -> _Library:
    return _Library()


def possible_cpus() -> int:
    return int(library().functions.libbpf_num_possible_cpus())


class Map:
    """A BPF map of a loaded program. Keys and values are bytes."""

    def __init__(self, fd: int, name: str, key_size: int, value_size: int) -> None:
        self.fd, self.name, self.key_size, self.value_size = fd, name, key_size, value_size
        self._functions = library().functions

    def get(self, key: bytes) -> bytes | None:
        value = c.create_string_buffer(self.value_size)
        return value.raw if self._functions.bpf_map_lookup_elem(self.fd, key, value) == 0 else None

    def put(self, key: bytes, value: bytes) -> bool:
        """Set the value of a key. Return False if there is no room."""
        return int(self._functions.bpf_map_update_elem(self.fd, key, value, 0)) == 0

    def put_all(self, items: Mapping[bytes, bytes]) -> None:
        """Set the values of all keys, in one call if the kernel supports that: for maps of maps, it does since 5.17."""
        number = c.c_uint32(len(items))
        keys, values = b"".join(items), b"".join(items.values())
        if items and self._functions.bpf_map_update_batch(self.fd, keys, values, c.byref(number), None):
            for key, value in items.items():
                self.put(key, value)

    def delete(self, key: bytes) -> None:
        self._functions.bpf_map_delete_elem(self.fd, key)

    def items(self, entries: int, *, take: bool = False) -> list[tuple[bytes, bytes]]:
        """Return all keys and values of a hash map that has room for `entries`. With `take`, also delete them.

        Raises LoadError if the kernel cannot read the map; with `take`, the entries read until then are returned instead.
        """
        call = self._functions.bpf_map_lookup_and_delete_batch if take else self._functions.bpf_map_lookup_batch
        keys, values = c.create_string_buffer(entries * self.key_size), c.create_string_buffer(entries * self.value_size)
        position, start = c.create_string_buffer(8), None
        entries_read: list[tuple[bytes, bytes]] = []
        while True:
            number = c.c_uint32(entries)
            failed = call(self.fd, start, position, keys, values, c.byref(number), None)
            entries_read += zip(
                _split(keys, self.key_size, number.value), _split(values, self.value_size, number.value), strict=True
            )
            if failed and c.get_errno() != ENOENT and not take:
                raise LoadError(f"{self.name}: {os.strerror(c.get_errno())}")
            if failed or not number.value:  # ENOENT marks the last batch
                return entries_read
            start = position


def _split(buffer: c.Array[c.c_char], size: int, count: int) -> list[bytes]:
    """Return the first `count` items of `size` bytes in a buffer."""
    data = c.string_at(buffer, count * size)
    return [data[at : at + size] for at in range(0, count * size, size)]


class Program:
    """An object file whose programs are loaded, then attached. The kernel frees all of it when this process ends."""

    def __init__(self, data: bytes) -> None:
        self._library = library()
        self._functions = self._library.functions
        self._data = data
        self._library.lines.clear()
        options = _OpenOptions(c.sizeof(_OpenOptions), b"sframegen")
        self._object = self._functions.bpf_object__open_mem(data, len(data), c.byref(options))
        if not self._object:
            raise self._library.make_error("the object file of the kernel program cannot be opened", c.get_errno())
        self._links: list[int] = []

    def _find_map(self, name: str) -> int:
        return int(self._functions.bpf_object__find_map_by_name(self._object, name.encode()))

    def _find_program(self, name: str) -> int:
        return int(self._functions.bpf_object__find_program_by_name(self._object, name.encode()))

    def program_fd(self, name: str) -> int:
        return int(self._functions.bpf_program__fd(self._find_program(name)))

    def resize(self, entries: dict[str, int]) -> None:
        """Set the numbers of entries of maps, before the object is loaded."""
        for name, number in entries.items():
            self._functions.bpf_map__set_max_entries(self._find_map(name), number)

    def set_constants(self, value: bytes) -> None:
        """Set the constants in .rodata, before the program is loaded."""
        size = c.c_size_t()
        address = self._functions.bpf_map__initial_value(self._find_section_map(".rodata"), c.byref(size))
        c.memmove(address, value, min(size.value, len(value)))

    def disable(self, name: str) -> None:
        """Leave a program out, before the object is loaded."""
        self._functions.bpf_program__set_autoload(self._find_program(name), False)

    def load(self) -> None:
        failed = self._functions.bpf_object__load(self._object)
        if failed:
            raise self._library.make_error("the kernel program cannot be loaded", -failed)

    def map(self, name: str, key_size: int, value_size: int) -> Map:
        return Map(self._functions.bpf_map__fd(self._find_map(name)), name, key_size, value_size)

    def find_bss_fd(self) -> int:
        """Return the descriptor of the map with the program's zero-initialized variables."""
        return int(self._functions.bpf_map__fd(self._find_section_map(".bss")))

    def _find_section_map(self, name: str) -> int:
        """Return libbpf's handle of the map that it makes of a data section."""
        handle = None
        while handle := self._functions.bpf_object__next_map(self._object, handle):
            if self._functions.bpf_map__name(handle).endswith(name.encode()):
                return int(handle)
        raise LoadError(f"the object file of the kernel program has no {name}")

    def attach(self, name: str) -> int:
        """Attach a program to the tracepoint that its section name tells; return the link."""
        return self._attach(f"{name} cannot be attached", self._functions.bpf_program__attach, self._find_program(name))

    def attach_event(self, name: str, fd: int) -> int:
        """Attach a program to a perf event, whose descriptor the link owns; return the link."""
        failure = f"{name} cannot be attached to the event"
        return self._attach(failure, self._functions.bpf_program__attach_perf_event, self._find_program(name), fd)

    def run_for_all(self, name: str) -> None:
        """Run an iterator's program once, for all objects that it iterates over."""
        link = self._attach(f"{name} cannot be attached", self._functions.bpf_program__attach_iter, self._find_program(name), None)
        try:
            fd = self._functions.bpf_iter_create(self._functions.bpf_link__fd(link))
            if fd < 0:
                raise self._library.make_error(f"{name} cannot be run", -fd)
            try:
                while os.read(fd, 1 << 12):  # reading runs the program
                    pass
            finally:
                os.close(fd)
        finally:
            self.detach(link)

    def _attach(self, failure: str, call: Callable[..., int | None], *arguments: object) -> int:
        """Call a function of libbpf that attaches a program, and return its link. Raises LoadError with `failure`."""
        link = call(*arguments)
        if not link:
            raise self._library.make_error(failure, c.get_errno())
        self._links.append(link)
        return link

    def detach(self, link: int) -> None:
        self._links.remove(link)
        self._functions.bpf_link__destroy(link)

    def close(self) -> None:
        while self._links:
            self.detach(self._links[0])
        if self._object:
            self._functions.bpf_object__close(self._object)
            self._object = None


def create_table(elements: int) -> int:
    """Create an array of 64-bit elements that can be put into an array of maps, and return its descriptor. Raises OSError."""
    options = _CreateOptions(sz=c.sizeof(_CreateOptions), map_flags=INNER_FLAGS)
    fd = library().functions.bpf_map_create(MAP_TYPE_ARRAY, b"table", 4, 8, elements, c.byref(options))
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd))
    return int(fd)


def read_object() -> bytes:
    """Return the bytes of the kernel program's object file for this machine. Raises LoadError if there is none."""
    machine = os.uname().machine
    try:
        return (HERE / object_name(machine)).read_bytes()
    except FileNotFoundError:
        raise LoadError(
            f"this installation has no kernel program for {machine}: install {COMPILER}, then sframegen again from its sources"
        ) from None


def create_filled_table(table: DecodedTable) -> int:
    """Create a map with the table's data, and return its descriptor. Raises LoadError."""
    size = len(table.data)
    try:
        fd = create_table(max(1, size // 8))
    except OSError as error:
        raise LoadError(f"a table of {size} bytes cannot be loaded: {error.strerror}") from error
    if size:
        with map_memory(fd, size) as area:
            area[:size] = table.data
    return fd


def map_memory(fd: int, size: int) -> mmap.mmap:
    """Map a BPF map's memory, in whole pages."""
    return mmap.mmap(fd, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
