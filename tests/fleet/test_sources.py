from __future__ import annotations

import gc
import gzip
import hashlib
import io
import lzma
import os
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from sframegen.base.errors import FormatError
from sframegen.fleet.sources import fetching, listing
from sframegen.fleet.sources.items import Item, is_url, join_below, make_absolute, without_secrets
from sframegen.fleet.sources.listing import list_items, list_source
from tests.fleet.runs import Handler, served, write_tar

pytest.importorskip("fsspec")
pytest.importorskip("debian")
pytestmark = pytest.mark.full

ELF = b"\x7fELF\2\1\1" + bytes(9) + b"\3\0\x3e\0" + bytes(100)  # as far as a list looks
OBJECT = ELF[:16] + b"\1\0" + ELF[18:]


def names(source: str) -> list[str]:
    return [item.name for item in list_source(source)]


def test_a_directory_has_the_packages_below_it(tmp_path: Path) -> None:
    write_tar(tmp_path / "b/one.tar", {"f": b"x"})
    write_tar(tmp_path / "a.tar.gz", {"f": b"x"})
    (tmp_path / "b/README").write_text("no package")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tool").write_bytes(ELF)
    (tmp_path / "link").symlink_to("b")
    os.mkfifo(tmp_path / "fifo.tar")
    assert names(str(tmp_path)) == ["a.tar.gz", "b/one.tar"]
    assert names(f"file://{tmp_path}/b/") == ["one.tar"]
    with pytest.raises(FormatError, match="give a list of the URLs"):
        names("https://user:secret@host.example/pool/")
    root = tmp_path / "root"  # of a build, for another command
    root.mkdir()
    assert names(str(root)) == []
    (root / "x.o").write_bytes(OBJECT)
    assert names(str(root)) == []
    (root / "tool").write_bytes(ELF)
    with pytest.raises(FormatError, match="for a build root, use sframegen add-tree"):
        names(str(root))


def test_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (write_tar(tmp_path / f"{name}/p.tar", {"f": b"x"}) for name in ("one", "two"))
    given = tmp_path / "list"
    given.write_text(f"# what there is\n{one}\n\n  https://user:secret@host.example/pool/x.deb?token=secret\n/../{two}\n")
    items = list(list_source(str(given)))
    assert items[0].name == str(one)[1:]
    assert items[1].name.startswith("host.example/pool/")
    assert items[1].name.endswith("/x.deb")
    assert "secret" not in items[1].name + items[1].source
    assert items[2].name == str(two)[1:]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.read_bytes())))
    assert list(list_source("-")) == items


def test_several_sources_have_names_of_their_own(tmp_path: Path) -> None:
    for above in ("x", "y"):
        write_tar(tmp_path / above / "pool/p.tar", {"f": b"x"})
    items = list(list_items([str(tmp_path / "x/pool"), str(tmp_path / "nothing"), str(tmp_path / "y/pool")]))
    assert [item.name for item in items if not isinstance(item, Exception)] == ["pool/p.tar", "pool-2/p.tar"]
    assert isinstance(items[1], FileNotFoundError)
    (unreadable,) = list_items(["/proc/self/mem"])
    assert isinstance(unreadable, OSError)
    assert unreadable.filename == "/proc/self/mem"


