"""A web hook and a mail server on loopback, which do what a test wrote down and keep what they were told."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hook:
    """Answers with the next of ``answers``, and with 200 after them."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.asked: list[str] = []
        self.arrived = threading.Condition()
        self.url = ""

    def texts(self) -> list[str]:
        return [body["text"] for body in self.bodies]

    def take(self, path: str, headers: Any, body: bytes) -> int:
        with self.arrived:
            self.asked.append(path)
            answer = self.answers.pop(0) if self.answers else 200
            if answer < 300:
                self.keys.append(headers["Idempotency-Key"])
                self.bodies.append(json.loads(body))
            self.arrived.notify_all()
        return answer


@contextmanager
def a_hook() -> Iterator[Hook]:
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(hook.take(self.path, self.headers, body))
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.url = f"http://127.0.0.1:{server.server_port}/hook/secret"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield hook
    server.shutdown()
    thread.join()
    server.server_close()


class MailServer:
    """Takes one message per connection; with ``refusing``, it does not know the recipient."""

    def __init__(self) -> None:
        self.refusing = False
        self.messages: list[str] = []
        self.commands: list[str] = []
        self.port = 0

    def converse(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rw", newline="\r\n") as stream:

            def say(line: str) -> None:
                stream.write(f"{line}\r\n")
                stream.flush()

            say("220 here")
            while line := stream.readline():
                command = line.strip()
                self.commands.append(command)
                match command[:4].upper():
                    case "DATA":
                        say("354 go on")
                        lines = []
                        while (data := stream.readline().rstrip("\r\n")) != ".":
                            lines.append(data)
                        self.messages.append("\n".join(lines))
                        say("250 taken")
                    case "RCPT" if self.refusing:
                        say("550 no such user")
                    case "QUIT":
                        say("221 bye")
                        return
                    case _:
                        say("250 ok")


@contextmanager
def a_mail_server() -> Iterator[MailServer]:
    mail = MailServer()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mail.port = listener.getsockname()[1]

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                mail.converse(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield mail
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
