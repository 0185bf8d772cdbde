"""Downloads from a real server that cuts, refuses, delays and misreports; and hostile archives."""

import hashlib
import random
import re
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fltrain.data import fetch as fetching
from fltrain.data.datasets import RemoteFile
from fltrain.data.readers.base import unpack

from .helpers import error_line, write_tar

BODY = random.Random(0).randbytes(300_000)
OTHER = random.Random(1).randbytes(300_000)


class Server(ThreadingHTTPServer):
    """A server with these bodies, which lists the requested paths; each response has the next fault."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies = {"/f.bin": BODY}
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.first, self.closing = threading.Event(), threading.Event()
        self.hold: threading.Event | None = None  # responses wait for it

    def url(self, path: str = "/f.bin") -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        server.asked.append(self.path)
        server.first.set()
        if server.hold is not None:
            server.hold.wait(20)
        body, fault = server.bodies.get(self.path), server.faults.pop(0) if server.faults else ""
        if body is None or fault.isdigit():
            return self.send_error(int(fault or 404))
        self.send_response(200)
        if fault != "no length":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: 2 * len(body) // 3] if fault in ("cuts", "stalls") else body)
        self.wfile.flush()
        if fault == "stalls":
            server.closing.wait(20)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.closing.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fetching, "TIMEOUT", (5.0, 5.0))


def sha(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def wanted(*urls: str) -> RemoteFile:
    return RemoteFile(name="f.bin", urls=urls, checksum=sha(BODY), bytes=len(BODY))


def fetch(file: RemoteFile, folder: Path) -> Path:
    """Fetch a file into a folder with the dataset's name; return its path."""
    fetching.fetch(file, folder)
    return folder / file.name


def files_in(folder: Path) -> set[str]:
    """Names of the files in a folder, except locks, which may remain."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


@pytest.mark.parametrize("fault", ["", "no length"])
def test_a_download_is_complete_and_as_readable_as_any_file(
    server: Server, tmp_path: Path, fault: str
) -> None:
    server.faults = [fault]
    folder = tmp_path / "new" / "folder"
    path = fetch(wanted(server.url()), folder)
    assert path.read_bytes() == BODY
    assert files_in(folder) == {"f.bin"}
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert fetch(wanted(server.url()), folder) == path and len(server.asked) == 1


@pytest.mark.parametrize("name", ["f.bin", "f.bin.part", ".f.bin.part"])
def test_symbolic_links_are_not_followed(server: Server, tmp_path: Path, name: str) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    folder.mkdir()
    (folder / name).symlink_to(victim)
    if name != "f.bin":  # else it dangles
        victim.write_text("precious")
    assert fetch(wanted(server.url()), folder).read_bytes() == BODY
    assert not (folder / "f.bin").is_symlink()
    assert (name == "f.bin" and not victim.exists()) or victim.read_text() == "precious"


def test_several_processes_download_once(server: Server, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from fltrain.data.fetch import fetch
from fltrain.data.datasets import RemoteFile
fetch(RemoteFile.parse({wanted(server.url()).model_dump(mode="json")}, "x"), Path({str(tmp_path)!r}))
"""
    server.hold = threading.Event()
    other = subprocess.Popen([sys.executable, "-c", code])
    assert server.first.wait(20)  # it holds the lock, and waits for the server
    threads = [threading.Thread(target=fetch, args=(wanted(server.url()), tmp_path)) for _ in range(3)]
    for thread in threads:
        thread.start()
    threads[0].join(0.2)
    assert threads[0].is_alive()
    server.hold.set()
    for thread in threads:
        thread.join(20)
    assert other.wait(20) == 0
    assert len(server.asked) == 1 and files_in(tmp_path) == {"f.bin"}