@pytest.mark.parametrize("source", ["pool", "./pool", "list", "pool/p.tar", "file://pool", "pool/../pool"])
def test_places_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Workers have other working directories. URLs stay, and chains end in absolute paths."""
    write_tar(tmp_path / "pool/p.tar", {"f": b"x"})
    (tmp_path / "list").write_text("pool/p.tar\n")
    monkeypatch.chdir(tmp_path)
    (item,) = list_items([source])
    assert isinstance(item, Item)
    assert item.path_or_url.startswith(f"{tmp_path}/")
    assert Path(item.path_or_url).read_bytes()
    assert make_absolute("https://host.example/x.deb") == "https://host.example/x.deb"
    assert make_absolute("zip://x.deb::https://host.example/a") == "zip://x.deb::https://host.example/a"
    for last in ("pool/a.zip", "file://pool/a.zip"):
        assert make_absolute(f"zip://x.deb::{last}") == f"zip://x.deb::{tmp_path}/pool/a.zip"


CHAINS = ["pool/a::http:other.example/x.deb", "pool/simplecache::file:/etc/passwd", "a::memory:x", "::x.deb"]
PARAGRAPH = "Package: {0}\nFilename: pool/{0}.deb\nSize: 10\nSHA256: {1}\nDescription: a\n  b\n\n"
SHA = hashlib.sha256(b"x").hexdigest()


@pytest.mark.parametrize(("ending", "packed"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
@pytest.mark.parametrize("is_remote", [False, True])
def test_apt_indexes(tmp_path: Path, ending: str, packed: type, is_remote: bool) -> None:
    text = (
        PARAGRAPH.format("a_1%3a2+b~c", SHA) + PARAGRAPH.format("two", "no checksum") + "Package: virtual\nMaintainer: \udc99\n\n"
    )
    index = tmp_path / f"debian/dists/stable/main/binary-amd64/Packages{ending}"
    index.parent.mkdir(parents=True)
    index.write_bytes(packed(os.fsencode(text)))
    flat = tmp_path / f"flat/Packages{ending}"
    flat.parent.mkdir()
    flat.write_bytes(packed(os.fsencode(text)))
    with served(tmp_path) as (url, _):
        base = url if is_remote else str(tmp_path)
        first, second = list_source(f"{base}/{index.relative_to(tmp_path)}")
        quoted = "a_1%253a2+b~c" if is_remote else "a_1%3a2+b~c"
        assert first.path_or_url == f"{base}/debian/pool/{quoted}.deb"
        assert (first.name, first.sha256, first.size) == ("pool/a_1%3a2+b~c.deb", SHA, 10)
        assert (second.name, second.sha256) == ("pool/two.deb", "")
        assert [item.path_or_url for item in list_source(f"{base}/flat/Packages{ending}")][1] == f"{base}/flat/pool/two.deb"


@pytest.mark.parametrize(
    ("filename", "why"),
    [
        ("../../etc/passwd", "leads out of the repository"),
        ("pool//x.deb", "empty parts"),
        ("pool/" + "x" * 300, "too long"),
        ("pool/\x1b[2J.deb", "control characters"),
        (CHAINS[0], "another file system"),
    ],
)
def test_a_hostile_name_in_an_index_costs_its_package(tmp_path: Path, filename: str, why: str) -> None:
    """A chain of file systems is one in the index of a server."""
    (tmp_path / "Packages").write_text(f"Filename: {filename}\n\nFilename: good.deb\n\n")
    with served(tmp_path) as (url, _):
        for base in (url,) if filename in CHAINS else (url, str(tmp_path)):
            bad, good = list_source(f"{base}/Packages")
            assert why in bad.refused
            assert bad.name.isprintable()
            assert (good.name, good.refused) == ("good.deb", "")


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("elf", ELF, "an ELF file"),
        ("binary", bytes(100), "neither a package nor a list"),
        ("long", b"x" * 100_000, "a line of more than"),
        ("Packages", b"Filename: " + b"x" * (2 << 20), "a line of more than"),
        ("Packages", gzip.compress(PARAGRAPH.format("a", SHA).encode())[:-20], "damaged"),
        ("Packages", lzma.compress(bytes(1000))[:-20], "damaged"),
        ("Packages.gz", gzip.compress(b"A: b\n" * (1 << 20)), "unpacks to more than"),
    ],
)
def test_what_is_no_source_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, why: str
) -> None:
    monkeypatch.setattr(listing, "MAX_UNPACKED_BYTES", 4 << 20)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=why):
        list(list_source(str(tmp_path / name)))


def test_a_download_ends_at_the_size_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "READ_CHUNK", 1000)
    (tmp_path / "p.tar").write_bytes(bytes(10_000))
    with served(tmp_path) as (url, _):
        (item,) = list_source(f"{url}/p.tar")
        with fetching.opened_content(item) as file:
            assert file.read() == bytes(10_000)
        missing = item._replace(path_or_url=f"{url}/none")
        for wrong, why in ((item._replace(size=10), "has more than 10"), (missing, "cannot be fetched")):
            with pytest.raises(fetching.FetchError, match=why), fetching.opened_content(wrong):
                pass


def test_a_file_that_is_gone_leaves_no_connection_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has it when its size is asked for, and not when it is fetched: it says so with a long page."""
    connector = pytest.importorskip("aiohttp.connector")
    monkeypatch.setattr(Handler, "error_message_format", "x" * (1 << 20))
    (tmp_path / "p.tar").write_bytes(bytes(10))
    with served(tmp_path, lambda *_: (tmp_path / "p.tar").unlink()) as (url, requests):
        (item,) = list_source(f"{url}/p.tar")
        with pytest.raises(fetching.FetchError, match="cannot be fetched"), fetching.opened_content(item):
            pass
        assert requests == ["/p.tar"]
        assert not [one for one in gc.get_objects() if isinstance(one, connector.Connection) and one.protocol is not None]


