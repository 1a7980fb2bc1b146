"""Borrow nodes from Kubernetes: each loan is a pod, in which a pilot runs.

A pod keeps a finalizer of ours until its end has been noted, so that what became of its processes is known even if
somebody has deleted it: https://kubernetes.io/docs/concepts/overview/working-with-objects/finalizers/.
"""

import json
import math
import os
import pwd
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import urllib3
import yaml
from ebbtide_core.supply.supply import LenderFacts, LenderState
from kubernetes import client, config

from ebbtide_cli.supplying.lender import (
    ANSWER_S,
    LenderAwayError,
    LenderRefusedError,
    log_of,
    pilot_arguments,
    read_log,
)
from ebbtide_cli.supplying.settings import Borrowing, PodOptions
from ebbtide_cli.terminal.text import one_line

FINALIZER: Final = "ebbtide/loan"
SUPPLY: Final = "ebbtide/supply"
LOAN: Final = "ebbtide/loan"
"""Labels of each pod: the supply, and the loan."""
INVITATION: Final = Path("/run/ebbtide/invitation")
"""Where a pod has its invitation."""
CONTAINER: Final = "pilot"
SPARE_S: Final = 5.0
"""Seconds that a pilot has to end after its jobs have."""
PULLED_S: Final = 900.0
"""Seconds within which a pod starts once it has a node; its image is pulled meanwhile."""
_BACKSTOP_S: Final = 3600  # a pilot ends by itself; Kubernetes ends one that hangs so much later
_LOG_LINES: Final = 10_000
_LOG_BYTES: Final = 16 << 20
_NEVER: Final = frozenset(
    {"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
"""Reasons for which a container does not start that time does not end."""


class Kubernetes:
    """Asks Kubernetes for the loans of one supply; ``folder`` has the logs of those that have ended."""

    def __init__(self, borrowing: Borrowing, options: PodOptions, folder: Path) -> None:
        self._borrowing = borrowing
        self._options = options
        self._folder = folder
        self._namespace = options.namespace
        self._core: Any = None
        self._noted = set[str]()  # uids of pods whose end was returned by `look`
        self._stuck = ""  # uid of the pod that could not be removed last

    # --- what a loan is ---

    def pod(self, id: str, kept: bool) -> dict[str, Any]:
        """Return the pod of a loan. Raises LenderRefusedError if it would be root's."""
        wanted, options = self._borrowing, self._options
        uid, gid = self._ids()
        ours = {
            "app.kubernetes.io/name": "ebbtide",
            "app.kubernetes.io/component": "pilot",
            "app.kubernetes.io/managed-by": "ebbtide",
            SUPPLY: wanted.name,
            LOAN: id,
        }
        resources = {
            "cpu": f"{wanted.cpus:g}",
            "memory": str(wanted.mem_bytes),
            **({options.gpu_resource: str(wanted.gpus)} if wanted.gpus else {}),
        }
        arguments = [
            *pilot_arguments(wanted, id, INVITATION, kept),
            *("--ends-in", f"{wanted.time_s:.0f}s"),
            *("--cpus", f"{wanted.cpus:g}", "--mem", f"{wanted.offered_bytes >> 20}MiB"),
        ]
        container = {
            "name": CONTAINER,
            "image": options.image,
            "command": ["ebb", *arguments],
            "env": [{"name": "EBB_HOME", "value": str(wanted.home)}, {"name": "HOME", "value": str(wanted.home)}],
            "resources": {"requests": resources, "limits": resources},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [
                {"name": "loan", "mountPath": str(INVITATION), "subPath": "invitation", "readOnly": True},
                {"name": "loan", "mountPath": "/etc/passwd", "subPath": "passwd", "readOnly": True},
                {"name": "shm", "mountPath": "/dev/shm"},
            ],
        }
        spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": math.ceil((wanted.notice_s or 0.0) + SPARE_S),
            "activeDeadlineSeconds": math.ceil(wanted.time_s) + _BACKSTOP_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": uid,
                "runAsGroup": gid,
                "fsGroup": gid,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumes": [
                {"name": "loan", "secret": {"secretName": _name_of(id), "defaultMode": 0o440}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
            ],
        }
        spec = merged(spec, options.pod) | {"containers": [merged(container, options.container)]}
        metadata = {
            "name": _name_of(id),
            "labels": {**options.labels, **ours},
            "annotations": dict(options.annotations),
            "finalizers": [FINALIZER],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def secret(self, id: str, invitation: str, owner: str) -> dict[str, Any]:
        """Return the secret with the invitation of a loan, which goes with the pod whose uid is ``owner``."""
        pod = {"apiVersion": "v1", "kind": "Pod", "name": _name_of(id), "uid": owner}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "immutable": True,
            "metadata": {
                "name": _name_of(id),
                "labels": {SUPPLY: self._borrowing.name, LOAN: id},
                "ownerReferences": [pod],
            },
            "stringData": {"invitation": invitation, "passwd": self._accounts()},
        }

    def _ids(self) -> tuple[int, int]:
        """Return uid and gid of a pod's processes: this account's, unless the file names others."""
        wanted = self._options.pod.get("securityContext", {})
        uid = wanted.get("runAsUser", os.getuid())
        if uid == 0:
            raise LenderRefusedError(
                "a pilot is never root: run the supplier as another account, or set pod.securityContext.runAsUser"
            )
        return uid, wanted.get("runAsGroup", os.getgid() if uid == os.getuid() else uid)

    def _accounts(self) -> str:
        """Return a pod's ``/etc/passwd``, with the account of its processes."""
        uid, gid = self._ids()
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = "ebbtide"
        return f"root:x:0:0:root:/root:/bin/sh\n{name}:x:{uid}:{gid}::{self._borrowing.home}:/bin/sh\n"

    # --- what a lender does ---

    def ask(self, id: str, invitation: Path, kept: bool) -> str:
        """Ask for a loan; return the pod's uid. Raises LenderRefusedError, LenderAwayError, OSError.

        The pod comes first, and does not start before its secret is there: so no secret is ever left without one.
        """
        text = invitation.read_text()
        uid = self._create_pod(id, kept)
        try:
            self._create_secret(id, uid, text)
        except (LenderRefusedError, LenderAwayError):
            self._give_up(id, uid)
            raise
        invitation.unlink()
        return uid

    def _create_pod(self, id: str, kept: bool) -> str:
        there = self._request(self._api.create_namespaced_pod, self._namespace, self.pod(id, kept), fine=_CONFLICT)
        if there is None:  # an earlier request for it came through
            there = self._request(self._api.read_namespaced_pod, _name_of(id), self._namespace)
            if there["metadata"].get("labels", {}).get(SUPPLY) != self._borrowing.name:
                raise LenderRefusedError(f"there is another pod {_name_of(id)} in namespace {self._namespace}")
        return str(there["metadata"]["uid"])

    def _create_secret(self, id: str, uid: str, invitation: str) -> None:
        secret = self.secret(id, invitation, uid)
        self._request(self._api.create_namespaced_secret, self._namespace, secret, fine=_CONFLICT)

    def _give_up(self, id: str, uid: str) -> None:
        """Call off a pod without a secret, since it holds its GPUs and cannot start."""
        with suppress(LenderAwayError):
            self.call_off(id, uid)

    def _complete(self, id: str, uid: str) -> None:
        """Make the secret of a pod that waits, if its invitation is left from a request that broke off."""
        invitation = self._folder / f"{id}.invitation"
        with suppress(LenderAwayError, FileNotFoundError):  # the next look tries again
            try:
                self._create_secret(id, uid, invitation.read_text())
            except LenderRefusedError:
                self._give_up(id, uid)
            else:
                invitation.unlink()

    def look(self) -> dict[str, LenderFacts]:
        """Return all loans that Kubernetes knows, by their ids; one call. Raises LenderAwayError.

        A pod whose end was returned by an earlier call is removed, and one that lacks its secret gets it.
        """
        try:
            answer = self._request(
                self._api.list_namespaced_pod, self._namespace, label_selector=f"{SUPPLY}={self._borrowing.name}"
            )
        except LenderRefusedError as error:
            raise LenderAwayError(str(error)) from None
        found, over, told = dict[str, LenderFacts](), set[str](), list[Mapping[str, Any]]()
        for pod in answer["items"]:
            id = pod["metadata"].get("labels", {}).get(LOAN, "")
            if pod["metadata"]["name"] != _name_of(id) or not self._is_ours(id):
                continue  # somebody else's, whatever its labels say
            found[id] = facts = facts_of(pod, self._borrowing.time_s, time.time())
            if facts.state is LenderState.WAITS and "deletionTimestamp" not in pod["metadata"]:
                self._complete(id, facts.job)
            if facts.state is not LenderState.OVER:
                continue
            over.add(facts.job)
            if facts.job in self._noted:
                told.append(pod)
            else:
                self._keep_log(id)
        self._noted = over
        self._remove_all(told)
        return found

    def _is_ours(self, id: str) -> bool:
        return id.startswith(f"{self._borrowing.name}-") and id.removeprefix(f"{self._borrowing.name}-").isdecimal()

    def call_off(self, id: str, job: str) -> None:
        """End a loan. Raises LenderAwayError."""
        wanted = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": job}}
        with suppress(LenderRefusedError):  # it is gone, or another pod
            self._request(self._api.delete_namespaced_pod, _name_of(id), self._namespace, body=wanted)

    def preview(self, id: str, invitation: Path) -> Iterator[str]:
        """Yield the pod of a loan, and whether Kubernetes would take it. Raises LenderRefusedError, LenderAwayError."""
        pod = self.pod(id, kept=False)
        yield yaml.safe_dump(pod, sort_keys=False)
        self._request(self._api.create_namespaced_pod, self._namespace, pod, dry_run="All")
        self._request(self._api.create_namespaced_secret, self._namespace, self.secret(id, "", "none"), dry_run="All")
        yield f"Kubernetes would take this pod and its secret in namespace {self._namespace}."

    def log(self, id: str) -> str:
        """Return what the pilot of a loan has printed last. Raises LenderRefusedError, LenderAwayError."""
        if log_of(self._folder, id).exists():
            return read_log(self._folder, id)
        return self._log(id)

    # --- how ---

    def _log(self, id: str) -> str:
        answer = self._answer(
            self._api.read_namespaced_pod_log,
            _name_of(id),
            self._namespace,
            container=CONTAINER,
            tail_lines=_LOG_LINES,
            limit_bytes=_LOG_BYTES,
        )
        return answer.decode(errors="replace")

    def _keep_log(self, id: str) -> None:
        with suppress(LenderAwayError, LenderRefusedError, OSError):  # the pod has perhaps never started
            log_of(self._folder, id).write_text(self._log(id))

    def _remove_all(self, pods: list[Mapping[str, Any]]) -> None:
        """Remove pods that have ended until one cannot be, since each try may last; the next look begins behind it."""

        def turn(pod: Mapping[str, Any]) -> tuple[bool, str]:
            uid = str(pod["metadata"]["uid"])
            return uid <= self._stuck, uid

        for pod in sorted(pods, key=turn):
            try:
                self._remove(pod)
            except LenderAwayError:
                self._stuck = pod["metadata"]["uid"]
                return

    def _remove(self, pod: Mapping[str, Any]) -> None:
        """Remove a pod that has ended, and what has kept it."""
        metadata = pod["metadata"]
        held = metadata.get("finalizers", [])
        free = [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
            {"op": "test", "path": "/metadata/finalizers", "value": held},
            {"op": "replace", "path": "/metadata/finalizers", "value": [one for one in held if one != FINALIZER]},
        ]
        if FINALIZER in held:
            with suppress(LenderRefusedError):  # somebody else was faster
                self._request(self._api.patch_namespaced_pod, metadata["name"], self._namespace, free)
        self.call_off(metadata["labels"][LOAN], metadata["uid"])

    def _request(self, call: Callable[..., Any], *arguments: Any, fine: int | None = None, **options: Any) -> Any:
        """Return the answer to a request, or None if its HTTP status is ``fine``.

        Raises LenderRefusedError, LenderAwayError.
        """
        answer = self._answer(call, *arguments, fine=fine, **options)
        return json.loads(answer) if answer else None

    def _answer(self, call: Callable[..., Any], *arguments: Any, fine: int | None = None, **options: Any) -> bytes:
        try:
            return bytes(call(*arguments, _request_timeout=ANSWER_S, _preload_content=False, **options).data)
        except client.ApiException as error:
            if error.status == fine:
                return b""
            if error.status is None or error.status == _TOO_MANY or error.status >= _SERVER_FAILED:
                raise LenderAwayError(_said(error)) from None
            raise LenderRefusedError(_said(error)) from None
        except ValueError as error:  # a field that the client does not know
            raise LenderRefusedError(one_line(str(error))) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise LenderAwayError(str(error)) from None

    @property
    def _api(self) -> Any:
        if self._core is None:
            self._core = client.CoreV1Api(client.ApiClient(_configuration(self._options.context)))
        return self._core


_CONFLICT: Final = 409
_TOO_MANY: Final = 429
_SERVER_FAILED: Final = 500
"""HTTP statuses."""


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``ours`` with what ``theirs`` has: tables are merged, lists are joined, other values are replaced."""
    found = dict(ours)
    for field, value in theirs.items():
        match found.get(field), value:
            case dict() as old, Mapping():
                found[field] = merged(old, value)
            case list() as old, list():
                found[field] = [*old, *value]
            case _:
                found[field] = value
    return found


def facts_of(pod: Mapping[str, Any], time_s: float, now: float) -> LenderFacts:
    """Return what a pod says of its loan, which lasts for ``time_s`` from its start."""
    metadata, status = pod["metadata"], pod.get("status", {})
    uid, phase = metadata["uid"], status.get("phase")
    deleted, has_node = "deletionTimestamp" in metadata, bool(pod["spec"].get("nodeName"))
    if phase in ("Succeeded", "Failed"):
        return LenderFacts(LenderState.OVER, uid, _why_over(status), None, _is_proof(pod))
    if deleted and not has_node:
        return LenderFacts(LenderState.OVER, uid, "deleted", None, True)
    if phase == "Pending":
        return _of_pending(status, uid, has_node, now)
    started = next((_time(state["running"].get("startedAt")) for state in _states(status) if "running" in state), None)
    until = None if started is None else started + time_s
    return LenderFacts(LenderState.RUNS, uid, "is being deleted" if deleted else "", until)


def _of_pending(status: Mapping[str, Any], uid: str, has_node: bool, now: float) -> LenderFacts:
    scheduled: Mapping[str, Any] = next(
        (one for one in status.get("conditions", []) if one["type"] == "PodScheduled"), {}
    )
    if not has_node:
        return LenderFacts(LenderState.WAITS, uid, scheduled.get("message") or scheduled.get("reason") or "")
    waiting: Mapping[str, Any] = next((state["waiting"] for state in _states(status) if "waiting" in state), {})
    reason = waiting.get("reason") or "ContainerCreating"
    words = f"{reason}: {waiting['message']}" if waiting.get("message") else reason
    since = _time(scheduled.get("lastTransitionTime"))
    if reason in _NEVER or (since is not None and now - since > PULLED_S):
        return LenderFacts(LenderState.NEVER_STARTS, uid, words)
    return LenderFacts(LenderState.WAITS, uid, words)


def _why_over(status: Mapping[str, Any]) -> str:
    ended: Mapping[str, Any] = next((state["terminated"] for state in _states(status) if "terminated" in state), {})
    if status.get("reason"):
        return ": ".join(filter(None, (status["reason"], status.get("message"))))
    return f"{ended.get('reason') or status['phase']} (exit code {ended.get('exitCode', 'unknown')})"


def _is_proof(pod: Mapping[str, Any]) -> bool:
    """Return whether no process of a pod that has ended can be left.

    Its node has to have said that its containers have ended: somebody may have taken them for ended because the node
    was gone. Processes may outlive their container if they share the node's.
    """
    states = _states(pod["status"])
    ended = [state.get("terminated") for state in states]
    return (
        bool(states)
        and all(one is not None and one.get("reason") != "ContainerStatusUnknown" for one in ended)
        and not pod["spec"].get("hostPID")
    )


def _states(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    return [one.get("state", {}) for kind in kinds for one in status.get(kind) or []]


def _name_of(id: str) -> str:
    return f"ebb-{id}"


def _time(text: str | None) -> float | None:
    with suppress(ValueError):
        return datetime.fromisoformat(text).timestamp() if text else None
    return None


def _content(answer: Any) -> Any:
    return json.loads(answer.data)


def _uid(answer: Any) -> str:
    return str(_content(answer)["metadata"]["uid"])


def _said(error: Any) -> str:
    """Return what Kubernetes says about a request that it has not carried out."""
    with suppress(ValueError, TypeError, AttributeError):
        return str(json.loads(error.body)["message"])
    return f"{error.status} {error.reason}"


def _configuration(context: str) -> Any:
    """Return how the API is reached: from within a pod by its account there, else as kubectl does."""
    found = client.Configuration()
    try:
        if not context and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=found)
        else:
            config.load_kube_config(context=context or None, client_configuration=found)
    except (config.ConfigException, OSError) as error:
        raise LenderAwayError(str(error)) from None
    found.retries = False  # the next round asks again
    return found