@pytest.mark.parametrize(
    ("body", "fault", "reason"),
    [
        (OTHER, "", rf"sends another file: expected {sha(BODY)}, found {sha(OTHER)}"),
        (BODY, "cuts", r"200000 bytes read, 100000 more expected|IncompleteRead"),
        (BODY, "stalls", r"timed out"),
        (BODY, "403", "403"),
        (BODY, "500", "500"),
    ],
)
def test_a_failed_download_leaves_no_file(
    server: Server, tmp_path: Path, monkeypatch: Any, body: bytes, fault: str, reason: str
) -> None:
    if fault == "stalls":
        monkeypatch.setattr(fetching, "TIMEOUT", (5.0, 0.2))
    server.faults, server.bodies["/f.bin"] = [fault], body
    message = error_line(lambda: fetch(wanted(server.url()), tmp_path))
    assert message.startswith(f"f.bin: cannot be downloaded ({server.url()}: ")
    assert re.search(reason, message) and message.count(server.url()) == 1
    assert message.endswith(
        "try again later, or get f.bin by hand and name the folder in FLTRAIN_DATA "
        f"(expected of f.bin: {sha(BODY)} (300,000 bytes))"
    )
    assert len(server.asked) == 1 and files_in(tmp_path) == set()
    server.bodies["/f.bin"] = BODY
    assert fetch(wanted(server.url()), tmp_path).read_bytes() == BODY


