"""Downloads from a server on this machine that can cut, refuse, delay and change; and hostile archives."""

import gzip
import hashlib
import io
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fltrain.core.errors import FltrainError
from fltrain.data.download import Patience, RemoteFile, fetch
from fltrain.data.unpack import unpack

BODY = random.Random(0).randbytes(300_000)
OTHER = random.Random(1).randbytes(300_000)
CUT = 200_000
QUICK = Patience(attempts=3, pause=0.01, connect=5, read=5)
ONCE = Patience(attempts=1, connect=5, read=5)


@dataclass
class Behaviour:
    """What the server does, by path, and what it saw."""

    bodies: dict[str, bytes] = field(default_factory=lambda: {"/f.bin": BODY})
    ranges: bool = True
    tag: str | None = '"one"'
    length: bool = True
    cuts: int = 0  # answers that end after CUT bytes
    stalls: int = 0  # answers that go silent after CUT bytes
    errors: int = 0  # answers with `status`
    status: int = 500
    encoding: str | None = None
    misplaced: int = 0  # answers with another range than the one asked for
    seen: list[tuple[str, str | None]] = field(default_factory=list)  # path and range of each request
    sent: list[int] = field(default_factory=list)  # bytes of each answer
    hold: threading.Event | None = None  # answers wait for it
    asked: threading.Event = field(default_factory=threading.Event)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.does = Behaviour()
        self.closing = threading.Event()

    def url(self, path: str = "/f.bin") -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        does = self.server.does
        does.seen.append((self.path, self.headers.get("Range")))
        does.asked.set()
        if does.hold is not None:
            does.hold.wait(20)
        body = does.bodies.get(self.path)
        if body is None:
            return self.send_error(404)
        if does.errors:
            does.errors -= 1
            return self.send_error(does.status)
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body)
        start = self.start(body)
        if start is None:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(206 if start else 200)
        if start and does.misplaced:
            does.misplaced -= 1
            start -= 1
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        for name, value in (("ETag", does.tag), ("Content-Encoding", does.encoding)):
            if value is not None:
                self.send_header(name, value)
        if does.length:
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.send(body[start:])

    def start(self, body: bytes) -> int | None:
        """First byte to send; None if there is nothing there."""
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked is None or not self.server.does.ranges:
            return 0
        version = self.headers.get("If-Range")
        if version is not None and (version != self.server.does.tag or version.startswith("W/")):
            return 0
        start = int(asked[1])
        return start if start < len(body) else None

    def send(self, body: bytes) -> None:
        does = self.server.does
        cut, stall = does.cuts > 0, does.stalls > 0
        does.cuts, does.stalls = max(does.cuts - 1, 0), max(does.stalls - 1, 0)
        body = body[:CUT] if cut or stall else body
        does.sent.append(len(body))
        self.wfile.write(body)
        self.wfile.flush()
        if stall:
            self.server.closing.wait(20)


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
def no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLTRAIN_DATA", "FLTRAIN_MIRROR", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def sha(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def wanted(*urls: str, content: bytes = BODY, name: str = "f.bin") -> RemoteFile:
    return RemoteFile(name=name, urls=urls, checksum=sha(content), bytes=len(content))


def left(folder: Path) -> set[str]:
    """Names of the files in a folder, but for locks, which may or may not stay."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


def refusal(call: Callable[[], object]) -> str:
    """The message of the error that ``call`` ends with: one line."""
    with pytest.raises(FltrainError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    return message


def in_another_process(url: str, folder: Path, attempts: int = 1) -> subprocess.Popen[str]:
    code = f"""
from pathlib import Path
from fltrain.data.download import Patience, RemoteFile, fetch
from fltrain.errors import FltrainError
file = RemoteFile(name="f.bin", urls=({url!r},), checksum={sha(BODY)!r})
try:
    print(fetch(file, Path({str(folder)!r}), patience=Patience(attempts={attempts}, pause=0.01)))