ANSWERS = {
    b"": "the server closed the connection",
    b"x\r\n\r\n": "the answer is not HTTP",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort": "the answer ends early, or is damaged",
    b"HTTP/1.1 302 F\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n": "too many redirections",
    b"HTTP/1.1 302 F\r\nLocation: gopher://a/\r\nContent-Length: 0\r\n\r\n": "a redirection to a URL that is not HTTP",
    b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n": "HTTP status 500",
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_failures_of_http_are_in_words(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # the end
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(1 << 16)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        item = Item("x", f"http://127.0.0.1:{server.getsockname()[1]}/x")
        with pytest.raises(fetching.FetchError) as error, fetching.opened_content(item):
            pass
        server.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert error.value.strerror == f"cannot be fetched: {ANSWERS[answer]}"


def test_why_a_url_cannot_be_fetched_without_its_secrets(tmp_path: Path) -> None:
    assert without_secrets("https://me:word@host/a?sig=1#x") == "https://host/a"
    assert without_secrets("zip://x::https://me:word@host/a?sig=1") == "zip://x::https://host/a"
    for place, why in (("http://127.0.0.1:1/x", "Connection refused"), ("http://127.0.0.1:99999/x", "Port out of range 0-65535")):
        with pytest.raises(fetching.FetchError) as error, fetching.opened_content(Item("x", place)):
            pass
        assert error.value.strerror == f"cannot be fetched: {why}"
    with served(tmp_path) as (url, _):
        place = f"{url.replace('://', '://user:secret@')}/none.deb?token=secret"
        with pytest.raises(OSError, match="cannot be fetched: HTTP status 404") as missing:
            fetching.identify_url(Item("x", place))
    with pytest.raises(OSError, match="cannot be fetched: ") as gone:
        fetching.identify_url(Item("x", place))
    assert "secret" not in f"{missing.value} {gone.value}"


ELSEWHERE = ["pool/a::http://other.example/x.deb", "//other.example/x.deb", "https://other.example/x.deb"]
HOSTILE_NAMES = [*CHAINS, *ELSEWHERE, "../x.deb", "pool/../../x.deb", "/x.deb"]
STRANGE_NAMES = ["%2e%2e/x.deb", "pool\\..\\..\\x.deb", "pool/x.deb?to=http:other", "pool/x.deb#y"]
STRANGE_NAMES += ["http:x.deb", "file:x.deb", "a@b:c/x.deb", "a%3a1.deb"]
REMOTE_BASES = ["https://me@host.example/debian", "https://host.example", "s3://bucket/a", "simplecache::https://host.example/a"]
BASES = [*REMOTE_BASES, "/srv/a", "/", "."]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", [*HOSTILE_NAMES, *STRANGE_NAMES])
def test_a_name_in_an_index_leads_below_the_repository_or_nowhere(base: str, name: str) -> None:
    """As fsspec and yarl read the place: protocols, host, path."""
    is_remote = "::" in base or "://" in base
    try:
        place = join_below(base, name)
    except FormatError:
        assert name in HOSTILE_NAMES
        return
    assert name in STRANGE_NAMES or not is_remote
    if not is_remote:
        assert not is_url(place)
        assert Path(place) == Path(base, name)
        return
    yarl = pytest.importorskip("yarl")
    *outer, last = place.split("::")
    assert outer == base.split("::")[:-1]
    found, expected = yarl.URL(last), yarl.URL(base.rsplit("::", maxsplit=1)[-1])
    assert (found.scheme, found.authority, found.query_string, found.fragment) == (expected.scheme, expected.authority, "", "")
    assert found.path == f"{expected.path.rstrip('/')}/{name}"
