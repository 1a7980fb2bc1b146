"""A PostgreSQL server of a test's own: on a socket in a temporary directory, and on loopback with a password."""

import glob
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.ports import free_port

USER = "ebbtide"
PASSWORD = "c4nary-Passw0rd"
START_S = 120.0
OPTIONS = ("-c", "max_connections=60", "-c", "shared_buffers=16MB", "-c", "max_wal_size=64MB")


def programs() -> Path | None:
    """Where the newest PostgreSQL of this machine is, if there is any."""
    found = [Path(name).parent for name in glob.glob("/usr/lib/postgresql/*/bin/initdb")]
    if (named := shutil.which("initdb")) is not None:
        found.append(Path(named).resolve().parent)
    return max(found, default=None, key=lambda path: int(path.parent.name) if path.parent.name.isdigit() else 0)


class Server:
    """One server, which may be stopped and started again on the same data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = programs()
        self._numbers = itertools.count(1)
        self._account = _account()
        if self._account:
            os.chown(folder, self._account["user"], self._account["group"])
        secret = folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        words = ("--no-sync", "--locale=C", "--encoding=UTF8", "--auth-local=trust", "--auth-host=scram-sha-256")
        self._run("initdb", "-D", str(folder / "data"), "-U", USER, f"--pwfile={secret}", *words)
        self.port = free_port()
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers."""
        command = [*self._program("postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder)]
        command += ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1", *OPTIONS]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self._account)
        deadline = time.monotonic() + START_S
        while True:
            try:
                return self.admin("SELECT 1")
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.02)

    def stop(self) -> None:
        """As when its machine fails: SIGQUIT ends it without a goodbye to anybody."""
        self.process.send_signal(3)
        self.process.wait(START_S)

    def database(self) -> str:
        """The URL of a new database, over the socket."""
        name = f"test{next(self._numbers)}"
        self.admin(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, name: str) -> str:
        return f"postgresql://{USER}@/{name}?host={self.folder}&port={self.port}"

    def url_with_password(self, url: str, password: str = PASSWORD) -> str:
        """The same database over loopback, which wants the password."""
        name = url.partition("@/")[2].partition("?")[0]
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{name}"

    def admin(self, command: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as db:
            db.execute(command)  # type: ignore[call-overload]

    def set(self, setting: str, value: str) -> None:
        """Change a setting of the whole server, and wait until new sessions have it."""
        self.admin(f"ALTER SYSTEM SET {setting} = {value}")
        self.admin("SELECT pg_reload_conf()")
        deadline = time.monotonic() + START_S
        while rows(self.url("postgres"), f"SHOW {setting}") != [(value,)]:
            assert time.monotonic() < deadline, f"{setting} does not become {value}"

    def _program(self, name: str) -> list[str]:
        assert self._bin is not None
        return [str(self._bin / name)]

    def _run(self, name: str, *words: str) -> None:
        command = [*self._program(name), *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, **self._account)
        assert done.returncode == 0, done.stderr


def _account() -> dict[str, Any]:
    """PostgreSQL does not run as root: as whom instead, in words of `subprocess`."""
    if os.getuid():
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = known.get("postgres") or known["nobody"]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@contextmanager
def a_server() -> Iterator[Server]:
    """A server that leaves nothing behind."""
    folder = Path(tempfile.mkdtemp(prefix="ebb-pg-"))
    folder.chmod(0o755)
    server = None
    try:
        server = Server(folder)
        yield server
    finally:
        if server is not None and server.process.poll() is None:
            server.stop()
        shutil.rmtree(folder)


def rows(url: str, query: str, *arguments: object) -> list[Any]:
    """What a query finds."""
    with psycopg.connect(url, autocommit=True) as db:
        cursor = db.execute(query, arguments)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []
