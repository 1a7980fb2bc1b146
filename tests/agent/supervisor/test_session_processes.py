"""Who comes into an attempt, as its supervisor sees it: in whichever order it hears of them."""

import json
import os
import selectors
import socket

from ebbtide_agent.supervisor.session_processes import SessionEntry, SessionProcesses


def test_a_program_that_could_not_be_started_is_explained_though_its_process_was_reaped_first(tmp_path) -> None:
    """A busy supervisor hears both at once: why it could not be started, and that its process has ended."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, selectors.DefaultSelector() as selector:
        listener.bind(str(tmp_path / "entry"))
        listener.listen()
        processes = SessionProcesses(selector, SessionEntry(listener, {}, str(tmp_path), listener.fileno(), None))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(str(tmp_path / "entry"))
            request = {"command": ["no-such-program"], "terminal": False, "env": {}}
            with open(os.devnull, "r+b") as null:
                socket.send_fds(client, [json.dumps(request).encode()], [null.fileno()] * 3)
            while not processes.pids:
                for key, _ in selector.select():
                    key.data()
            (pid,) = processes.pids
            _, status = os.waitpid(pid, 0)
            processes.reaped(pid, os.waitstatus_to_exitcode(status))
            assert json.loads(client.recv(4096)) == {"error": "cannot start no-such-program: No such file or directory"}
            assert [key.fileobj for key in selector.get_map().values()] == [listener]