except FltrainError as error:
    print("error:", error)
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "what the test waits for does not happen"
        time.sleep(0.01)


# What a file may be called


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "../f.bin"},
        {"name": ".."},
        {"name": ""},
        {"urls": ("ftp://somewhere/f.bin",)},
        {"checksum": "sha256:12"},
        {"checksum": "crc32:01234567"},
        {"bytes": 0},
    ],
    ids=str,
)
def test_a_file_is_described_sensibly_or_not_at_all(wrong: dict[str, Any]) -> None:
    right = {"name": "f.bin", "urls": ("http://a/f.bin",), "checksum": sha(BODY)}
    RemoteFile(**right)
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RemoteFile(**{**right, **wrong})


def test_a_file_is_read_from_a_config() -> None:
    data = {"name": "f.bin", "urls": ["http://a/f.bin"], "checksum": sha(BODY), "bytes": len(BODY)}
    assert RemoteFile.parse(data, "test") == wanted("http://a/f.bin")


# Downloads that succeed


@pytest.mark.parametrize("length", [True, False], ids=["length", "no length"])
def test_download(server: Server, tmp_path: Path, length: bool) -> None:
    server.does.length = length
    folder = tmp_path / "new" / "folder"
    path = fetch(wanted(server.url()), folder, patience=QUICK)
    assert path == folder / "f.bin"
    assert path.read_bytes() == BODY
    assert left(folder) == {"f.bin"}
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_md5_and_unknown_size(server: Server, tmp_path: Path) -> None:
    checksum = f"md5:{hashlib.md5(BODY).hexdigest()}"
    file = RemoteFile(name="f.bin", urls=(server.url(),), checksum=checksum)
    assert fetch(file, tmp_path, patience=QUICK).read_bytes() == BODY


def test_a_file_that_is_there_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    file = wanted(server.url())
    assert fetch(file, tmp_path) == fetch(file, tmp_path)
    assert len(server.does.seen) == 1


def test_content_is_stored_as_it_is_even_if_it_is_called_encoded(server: Server, tmp_path: Path) -> None:
    content = gzip.compress(b"text" * 1000)
    server.does.bodies["/a.gz"] = content
    server.does.encoding = "gzip"
    file = wanted(server.url("/a.gz"), content=content, name="a.gz")
    assert fetch(file, tmp_path, patience=ONCE).read_bytes() == content


def test_server_errors_are_outlasted(server: Server, tmp_path: Path) -> None:
    server.does.errors = 2
    assert fetch(wanted(server.url()), tmp_path, patience=QUICK).read_bytes() == BODY
    assert len(server.does.seen) == 3


