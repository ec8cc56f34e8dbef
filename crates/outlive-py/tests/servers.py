"""Servers that tests share: a real PostgreSQL and a real S3 server, on the loopback of this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: How long a server may take to come up, in seconds.
PATIENCE = 90.0


def free_port(behind: tuple[int, ...] = ()) -> int:
    """A port that is free, and so are those that lie this far behind it."""
    for _ in range(1000):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port + max(behind, default=0) < 65_000 and all(_is_free(port + offset) for offset in (0, *behind)):
            return port
    raise AssertionError("no port is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _as_user(words: list[str]) -> list[str]:
    """PostgreSQL refuses to run as root."""
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
    return [*prefix, *words]


def _wait(process: subprocess.Popen[bytes], is_up: object) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_up():  # type: ignore[operator]
        assert process.poll() is None and time.monotonic() < deadline, "the server did not come up"
        time.sleep(0.05)


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a database of its own."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    binaries = installed[-1] if installed else Path(shutil.which("initdb") or "initdb").parent
    # The path of a socket has 107 characters at most, and the server's user must reach it.
    place = Path(tempfile.mkdtemp(prefix="outlive-pg-", dir="/tmp"))
    if os.getuid() == 0:
        os.chown(place, 65534, 65534)
    data = str(place / "data")
    made = _as_user([str(binaries / "initdb"), "-D", data, "-U", "tester", "-A", "trust", "--no-sync"])
    subprocess.run(made, check=True, capture_output=True, env={**os.environ, "HOME": str(place)})
    port = free_port()
    options = ["-k", str(place), "-c", "listen_addresses=127.0.0.1", "-p", str(port), "-c", "fsync=off"]
    process = subprocess.Popen(_as_user([str(binaries / "postgres"), "-D", data, *options]), stderr=subprocess.DEVNULL)
    try:
        ready = [str(binaries / "pg_isready"), "--quiet", "--host=127.0.0.1", f"--port={port}"]
        _wait(process, lambda: subprocess.run(ready).returncode == 0)
        yield f"postgres://tester@127.0.0.1:{port}/postgres"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
        shutil.rmtree(place, ignore_errors=True)


class Gate:
    """A port that leads to a server, until it is shut: then it refuses, or it accepts and never answers."""

    def __init__(self, target: int) -> None:
        self._target, self._is_open, self._ended = target, threading.Event(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._streams: list[socket.socket] = []
        self._is_open.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._streams += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not self._is_open.is_set():
                    self._ended.wait()
                    return
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def shut(self, how: str) -> None:
        """From now on it `refuses` connections, those that there are too, or it `hangs`."""
        self._is_open.clear()
        if how == "refuses":
            self.end()

    def end(self) -> None:
        self._ended.set()
        for stream in (self._listener, *self._streams):
            with suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
            stream.close()


def _asked(port: int, line: str) -> bytes:
    """How a server begins its answer; nothing where there is none."""
    head = f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as stream:
            stream.sendall(head.encode())
            return stream.recv(12)
    except OSError:
        return b""


class Bucket:
    """An S3 server with one bucket: SeaweedFS, as the tests of the library start it."""

    KEY, SECRET, NAME, REGION = "AK", "SKSKSKSK", "outlive", "us-east-1"

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        #: The file interface of the server, which asks for no signatures.
        self.files = f"http://127.0.0.1:{port + 1}"

    def url(self, prefix: str) -> str:
        """The URL of a registry under a prefix."""
        return f"s3://{self.KEY}:{self.SECRET}@{self.NAME}/{prefix}?endpoint={self.endpoint}&region={self.REGION}"


@contextmanager
def bucket() -> Iterator[Bucket]:
    """A server of its own."""
    program = ROOT / "target/python/bin/weed"
    assert program.exists(), f"{program} is missing: `cargo xtask setup` installs it"
    place = Path(tempfile.mkdtemp(prefix="outlive-s3-", dir="/tmp"))
    port = free_port((1, 2, 3, 10_000, 10_001, 10_002, 10_003))
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    credentials = [{"accessKey": Bucket.KEY, "secretKey": Bucket.SECRET}]
    (place / "s3.json").write_text(
        json.dumps({"identities": [{"name": "all", "credentials": credentials, "actions": actions}]})
    )
    (place / "data").mkdir()
    parts = [f"-{name}.port={port + offset}" for offset, name in enumerate(("s3", "filer", "volume", "master"))]
    fixed = "-dir=data -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.volumeSizeLimitMB=64 -master.volumePreallocate=false"
    fixed += " -volume.max=50 -volume.minFreeSpace=50MiB -filer -filer.localSocket=filer.sock -s3 -s3.config=s3.json"
    fixed += " -s3.localSocket=s3.sock -s3.port.iceberg=0 -s3.port.lance=0"
    words = [str(program), f"-logdir={place}", "server", *parts, *fixed.split()]
    with (place / "log").open("wb") as log:
        # The program may be a script that starts the server: both are in a group of their own.
        process = subprocess.Popen(words, cwd=place, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(process, lambda: _asked(port, "GET /") == b"HTTP/1.1 403")
        # Buckets are directories of the server's filer.
        assert _asked(port + 1, f"POST /buckets/{Bucket.NAME}/").startswith(b"HTTP/1.1 20")
        yield Bucket(port)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(place, ignore_errors=True)
