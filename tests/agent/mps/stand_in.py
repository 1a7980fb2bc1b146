"""A stand-in for `nvidia-cuda-mps-control`: its command set, a real daemon, a server process, and clients.

The daemon listens on `control` in the pipe directory, its server on `server`. A client connects to `server`, is known
by the pid of its socket, and is told "fault" when the server has met a fatal fault; when the server dies it sees the
connection close. `knobs.json` in the directory above makes things fail: {"start": 1} (status of -d), {"no_server":
true}, {"deaf": true} (quit does nothing).
"""

import json
import os
import selectors
import signal
import socket
import struct
import sys
from pathlib import Path

NAME = "nvidia-cuda-mps-control"
PIPES = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))


def knobs():
    path = PIPES.parent / "knobs.json"
    return json.loads(path.read_text()) if path.exists() else {}


def listen(name):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(PIPES / name))
    listener.listen()
    return listener


def pid_of(connection):
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def ask(name, command):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(PIPES / name))
        connection.sendall(command.encode() + b"\n")
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode()


def name_process(name):
    Path("/proc/self/comm").write_text(name[:15])


class Server:
    """Serves clients; `?status` and `?clients` are the daemon's questions."""

    def __init__(self):
        name_process("nvidia-cuda-mps-server")
        self.selector = selectors.DefaultSelector()
        self.clients = {}
        self.faulty = False
        self.listener = listen("server")
        self.selector.register(self.listener, selectors.EVENT_READ)

    def run(self):
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    connection, _ = self.listener.accept()
                    self.selector.register(connection, selectors.EVENT_READ)
                else:
                    self.hear(key.fileobj)

    def hear(self, connection):
        data = connection.recv(100)
        if data == b"?status\n":
            self.answer(connection, "FAULT" if self.faulty else "ACTIVE")
        elif data == b"?clients\n":
            self.answer(connection, "".join(f"{pid}\n" for pid in self.clients.values()))
        elif data == b"connect\n":
            self.clients[connection] = pid_of(connection)
            connection.sendall(b"fault\n" if self.faulty else b"connected\n")
        elif data == b"bad access\n":
            self.faulty = True
            for client in self.clients:
                client.sendall(b"fault\n")
        else:
            self.clients.pop(connection, None)
            self.selector.unregister(connection)
            connection.close()
            self.faulty = self.faulty and bool(self.clients)

    def answer(self, connection, text):
        connection.sendall(text.encode())
        self.selector.unregister(connection)
        connection.close()


class Daemon:
    """Answers one command per connection."""

    def __init__(self):
        self.server = 0
        self.listener = listen("control")
        (PIPES / f"{NAME}.pid").write_text(str(os.getpid()))

    def run(self):
        while True:
            connection, _ = self.listener.accept()
            with connection:
                connection.sendall(self.obey(connection.recv(1000).decode().split()).encode())

    def obey(self, words):
        match words:
            case ["get_server_list"]:
                return f"{self.server}\n" if self.lives() else ""
            case ["start_server", "-uid", uid]:
                assert int(uid) == os.getuid()
                self.start_server()
            case ["get_server_status", _] if self.lives():
                return ask("server", "?status") + "\n"
            case ["get_client_list", _] if self.lives():
                return ask("server", "?clients")
            case ["quit"] if not knobs().get("deaf"):
                if self.lives():
                    os.kill(self.server, signal.SIGKILL)
                    os.waitpid(self.server, 0)
                os._exit(0)
        return ""

    def lives(self):
        if self.server and os.waitpid(self.server, os.WNOHANG) != (0, 0):
            self.server = 0
        return bool(self.server)

    def start_server(self):
        if not knobs().get("no_server"):
            ready, listens = os.pipe()
            self.server = os.fork()
            if self.server == 0:
                os.dup2(listens, 3)
                os.closerange(4, 100)  # the daemon's sockets
                server = Server()
                os.close(3)
                server.run()
            os.close(listens)
            os.read(ready, 1)  # the server listens, or has died
            os.close(ready)


def main():
    if sys.argv[1:] != ["-d"]:
        try:
            sys.stdout.write(ask("control", sys.stdin.read().strip()))
        except OSError:
            sys.exit("Cannot find MPS control daemon process")
        return
    if status := knobs().get("start"):
        print("An instance of this daemon is already running")
        sys.exit(status)
    assert os.environ["CUDA_VISIBLE_DEVICES"].startswith("GPU-")
    if os.fork() == 0:
        os.setsid()
        name_process(NAME)
        (Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]) / "control.log").write_text("started\n")
        Daemon().run()


if __name__ == "__main__":
    main()