def test_pauses_double_up_to_a_bound(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    server.does.errors = 99
    patience = Patience(attempts=5, pause=1, longest_pause=3)
    refusal(lambda: fetch(wanted(server.url()), tmp_path, patience=patience))
    assert pauses == [1, 2, 3, 3]


# Resuming


def test_after_a_cut_only_the_rest_is_sent(server: Server, tmp_path: Path) -> None:
    server.does.cuts = 1
    assert fetch(wanted(server.url()), tmp_path, patience=QUICK).read_bytes() == BODY
    assert server.does.seen == [("/f.bin", None), ("/f.bin", f"bytes={CUT}-")]
    assert server.does.sent == [CUT, len(BODY) - CUT]
    assert left(tmp_path) == {"f.bin"}


def test_another_process_resumes(server: Server, tmp_path: Path) -> None:
    server.does.cuts = 1
    said, _ = in_another_process(server.url(), tmp_path).communicate(timeout=20)
    assert said.startswith("error: f.bin: cannot be downloaded")
    assert left(tmp_path) == {"f.bin.part", "f.bin.part.json"}
    assert fetch(wanted(server.url()), tmp_path, patience=ONCE).read_bytes() == BODY
    assert server.does.sent == [CUT, len(BODY) - CUT]


def test_resuming_after_a_process_was_killed(server: Server, tmp_path: Path) -> None:
    server.does.stalls = 1
    process = in_another_process(server.url(), tmp_path)
    part = tmp_path / "f.bin.part"
    until(lambda: part.exists() and part.stat().st_size > 100_000)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    arrived = part.stat().st_size
    assert fetch(wanted(server.url()), tmp_path, patience=ONCE).read_bytes() == BODY
    assert server.does.seen[1] == ("/f.bin", f"bytes={arrived}-")


def test_a_silent_server_is_given_up_and_asked_for_the_rest(server: Server, tmp_path: Path) -> None:
    server.does.stalls = 1
    patience = Patience(attempts=2, pause=0.01, read=0.3)
    assert fetch(wanted(server.url()), tmp_path, patience=patience).read_bytes() == BODY
    assert server.does.seen[1][1] is not None


def test_another_address_sends_the_rest(server: Server, tmp_path: Path) -> None:
    server.does.bodies["/other"] = BODY
    server.does.cuts = 1
    path = fetch(wanted(server.url(), server.url("/other")), tmp_path, patience=ONCE)
    assert path.read_bytes() == BODY
    assert server.does.seen == [("/f.bin", None), ("/other", f"bytes={CUT}-")]


def test_a_server_without_ranges_sends_everything_again(server: Server, tmp_path: Path) -> None:
    server.does.ranges = False
    server.does.cuts = 1
    assert fetch(wanted(server.url()), tmp_path, patience=QUICK).read_bytes() == BODY
    assert server.does.sent == [CUT, len(BODY)]


def test_a_file_that_changed_is_sent_from_its_beginning(server: Server, tmp_path: Path) -> None:
    server.does.bodies["/f.bin"] = OTHER
    server.does.cuts = 1
    file = wanted(server.url())
    refusal(lambda: fetch(file, tmp_path, patience=ONCE))
    server.does.bodies["/f.bin"] = BODY
    server.does.tag = '"two"'
    assert fetch(file, tmp_path, patience=ONCE).read_bytes() == BODY
    assert server.does.seen[1] == ("/f.bin", f"bytes={CUT}-")
    assert server.does.sent == [CUT, len(BODY)]


@pytest.mark.parametrize("tag", [None, 'W/"weak"'], ids=["no tag", "weak tag"])
def test_a_change_that_shows_in_the_checksum_only(server: Server, tmp_path: Path, tag: str | None) -> None:
    server.does.bodies["/f.bin"] = OTHER
    server.does.tag = tag
    server.does.cuts = 1
    file = wanted(server.url())
    refusal(lambda: fetch(file, tmp_path, patience=ONCE))
    server.does.bodies["/f.bin"] = BODY
    assert fetch(file, tmp_path, patience=QUICK).read_bytes() == BODY
    assert server.does.sent == [CUT, len(BODY) - CUT, len(BODY)]


def test_a_file_that_became_shorter(server: Server, tmp_path: Path) -> None:
    server.does.cuts = 1
    short = BODY[:1000]
    file = wanted(server.url(), content=short)
    refusal(lambda: fetch(file, tmp_path, patience=ONCE))
    server.does.bodies["/f.bin"] = short
    assert fetch(file, tmp_path, patience=QUICK).read_bytes() == short
    assert server.does.seen[1:] == [("/f.bin", f"bytes={CUT}-"), ("/f.bin", None)]


def test_everything_had_arrived_but_the_name_was_not_given(server: Server, tmp_path: Path) -> None:
    server.does.cuts = 1
    file = wanted(server.url())
    refusal(lambda: fetch(file, tmp_path, patience=ONCE))
    (tmp_path / "f.bin.part").write_bytes(BODY)
    assert fetch(file, tmp_path, patience=ONCE).read_bytes() == BODY
    assert server.does.sent == [CUT]


def test_another_range_than_the_one_asked_for(server: Server, tmp_path: Path) -> None:
    server.does.cuts, server.does.misplaced = 1, 1
    assert fetch(wanted(server.url()), tmp_path, patience=QUICK).read_bytes() == BODY
    assert [asked for _, asked in server.does.seen] == [None, f"bytes={CUT}-", None]


def test_what_arrived_of_another_version_is_not_used(server: Server, tmp_path: Path) -> None:
    server.does.bodies["/f.bin"] = OTHER
    server.does.cuts = 1
    refusal(lambda: fetch(wanted(server.url(), content=OTHER), tmp_path, patience=ONCE))
    server.does.bodies["/f.bin"] = BODY
    assert fetch(wanted(server.url()), tmp_path, patience=ONCE).read_bytes() == BODY
    assert server.does.seen[1] == ("/f.bin", None)


@pytest.mark.parametrize("note", [None, "", "[1]", "{"])
def test_a_part_whose_origin_is_unknown_is_not_used(server: Server, tmp_path: Path, note: str | None) -> None:
    (tmp_path / "f.bin.part").write_bytes(OTHER[:1000])
    if note is not None:
        (tmp_path / "f.bin.part.json").write_text(note)
    assert fetch(wanted(server.url()), tmp_path, patience=ONCE).read_bytes() == BODY
    assert left(tmp_path) == {"f.bin"}


# Where a file is looked for


@pytest.mark.parametrize("place", ["", "cifar10"])
def test_offline_folder_makes_requests_needless(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    copy = tmp_path / "offline" / place / "f.bin"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(BODY)
    monkeypatch.setenv("FLTRAIN_DATA", str(tmp_path / "offline"))
    assert fetch(wanted(server.url()), tmp_path / "cache", dataset="cifar10") == copy.parent / "f.bin"
    assert server.does.seen == []
    assert not (tmp_path / "cache").exists()


def test_the_folder_of_the_data_set_goes_before_the_offline_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fashion").mkdir()
    (tmp_path / "f.bin").write_bytes(OTHER)
    (tmp_path / "fashion" / "f.bin").write_bytes(BODY)
    monkeypatch.setenv("FLTRAIN_DATA", str(tmp_path))
    assert fetch(wanted(), tmp_path / "cache", dataset="fashion") == tmp_path / "fashion" / "f.bin"


def test_a_file_missing_in_the_offline_folder_is_downloaded(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "offline").mkdir()
    monkeypatch.setenv("FLTRAIN_DATA", str(tmp_path / "offline"))
    assert fetch(wanted(server.url()), tmp_path / "cache", dataset="cifar10").read_bytes() == BODY


def test_an_offline_folder_that_does_not_exist_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLTRAIN_DATA", str(tmp_path / "typo"))
    message = refusal(lambda: fetch(wanted(), tmp_path))
    assert "FLTRAIN_DATA" in message and str(tmp_path / "typo") in message


@pytest.mark.parametrize("where", ["cache", "offline"])
def test_a_wrong_file_on_this_machine_is_an_error(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    wrong = tmp_path / where / "f.bin"
    wrong.parent.mkdir()
    wrong.write_bytes(OTHER[:-1])
    if where == "offline":
        monkeypatch.setenv("FLTRAIN_DATA", str(wrong.parent))
    message = refusal(lambda: fetch(wanted(server.url()), tmp_path / "cache"))
    assert message == (
        f"{wrong}: damaged or another version: expected {sha(BODY)} (300,000 bytes), "
        f"found {sha(OTHER[:-1])} (299,999 bytes); delete or replace it"
    )
    assert server.does.seen == []
    assert wrong.read_bytes() == OTHER[:-1]


def test_a_folder_in_the_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f.bin").mkdir()
    assert refusal(lambda: fetch(wanted(), tmp_path)).startswith(f"{tmp_path / 'f.bin'}: cannot be read")


def test_mirror_goes_first(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLTRAIN_MIRROR", server.url("/mirror/"))
    server.does.bodies["/mirror/f.bin"] = BODY
    fetch(wanted(server.url()), tmp_path, patience=ONCE)
    assert [path for path, _ in server.does.seen] == ["/mirror/f.bin"]


@pytest.mark.parametrize("on_the_mirror", [None, OTHER], ids=["nothing", "another file"])
def test_a_mirror_that_does_not_have_the_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_the_mirror: bytes | None
) -> None:
    monkeypatch.setenv("FLTRAIN_MIRROR", server.url("/mirror"))
    if on_the_mirror is not None:
        server.does.bodies["/mirror/f.bin"] = on_the_mirror
    assert fetch(wanted(server.url()), tmp_path, patience=ONCE).read_bytes() == BODY
    assert [path for path, _ in server.does.seen] == ["/mirror/f.bin", "/f.bin"]


def test_the_password_of_a_mirror_is_not_shown(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("FLTRAIN_MIRROR", server.url("").replace("http://", "http://me:secret@"))
    server.does.cuts = 1
    message = refusal(lambda: fetch(wanted(), tmp_path, patience=ONCE))
    assert server.url() in message
    assert "secret" not in message + caplog.text + (tmp_path / "f.bin.part.json").read_text()


# Downloads that fail


def test_a_wrong_download_is_retried_then_an_error(server: Server, tmp_path: Path) -> None:
    server.does.bodies["/f.bin"] = OTHER
    message = refusal(lambda: fetch(wanted(server.url()), tmp_path, patience=QUICK))
    assert len(server.does.seen) == 3
    for part in ("f.bin", server.url(), sha(BODY), sha(OTHER), "FLTRAIN_DATA"):
        assert part in message
    assert left(tmp_path) == set()


def test_a_wrong_download_may_be_right_the_next_time(server: Server, tmp_path: Path) -> None:
    server.does.bodies["/f.bin"] = OTHER
    server.does.bodies["/right"] = BODY
    assert fetch(wanted(server.url(), server.url("/right")), tmp_path, patience=ONCE).read_bytes() == BODY


def test_every_address_is_named_with_its_reason(server: Server, tmp_path: Path) -> None:
    with socket.socket() as unused:  # bound, but nobody listens
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}/f.bin"
        server.does.errors = 99
        urls = (server.url("/none"), server.url(), nobody)
        message = refusal(lambda: fetch(wanted(*urls), tmp_path, patience=QUICK))
    assert message == (
        f"f.bin: cannot be downloaded ({urls[0]}: 404 Not Found; {urls[1]}: 500 Internal Server Error; "
        f"{nobody}: Connection refused); try again later, or get it by hand and name its folder in "
        f"FLTRAIN_DATA (expected: {sha(BODY)} (300,000 bytes))"
    )
    assert left(tmp_path) == set()


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (429, 3), (500, 3), (503, 3)])
def test_only_errors_that_may_pass_are_tried_again(
    server: Server, tmp_path: Path, status: int, requests: int
) -> None:
    server.does.errors, server.does.status = 99, status
    assert str(status) in refusal(lambda: fetch(wanted(server.url()), tmp_path, patience=QUICK))
    assert len(server.does.seen) == requests


def test_a_connection_that_is_always_cut(server: Server, tmp_path: Path) -> None:
    server.does.cuts, server.does.ranges = 99, False
    message = refusal(lambda: fetch(wanted(server.url()), tmp_path, patience=QUICK))
    assert server.url() in message and "FLTRAIN_DATA" in message
    assert f"200.0 kB are kept for the next attempt in {tmp_path / 'f.bin.part'}" in message
    assert server.does.sent == [CUT] * 3
    assert "f.bin" not in left(tmp_path)


def test_a_silent_server_is_named(server: Server, tmp_path: Path) -> None:
    server.does.stalls = 9
    patience = Patience(attempts=1, read=0.2)
    assert f"{server.url()}: timed out" in refusal(
        lambda: fetch(wanted(server.url()), tmp_path, None, patience)
    )


@pytest.mark.parametrize("url", ["http://[::1", "http://:80/f", "http://*.a/f"])
def test_an_address_that_is_none(tmp_path: Path, url: str) -> None:
    assert f"({url}: " in refusal(lambda: fetch(wanted(url), tmp_path, patience=ONCE))


def test_a_file_without_addresses_says_so(tmp_path: Path) -> None:
    assert "it has no public address" in refusal(lambda: fetch(wanted(), tmp_path))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_an_error_at_once(server: Server, tmp_path: Path) -> None:
    (tmp_path / "f.bin.part").symlink_to("/dev/full")
    message = refusal(lambda: fetch(wanted(server.url()), tmp_path, patience=QUICK))
    assert message.startswith(f"f.bin: cannot be written to {tmp_path} (No space left on device)")
    assert len(server.does.seen) == 1
    assert not (tmp_path / "f.bin").exists()


def test_a_download_goes_on_when_there_is_room_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def full(path: Path, mode: str = "r", *args: Any, **more: Any) -> Any:
        stream = real(path, mode, *args, **more)
        return Full(stream) if mode == "ab" else stream

    monkeypatch.setattr(Path, "open", full)
    message = refusal(lambda: fetch(wanted(server.url()), tmp_path, patience=QUICK))
    monkeypatch.undo()
    assert "No space left on device" in message and "kept for the next attempt" in message
    assert "f.bin" not in left(tmp_path)
    arrived = (tmp_path / "f.bin.part").stat().st_size
    assert fetch(wanted(server.url()), tmp_path, patience=ONCE).read_bytes() == BODY
    assert server.does.seen == [("/f.bin", None), ("/f.bin", f"bytes={arrived}-")]


class Full:
    """A file on a disk that has room for a hundred thousand bytes more."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.room = stream, 100_000

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.close()

    def write(self, data: bytes) -> None:
        self.stream.write(data[: self.room])
        self.room -= len(data)
        if self.room < 0:
            raise OSError(28, "No space left on device")


def test_a_folder_that_cannot_be_made_is_an_error(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = refusal(lambda: fetch(wanted(server.url()), tmp_path / "file" / "folder"))
    assert message.startswith(f"f.bin: cannot be written to {tmp_path / 'file' / 'folder'} (Not a directory)")


# Several at once


def test_two_processes_download_once(server: Server, tmp_path: Path) -> None:
    server.does.hold = threading.Event()
    first = in_another_process(server.url(), tmp_path)
    assert server.does.asked.wait(20)  # it holds the lock, and waits for the server
    answers: list[Path] = []
    second = threading.Thread(target=lambda: answers.append(fetch(wanted(server.url()), tmp_path)))
    second.start()
    second.join(0.3)
    assert second.is_alive()
    server.does.hold.set()
    second.join(20)
    said, _ = first.communicate(timeout=20)
    assert [said.strip()] == [str(path) for path in answers] == [str(tmp_path / "f.bin")]
    assert len(server.does.seen) == 1


def test_many_threads_download_once(server: Server, tmp_path: Path) -> None:
    file = wanted(server.url())
    threads = [threading.Thread(target=fetch, args=(file, tmp_path)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(server.does.seen) == 1
    assert left(tmp_path) == {"f.bin"}


# Progress


def test_progress_is_logged_now_and_then(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fltrain.data.download.LOG_EVERY_SECONDS", 0.0)
    caplog.set_level("INFO")
    server.does.cuts = 1
    fetch(wanted(server.url()), tmp_path, patience=QUICK)
    assert caplog.messages[0] == f"f.bin: downloading 300.0 kB from {server.url()}"
    assert "f.bin: 200.0 kB of 300.0 kB" in caplog.messages
    assert f"f.bin: downloading 300.0 kB from {server.url()}, 200.0 kB are here" in caplog.messages
    assert caplog.messages[-1] == "f.bin: downloaded, 300.0 kB, checksum verified"


@pytest.mark.parametrize("quiet", [True, False])
def test_a_terminal_gets_a_bar(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quiet: bool,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    fetch(wanted(server.url()), tmp_path, patience=ONCE, quiet=quiet)
    assert ("300.0/300.0 kB" in capsys.readouterr().err) is not quiet


# Archives

FILES = {"a.txt": b"first", "sub/b.txt": b"second" * 1000, "sub/empty": b""}


def tar(path: Path, *members: tuple[str, bytes] | tarfile.TarInfo, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as file:  # type: ignore[call-overload]
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                file.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                file.addfile(info, io.BytesIO(member[1]))
    return path


def zipped(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def symlink_in_zip(path: Path) -> Path:
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return zipped(path, (info, b"/etc/passwd"))


def pack(path: Path) -> Path:
    if path.suffix == ".zip":
        return zipped(path, *FILES.items())
    return tar(path, *FILES.items(), mode="w" if path.suffix == ".tar" else "w:gz")


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(archive: Path, tmp_path: Path, **more: Any) -> str:
    """The message with which an archive is refused, after making sure that nothing stays behind."""
    before = set(tmp_path.rglob("*"))
    message = refusal(lambda: unpack(archive, tmp_path / "out", **more))
    assert set(tmp_path.rglob("*")) == before
    assert message.startswith(f"{archive}: ")
    return message


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.tgz", "X.ZIP"])
def test_unpack(tmp_path: Path, name: str) -> None:
    archive = pack(tmp_path / name.lower()).rename(tmp_path / name)
    folder = tmp_path / "new" / "out"
    assert unpack(archive, folder) == folder
    assert content(folder) == FILES
    assert set(tmp_path.iterdir()) == {archive, folder.parent}
    assert set(folder.parent.iterdir()) == {folder}


def test_unpack_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "train-images.gz").write_bytes(gzip.compress(BODY))
    assert content(unpack(tmp_path / "train-images.gz", tmp_path / "out")) == {"train-images": BODY}


def test_what_is_unpacked_is_returned_as_it_is(tmp_path: Path) -> None:
    folder = unpack(pack(tmp_path / "x.zip"), tmp_path / "out")
    (tmp_path / "x.zip").unlink()
    assert content(unpack(tmp_path / "x.zip", folder)) == FILES


def test_two_unpack_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, folder = pack(tmp_path / "x.zip"), tmp_path / "out"
    real = zipfile.ZipFile.extractall

    def late(file: zipfile.ZipFile, to: Path) -> None:
        monkeypatch.undo()
        real(file, to)
        unpack(archive, folder)  # another process is faster

    monkeypatch.setattr(zipfile.ZipFile, "extractall", late)
    assert content(unpack(archive, folder)) == FILES
    assert set(tmp_path.iterdir()) == {archive, folder}


def test_a_folder_that_cannot_be_given_its_name_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    assert "cannot be unpacked" in refused(pack(tmp_path / "x.zip"), tmp_path)


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.gz"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_truncated_archives_are_refused(tmp_path: Path, name: str, share: float) -> None:
    archive = tmp_path / name
    if name == "x.gz":
        archive.write_bytes(gzip.compress(BODY))
    else:
        pack(archive)
    whole = archive.read_bytes()
    if name == "x.tar":  # what counts: its padding aside
        whole = whole.rstrip(b"\0")
    archive.write_bytes(whole[: int(share * len(whole))])
    assert "damaged or truncated" in refused(archive, tmp_path)


def test_a_tar_file_cut_between_its_members_is_refused(tmp_path: Path) -> None:
    whole = pack(tmp_path / "x.tar").read_bytes()
    (tmp_path / "x.tar").write_bytes(whole[:1024])  # header and content of the first
    assert "damaged or truncated" in refused(tmp_path / "x.tar", tmp_path)


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.gz"])
def test_damage_anywhere_gives_one_clear_error_or_none(tmp_path: Path, name: str) -> None:
    archive = tmp_path / name
    if name == "x.gz":
        archive.write_bytes(gzip.compress(b"text" * 100))
    else:
        pack(archive)
    whole = archive.read_bytes()
    chance = random.Random(0)
    for number in range(40):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[chance.randrange(min(len(damaged), 3000))] = chance.randrange(256)
        archive.write_bytes(damaged)
        try:
            unpack(archive, tmp_path / str(number))
        except FltrainError as error:
            assert "\n" not in str(error)
            assert not (tmp_path / str(number)).exists()


@pytest.mark.parametrize("path", ["../evil", "a/../../evil", "/tmp/evil", "..\\evil", "C:\\evil", "\\evil"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_paths_that_lead_out_are_refused(tmp_path: Path, path: str, kind: str) -> None:
    make = zipped if kind == "zip" else tar
    archive = make(tmp_path / ("x.zip" if kind == "zip" else "x.tgz"), ("good", b"1"), (path, b"2"))
    message = refused(archive, tmp_path)
    assert repr(path) in message and "outside the folder" in message


@pytest.mark.parametrize(
    "member",
    [
        link("link", "/etc"),
        link("link", "good"),
        link("link", "good", tarfile.LNKTYPE),
        link("pipe", "", tarfile.FIFOTYPE),
        link("device", "", tarfile.CHRTYPE),
    ],
    ids=lambda member: f"{member.name} {member.type.decode()} {member.linkname}",
)
def test_links_and_devices_are_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    archive = tar(tmp_path / "x.tar.gz", ("good", b"1"), member, (f"{member.name}/evil", b"2"))
    assert f"{member.name!r} is a link or device" in refused(archive, tmp_path)


def test_links_in_zip_files_are_refused(tmp_path: Path) -> None:
    assert "'link' is a link or device" in refused(symlink_in_zip(tmp_path / "x.zip"), tmp_path)


def test_archives_that_expand_absurdly_are_refused(tmp_path: Path) -> None:
    zeros = bytes(2_000_000)
    bombs = [
        zipped(tmp_path / "x.zip", ("zeros", zeros)),
        tar(tmp_path / "x.tar.gz", ("zeros", zeros)),
        tmp_path / "x.gz",
        zipped(tmp_path / "many.zip", *((str(number), b"") for number in range(300))),
    ]
    bombs[2].write_bytes(gzip.compress(zeros))
    for bomb in bombs:
        assert bomb.stat().st_size < 50_000
        assert "more than 1,000,000 bytes" in refused(bomb, tmp_path, limit=1_000_000)
    for number, bomb in enumerate(bombs):
        unpack(bomb, tmp_path / str(number))


def test_the_usual_limit_stops_a_gzip_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fltrain.data.unpack._ALWAYS_ALLOWED", 1_000_000)
    bomb = tmp_path / "x.gz"
    bomb.write_bytes(gzip.compress(bytes(20_000_000)))
    assert f"more than {100 * bomb.stat().st_size:,} bytes" in refused(bomb, tmp_path)


def test_other_refusals(tmp_path: Path) -> None:
    (tmp_path / "x.rar").write_bytes(b"Rar!")
    assert "known: .zip, .tar.gz, .tgz, .tar, .gz" in refused(tmp_path / "x.rar", tmp_path)
    assert "No such file" in refused(tmp_path / "none.zip", tmp_path)
    locked = bytearray(pack(tmp_path / "x.zip").read_bytes())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        for found in re.finditer(signature, bytes(locked)):
            locked[found.start() + flags] |= 1
    (tmp_path / "x.zip").write_bytes(locked)
    assert "password" in refused(tmp_path / "x.zip", tmp_path)


def test_unpacking_to_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    archive = pack(tmp_path / "x.zip")
    monkeypatch.setattr("shutil.copyfileobj", full)
    assert "cannot be unpacked" in (message := refused(archive, tmp_path))
    assert "No space left on device" in message