def test_every_address_is_tried(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lookup, names = socket.getaddrinfo, ["one.invalid", "two.invalid"]

    def offline(name: Any, *rest: Any, **options: Any) -> Any:
        if name in names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return lookup(name, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", offline)
    urls = [f"http://{name}/f.bin" for name in names]
    message = error_line(lambda: fetch(wanted(*urls), tmp_path))
    assert f"({'; '.join(f'{url}: [Errno -2] Name or service not known' for url in urls)})" in message
    caplog.set_level("INFO")
    assert fetch(wanted(*urls, server.url()), tmp_path).read_bytes() == BODY
    assert (
        f"verified (failed before: {urls[0]}: [Errno -2]" in caplog.text and caplog.text.count(urls[0]) == 1
    )


@pytest.mark.parametrize("on_the_mirror", [BODY, None, OTHER])
def test_the_mirror_is_tried_first(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_the_mirror: bytes | None
) -> None:
    monkeypatch.setenv("FLTRAIN_MIRROR", server.url("/mirror/"))
    if on_the_mirror is not None:
        server.bodies["/mirror/f.bin"] = on_the_mirror
    assert fetch(wanted(server.url()), tmp_path).read_bytes() == BODY
    assert server.asked == ["/mirror/f.bin", "/f.bin"][: 1 if on_the_mirror == BODY else 2]


def test_the_password_of_a_mirror_is_not_shown(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, capfd: Any
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("FLTRAIN_MIRROR", server.url("").replace("http://", "http://me:secret@"))
    server.faults = ["cuts"]
    message = error_line(lambda: fetch(wanted(), tmp_path))
    assert server.url() in message
    assert "secret" not in message + caplog.text + "".join(capfd.readouterr())


def test_the_offline_folder_is_searched_before_downloading(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset's subfolder is searched before the offline folder itself; the links stay."""
    offline, folder = tmp_path / "offline", tmp_path / "cache" / "some"
    monkeypatch.setenv("FLTRAIN_DATA", str(offline))
    (offline / "some").mkdir(parents=True)
    (offline / "f.bin").write_bytes(OTHER)
    (offline / "some" / "f.bin").write_bytes(BODY)
    for brought in (offline / "some" / "f.bin", offline / "f.bin"):
        assert fetch(wanted(server.url()), folder).resolve() == brought
        with monkeypatch.context() as patch:
            patch.delenv("FLTRAIN_DATA")
            assert fetch(wanted(server.url()), folder).resolve() == brought
        (offline / "f.bin").write_bytes(BODY)
        brought.unlink()
    assert server.asked == []
    path = fetch(wanted(server.url()), folder)
    assert not path.is_symlink() and path.read_bytes() == BODY


def test_a_message_names_the_files_that_the_offline_folder_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLTRAIN_DATA", str(tmp_path))
    (tmp_path / "some.npz").touch()
    (tmp_path / "c.bin").touch()
    files = [RemoteFile(name=f"{name}.bin", urls=(), checksum=sha(BODY)) for name in "abc"]
    message = error_line(lambda: fetching.fetch(files[0], tmp_path / "cache" / "some", files=files))
    assert f"FLTRAIN_DATA={tmp_path}, where neither the folder nor some/ has a.bin, b.bin (exp" in message
    monkeypatch.delenv("FLTRAIN_DATA")
    message = error_line(lambda: fetching.fetch(files[0], tmp_path / "cache" / "some", files=files))
    assert "or get a.bin, b.bin, c.bin by hand and name the folder in FLTRAIN_DATA (exp" in message


@pytest.mark.parametrize("where", ["cache", "offline"])
def test_a_wrong_local_file_is_refused_and_not_deleted(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    wrong = tmp_path / where / "f.bin"
    wrong.parent.mkdir()
    wrong.write_bytes(OTHER[:-1])
    if where == "offline":
        monkeypatch.setenv("FLTRAIN_DATA", str(wrong.parent))
    message = error_line(lambda: fetch(wanted(server.url()), tmp_path / "cache"))
    assert message.startswith(f"{wrong}: ") and message.endswith("; delete or replace it")
    assert all(text in message for text in (sha(BODY), "300,000 bytes", sha(OTHER[:-1]), "299,999 bytes"))
    assert server.asked == [] and wrong.read_bytes() == OTHER[:-1]


FILES = {"a.txt": b"first", "sub/b.txt": b"second" * 1000, "sub/empty": b""}
KINDS = ["x.zip", "x.tar", "x.tar.gz", "x.tgz", "x.tar.bz2"]


def pack(path: Path) -> Path:
    if path.suffix != ".zip":
        return write_tar(path, FILES)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in FILES.items():
            file.writestr(name, content)
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(archive: Path, tmp_path: Path) -> str:
    """The message that refuses an archive; also checks that no file remains."""
    before = set(tmp_path.rglob("*"))
    message = error_line(lambda: unpack(archive, tmp_path / "out"))
    assert set(tmp_path.rglob("*")) == before
    assert message.startswith(f"{archive}: ")
    return message


@pytest.mark.parametrize("name", [*KINDS, "X.ZIP"])
def test_archives_are_unpacked(tmp_path: Path, name: str) -> None:
    archive = pack(tmp_path / name.lower()).rename(tmp_path / name)
    folder = tmp_path / "new" / "out"
    assert unpack(archive, folder) == folder and content(folder) == FILES
    assert set(folder.parent.iterdir()) == {folder}
    archive.unlink()  # once is enough
    assert content(unpack(archive, folder)) == FILES


@pytest.mark.parametrize("name", KINDS)
def test_truncated_archives_are_refused(tmp_path: Path, name: str) -> None:
    archive = pack(tmp_path / name)
    data = archive.read_bytes()
    if name == "x.tar":  # without its padding; 1024 bytes are header and content of the first member
        data = data.rstrip(b"\0")
    for length in (0, 1024 if name == "x.tar" else 50, int(0.9 * len(data)), int(0.999 * len(data))):
        archive.write_bytes(data[:length])
        assert "not readable as an archive" in refused(archive, tmp_path)


def test_links_out_of_the_folder_and_devices_are_refused(tmp_path: Path) -> None:
    links = [(tarfile.SYMTYPE, "/etc"), (tarfile.SYMTYPE, "../.."), (tarfile.LNKTYPE, "../x.tar.gz")]
    for odd in (*links, (tarfile.FIFOTYPE, ""), (tarfile.CHRTYPE, "")):
        archive = write_tar(tmp_path / "x.tar.gz", {"good": b"1", "odd": odd, "odd/evil": b"2"})
        assert "not readable as an archive" in refused(archive, tmp_path)


def test_archives_that_cannot_be_opened_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "none.zip", tmp_path)
    (tmp_path / "x.rar").write_bytes(b"Rar!")
    assert "not readable as an archive" in refused(tmp_path / "x.rar", tmp_path)
    locked = bytearray(pack(tmp_path / "x.zip").read_bytes())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        for match in re.finditer(signature, bytes(locked)):
            locked[match.start() + flags] |= 1
    (tmp_path / "x.zip").write_bytes(locked)
    assert "password" in refused(tmp_path / "x.zip", tmp_path)
