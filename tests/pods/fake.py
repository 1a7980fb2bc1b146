"""A Kubernetes of this process: its API for pods and secrets over HTTP, a scheduler that counts GPUs, and kubelets.

It checks what it is given against the schemas of a real version. A pod's container is a process of this machine,
which finds what is mounted from the pod's secret in a folder instead: its path is replaced in the command.
"""

import ctypes
import json
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import psutil

VERSION = "1.34"
PR_SET_CHILD_SUBREAPER = 36
STAMP = "%Y-%m-%dT%H:%M:%SZ"
EBB = (sys.executable, "-P", "-m", "ebbtide_cli.main")


def now() -> str:
    return datetime.now(UTC).strftime(STAMP)


class RefusedError(Exception):
    """The API's answer to a request that it does not carry out."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class FakeKubernetes:
    """One cluster with ``gpus`` GPUs, whose files are in ``folder``.

    Without kubelets pods get a node and nothing else happens to them. ``broken`` may refuse requests.
    """

    folder: Path
    gpus: int = 4
    kubelets: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    broken: Callable[[str, str], None] = lambda method, path: None
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    secrets: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._closing = False
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                status, content, kind = 200, b"", "application/json"
                url = urlsplit(self.path)
                try:
                    with cluster.lock:
                        cluster.requests.append((self.command, url.path))
                        cluster.broken(self.command, url.path)
                        found = cluster.serve(self.command, url.path, parse_qs(url.query), body)
                    content, kind = (
                        (found, "text/plain") if isinstance(found, bytes) else (json.dumps(found).encode(), kind)
                    )
                except RefusedError as error:
                    status = error.status
                    content = json.dumps({"kind": "Status", "code": status, "message": str(error)}).encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = do_DELETE = answer

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.threads = [threading.Thread(target=self.server.serve_forever, args=(0.05,))]
        if self.kubelets:
            self.threads.append(threading.Thread(target=self._kubelets))
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        """End the API, and kill what runs in pods."""
        self._closing = True
        self.server.shutdown()
        for thread in self.threads:
            thread.join()
        self.server.server_close()
        for process in self.processes.values():
            _kill(process)
            process.wait()

    def configuration(self) -> Path:
        """What kubectl would find the cluster by."""
        path = self.folder / "kubeconfig"
        server = f"http://127.0.0.1:{self.server.server_port}"
        named = {
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": server}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
            "users": [{"name": "me", "user": {"token": "a-token"}}],
        }  # fmt: skip
        path.write_text(json.dumps(named))
        return path

    # --- the API ---

    def serve(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Any:
        found = re.fullmatch(r"/api/v1/namespaces/([^/]+)/(pods|secrets)(?:/([^/]+))?(/log)?", path)
        if found is None:
            raise RefusedError(404, f"the server could not find the requested resource {path}")
        _, kind, name, log = found.groups()
        there = self.pods if kind == "pods" else self.secrets
        if method == "POST":
            return self._create(kind, there, body, dry="dryRun" in query)
        if name is None:
            wanted = dict(one.split("=") for one in query.get("labelSelector", [""])[0].split(",") if one)
            items = [one for one in there.values() if wanted.items() <= one["metadata"].get("labels", {}).items()]
            return {"kind": "List", "items": items}
        if name not in there:
            raise RefusedError(404, f'{kind} "{name}" not found')
        thing = there[name]
        if log:
            return self._log_of(name).read_bytes() if self._log_of(name).exists() else b""
        if method == "DELETE":
            self._delete(thing, ((body or {}).get("preconditions") or {}).get("uid"))
        elif method == "PATCH":
            self._patch(thing, body)
        return thing

    def _create(self, kind: str, there: dict[str, Any], thing: Any, dry: bool) -> Any:
        try:
            kubernetes_validate.validate(thing, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise RefusedError(422, f"{thing.get('kind')} is invalid: {error.message}") from None
        name = thing["metadata"]["name"]
        if name in there:
            raise RefusedError(409, f'{kind} "{name}" already exists')
        thing["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
        if kind == "pods":
            thing["status"] = {"phase": "Pending", "conditions": []}
        if not dry:
            there[name] = thing
            self._schedule()
        return thing

    def _delete(self, pod: dict[str, Any], uid: str | None) -> None:
        if uid not in (None, pod["metadata"]["uid"]):
            raise RefusedError(409, "the UID in the precondition does not match")
        if "deletionTimestamp" not in pod["metadata"]:
            pod["metadata"]["deletionTimestamp"] = now()
            if pod["metadata"]["name"] in self.processes:
                self._terminate(pod)
        self._forget_if_free(pod)

    def _patch(self, thing: dict[str, Any], operations: list[dict[str, Any]]) -> None:
        for one in operations:
            _, first, last = one["path"].split("/")
            if one["op"] == "test" and thing[first].get(last) != one["value"]:
                raise RefusedError(422, f"testing {one['path']} failed")
            if one["op"] == "replace":
                thing[first][last] = one["value"]
        self._forget_if_free(thing)

    def _forget_if_free(self, pod: dict[str, Any]) -> None:
        metadata, over = pod["metadata"], pod["status"]["phase"] in ("Succeeded", "Failed")
        started = "nodeName" in pod["spec"]
        if "deletionTimestamp" in metadata and not metadata.get("finalizers") and (over or not started):
            del self.pods[metadata["name"]]
            for name, secret in list(self.secrets.items()):
                if secret["metadata"]["ownerReferences"][0]["uid"] == metadata["uid"]:
                    del self.secrets[name]

    # --- the scheduler ---

    def _schedule(self) -> None:
        for pod in self.pods.values():
            if "nodeName" in pod["spec"] or "deletionTimestamp" in pod["metadata"]:
                continue
            used = sum(_gpus_of(other) for other in self.pods.values() if _holds_gpus(other))
            condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}
            if used + _gpus_of(pod) <= self.gpus:
                pod["spec"]["nodeName"] = "worker"
            else:
                words = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
                condition |= {"status": "False", "reason": "Unschedulable", "message": words}
            pod["status"]["conditions"] = [condition]

    # --- kubelets ---

    def _kubelets(self) -> None:
        while not self._closing:
            with self.lock:
                for pod in list(self.pods.values()):
                    self._serve_pod(pod)
                self._schedule()
            threading.Event().wait(0.05)

    def _serve_pod(self, pod: dict[str, Any]) -> None:
        name, status = pod["metadata"]["name"], pod["status"]
        process = self.processes.get(name)
        if process is None and "nodeName" in pod["spec"] and name in self.secrets and status["phase"] == "Pending":
            self._start(pod)
        elif process is not None and process.poll() is not None and status["phase"] == "Running":
            status["phase"] = "Succeeded" if process.returncode == 0 else "Failed"
            reason = "Completed" if process.returncode == 0 else "Error"
            self.set_state(pod, terminated={"exitCode": process.returncode % 256, "reason": reason})
            self._forget_if_free(pod)

    def _start(self, pod: dict[str, Any]) -> None:
        name, [container] = pod["metadata"]["name"], pod["spec"]["containers"]
        invitation = self.folder / f"{name}.invitation"
        invitation.write_text(self.secrets[name]["stringData"]["invitation"])
        invitation.chmod(0o400)
        [mounted] = [one["mountPath"] for one in container["volumeMounts"] if one.get("subPath") == "invitation"]
        command = [str(invitation) if word == mounted else word for word in container["command"]]
        assert command[0] == "ebb"
        env = self.environment | {one["name"]: one["value"] for one in container["env"]}
        env["EBB_HOME"] = str(self.folder / f"{name}.home")  # no two pods have the same empty folder
        with self._log_of(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*EBB, *command[1:]],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_adopt_orphans,
            )
        pod["status"]["phase"] = "Running"
        self.set_state(pod, running={"startedAt": now()})

    def _terminate(self, pod: dict[str, Any]) -> None:
        process = self.processes[pod["metadata"]["name"]]
        process.terminate()
        kill = threading.Timer(pod["spec"]["terminationGracePeriodSeconds"], lambda: _kill(process))
        kill.daemon = True
        kill.start()

    def _log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    # --- what tests do to it ---

    def set_state(self, pod: dict[str, Any], **state: Any) -> None:
        pod["status"]["containerStatuses"] = [{"name": "pilot", "state": state}]

    def pods_that_run(self) -> list[str]:
        """The names of the pods whose processes have not ended."""
        with self.lock:
            return [name for name, process in self.processes.items() if name in self.pods and process.poll() is None]

    def evict(self, name: str) -> None:
        """Delete a pod, as the scheduler does for one of a higher priority."""
        with self.lock:
            self._delete(self.pods[name], None)

    def started_earlier(self, name: str, seconds: float) -> None:
        """Have a pod end so much earlier, because it has started so much earlier."""
        with self.lock:
            [status] = self.pods[name]["status"]["containerStatuses"]
            running = status["state"]["running"]
            began = datetime.strptime(running["startedAt"], STAMP).replace(tzinfo=UTC)
            running["startedAt"] = (began - timedelta(seconds=seconds)).strftime(STAMP)

    def kill(self, name: str) -> None:
        """Kill all that a pod runs, as its node does if memory runs out."""
        _kill(self.processes[name])


def _adopt_orphans() -> None:
    """Have this process be the parent of all its descendants whose own one ends: as in a container, it is the first."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        first = psutil.Process(process.pid)
        for one in [first, *first.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # it was ended by the first one's end
                one.kill()


def _gpus_of(pod: dict[str, Any]) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", 0))


def _holds_gpus(pod: dict[str, Any]) -> bool:
    return "nodeName" in pod["spec"] and pod["status"]["phase"] not in ("Succeeded", "Failed")
