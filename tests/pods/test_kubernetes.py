"""Nodes are borrowed from Kubernetes as pods: what is asked of its API, and what its answers mean."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.main import main
from ebbtide_cli.supplying.kubernetes import FINALIZER, Kubernetes, facts_of, merged
from ebbtide_cli.supplying.lender import LenderAwayError, LenderRefusedError
from ebbtide_cli.supplying.settings import PodOptions, read
from ebbtide_core.supply.supply import LenderFacts, LenderState

from tests.pods.fake import FakeKubernetes, RefusedError

LEAST = """\
kind = "kubernetes"
max_nodes = 4
gpus_per_node = 2
cpus = 8
mem = "64GiB"
time = "8h"
image = "registry/ebbtide:1"
checkpoint_root = "/checkpoints/ebbtide"
container = { volumeMounts = [{ name = "data", mountPath = "/checkpoints" }] }
pod.volumes = [{ name = "data", persistentVolumeClaim = { claimName = "ebbtide" } }]
pod.securityContext = { runAsUser = 4711, runAsGroup = 4711 }
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Iterator[FakeKubernetes]:
    made = FakeKubernetes(tmp_path)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(made.configuration()))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    yield made
    made.close()


def lender(folder: Path, body: str = LEAST) -> Kubernetes:
    (folder / "supply.toml").write_text(f"[supply.k8s]\n{body}")
    borrowing = read(folder / "supply.toml", "k8s")
    assert isinstance(borrowing.lender, PodOptions)
    return Kubernetes(borrowing, borrowing.lender, folder)


def asked(lender: Kubernetes, folder: Path, id: str = "k8s-1") -> str:
    (folder / "invitation").write_text("the invitation")
    return lender.ask(id, folder / "invitation", False)


# --- asking ---


def test_a_loan_is_a_pod_whose_invitation_is_in_a_secret_that_goes_with_it(cluster, tmp_path):
    uid = asked(lender(tmp_path), tmp_path)
    pod, secret = cluster.pods["ebb-k8s-1"], cluster.secrets["ebb-k8s-1"]
    assert pod["metadata"]["uid"] == uid == secret["metadata"]["ownerReferences"][0]["uid"]
    assert secret["stringData"]["invitation"] == "the invitation"
    assert secret["stringData"]["passwd"].splitlines()[1].split(":")[2:4] == ["4711", "4711"]
    assert "the invitation" not in json.dumps(pod)
    assert not (tmp_path / "invitation").exists()


def test_a_pod_asks_for_what_the_node_is_like_and_its_pilot_takes_no_more(cluster, tmp_path):
    pod = lender(tmp_path, LEAST + 'notice = "2m"\n').pod("k8s-1", kept=False)
    spec, [container] = pod["spec"], pod["spec"]["containers"]
    resources = {"cpu": "8", "memory": str(64 << 30), "nvidia.com/gpu": "2"}
    assert container["resources"] == {"requests": resources, "limits": resources}
    command = " ".join(container["command"])
    assert command.startswith("ebb agent pilot --name k8s-1 --pool default --label supply=k8s --invitation /run/ebb")
    for words in ("--cpus 8", "--mem 65024MiB", "--ends-in 28800s", "--idle 300s", "--notice 120s"):
        assert words in command
    assert "--checkpoint-root /checkpoints/ebbtide" in command
    assert "--idle" not in lender(tmp_path).pod("k8s-1", kept=True)["spec"]["containers"][0]["command"]
    assert (spec["terminationGracePeriodSeconds"], spec["activeDeadlineSeconds"]) == (125, 28800 + 3600)
    assert spec["restartPolicy"] == "Never"
    spec = lender(tmp_path).pod("k8s-1", kept=False)["spec"]
    assert "--notice 60s" in " ".join(spec["containers"][0]["command"])
    assert spec["terminationGracePeriodSeconds"] == 65


def test_what_the_file_says_of_pods_is_merged_into_them(cluster, tmp_path):
    body = LEAST + (
        'labels = { team = "vision", "ebbtide/supply" = "evil" }\nannotations = { note = "x" }\n'
        'pod.priorityClassName = "low"\npod.nodeSelector = { gpu = "a100" }\n'
        'pod.tolerations = [{ key = "nvidia.com/gpu", operator = "Exists" }]\n'
        'gpu_resource = "amd.com/gpu"\nnamespace = "research"\n'
    )
    made = lender(tmp_path, body)
    pod = made.pod("k8s-1", kept=False)
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert pod["metadata"]["labels"]["ebbtide/supply"] == "k8s"
    assert (pod["metadata"]["annotations"], pod["spec"]["nodeSelector"]) == ({"note": "x"}, {"gpu": "a100"})
    assert (pod["spec"]["priorityClassName"], pod["spec"]["tolerations"][0]["operator"]) == ("low", "Exists")
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["loan", "shm", "data"]
    assert pod["spec"]["securityContext"]["runAsUser"] == 4711
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    assert pod["spec"]["containers"][0]["resources"]["limits"]["amd.com/gpu"] == "2"
    asked(made, tmp_path)
    assert ("POST", "/api/v1/namespaces/research/pods") in cluster.requests


def test_a_group_follows_the_user_that_the_file_names(tmp_path):
    made = lender(tmp_path, LEAST.replace(", runAsGroup = 4711", ""))
    security = made.pod("k8s-1", kept=False)["spec"]["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (4711, 4711, 4711)


def test_a_request_that_came_through_before_is_not_made_twice(cluster, tmp_path):
    made = lender(tmp_path)
    uid = asked(made, tmp_path)
    assert asked(made, tmp_path) == uid
    assert list(cluster.pods) == ["ebb-k8s-1"]


def test_a_pod_of_somebody_else_is_left_alone(cluster, tmp_path):
    asked(lender(tmp_path), tmp_path)
    cluster.pods["ebb-k8s-1"]["metadata"]["labels"]["ebbtide/supply"] = "other"
    with pytest.raises(LenderRefusedError, match="there is another pod ebb-k8s-1 in namespace default"):
        asked(lender(tmp_path), tmp_path)
    assert lender(tmp_path).look() == {}


@pytest.mark.parametrize(("status", "error"), [(403, LenderRefusedError), (503, LenderAwayError)])
def test_a_secret_that_is_not_made_takes_its_pod_along(cluster, tmp_path, status, error):
    def broken(method: str, path: str) -> None:
        if path.endswith("/secrets"):
            raise RefusedError(status, "no secrets")

    cluster.broken = broken
    made = lender(tmp_path)
    with pytest.raises(error, match="no secrets"):
        asked(made, tmp_path)
    assert "deletionTimestamp" in cluster.pods["ebb-k8s-1"]["metadata"]


def test_a_pod_whose_secret_was_not_made_because_the_api_went_away_gets_it_when_it_is_back(cluster, tmp_path):
    def broken(method: str, path: str) -> None:
        if cluster.pods:
            raise RefusedError(503, "away")

    def secrets_fail(method: str, path: str) -> None:
        if path.endswith("/secrets"):
            raise RefusedError(503, "away")

    cluster.broken = broken
    made, invitation = lender(tmp_path), tmp_path / "k8s-1.invitation"
    invitation.write_text("the invitation")
    with pytest.raises(LenderAwayError):
        made.ask("k8s-1", invitation, False)
    cluster.broken = secrets_fail
    assert made.look()["k8s-1"].state is LenderState.WAITS
    assert "deletionTimestamp" not in cluster.pods["ebb-k8s-1"]["metadata"]
    cluster.broken = lambda method, path: None
    assert made.look()["k8s-1"].state is LenderState.WAITS
    assert cluster.secrets["ebb-k8s-1"]["stringData"]["invitation"] == "the invitation"
    assert not invitation.exists()


@pytest.mark.parametrize(
    ("status", "error"),
    [(403, LenderRefusedError), (422, LenderRefusedError), (429, LenderAwayError), (500, LenderAwayError)],
)
def test_a_refusal_and_a_server_that_fails_are_told_apart(cluster, tmp_path, status, error):
    def broken(method: str, path: str) -> None:
        raise RefusedError(status, "no: quota exceeded")

    cluster.broken = broken
    with pytest.raises(error, match="no: quota exceeded"):
        asked(lender(tmp_path), tmp_path)
    with pytest.raises(LenderAwayError):  # whatever it says, nothing is known of loans
        lender(tmp_path).look()


def test_a_server_that_is_not_there_is_away(cluster, tmp_path):
    made = lender(tmp_path)
    port = cluster.server.server_port
    (tmp_path / "kubeconfig").write_text((tmp_path / "kubeconfig").read_text().replace(f":{port}", ":1"))
    with pytest.raises(LenderAwayError):
        made.look()
    (tmp_path / "kubeconfig").unlink()
    with pytest.raises(LenderAwayError):
        lender(tmp_path).look()


def test_a_field_that_kubernetes_does_not_know_is_refused_before_it_is_asked(cluster, tmp_path):
    with pytest.raises(LenderRefusedError, match="tolerationz"):
        asked(lender(tmp_path, LEAST + "pod.tolerationz = []\n"), tmp_path)
    assert not cluster.pods


def test_a_pilot_is_never_root(cluster, tmp_path):
    body = LEAST.replace("runAsUser = 4711", "runAsUser = 0")
    with pytest.raises(LenderRefusedError, match="never root"):
        lender(tmp_path, body).pod("k8s-1", kept=False)


def test_tables_are_merged_lists_are_joined_and_other_values_are_replaced():
    ours = {"a": {"b": 1, "c": [1]}, "d": 2}
    assert merged(ours, {"a": {"b": 3, "c": [2], "e": 4}, "d": {}}) == {"a": {"b": 3, "c": [1, 2], "e": 4}, "d": {}}


# --- looking ---


def state_of(made: Kubernetes, id: str = "k8s-1") -> LenderFacts:
    return made.look()[id]


def test_a_pod_without_a_node_waits_and_says_why(cluster, tmp_path):
    cluster.gpus = 1
    made = lender(tmp_path)
    uid = asked(made, tmp_path)
    words = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    assert state_of(made) == LenderFacts(LenderState.WAITS, uid, words)
    made.call_off("k8s-1", uid)
    assert state_of(made) == LenderFacts(LenderState.OVER, uid, "deleted", None, True)
    assert made.look()
    assert made.look() == {}
    assert not cluster.pods
    assert not cluster.secrets


def test_a_pod_that_runs_ends_so_long_after_it_has_started(cluster, tmp_path):
    made = lender(tmp_path)
    uid = asked(made, tmp_path)
    assert state_of(made) == LenderFacts(LenderState.WAITS, uid, "ContainerCreating")
    pod = cluster.pods["ebb-k8s-1"]
    pod["status"]["phase"] = "Running"
    cluster.set_state(pod, running={"startedAt": "2026-11-28T10:00:00Z"})
    assert state_of(made) == LenderFacts(LenderState.RUNS, uid, until=1795860000.0 + 28800.0)
    made.call_off("k8s-1", "another uid")
    assert state_of(made).reason == ""
    pod["metadata"]["deletionTimestamp"] = "2026-11-28T11:00:00Z"
    assert state_of(made).reason == "is being deleted"


def test_the_end_of_a_pod_is_told_once_before_it_is_removed_and_its_log_is_kept(cluster, tmp_path):
    made = lender(tmp_path)
    uid = asked(made, tmp_path)
    pod = cluster.pods["ebb-k8s-1"]
    pod["metadata"]["finalizers"].append("somebody/else")
    pod["status"]["phase"] = "Failed"
    cluster.set_state(pod, terminated={"exitCode": 137, "reason": "OOMKilled"})
    (tmp_path / "ebb-k8s-1.log").write_text("its last words\n")
    assert made.log("k8s-1") == "its last words\n"
    assert state_of(made) == LenderFacts(LenderState.OVER, uid, "OOMKilled (exit code 137)", None, True)
    assert FINALIZER in pod["metadata"]["finalizers"]
    assert state_of(made).state is LenderState.OVER
    assert pod["metadata"]["finalizers"] == ["somebody/else"]
    assert (tmp_path / "k8s-1.log").read_text() == "its last words\n"
    (tmp_path / "ebb-k8s-1.log").unlink()
    assert made.log("k8s-1") == "its last words\n"


def test_a_pod_that_cannot_be_removed_keeps_nobody_from_hearing_of_others(cluster, tmp_path):
    def broken(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith("ebb-k8s-2"):
            raise RefusedError(500, "a webhook failed")

    made = lender(tmp_path)
    for id in ("k8s-1", "k8s-2"):
        asked(made, tmp_path, id)
    cluster.pods["ebb-k8s-2"]["status"]["phase"] = "Failed"
    assert made.look()["k8s-2"].state is LenderState.OVER
    cluster.pods["ebb-k8s-1"]["status"]["phase"] = "Failed"
    cluster.set_state(cluster.pods["ebb-k8s-1"], terminated={"exitCode": 1})
    cluster.broken = broken
    told = made.look()
    assert (told["k8s-1"].proves_death, told["k8s-2"].state) == (True, LenderState.OVER)
    assert set(made.look()) == {"k8s-1", "k8s-2"}
    assert set(cluster.pods) == {"ebb-k8s-2"}
    cluster.broken = lambda method, path: None
    assert set(made.look()) == {"k8s-2"}
    assert not cluster.pods


def patched(cluster: FakeKubernetes) -> int:
    return sum(method == "PATCH" for method, _ in cluster.requests)


def noted(cluster: FakeKubernetes, folder: Path, *ids: str) -> Kubernetes:
    """A lender that has told the end of these loans."""
    made = lender(folder)
    for id in ids:
        asked(made, folder, id)
        cluster.pods[f"ebb-{id}"]["status"]["phase"] = "Failed"
    assert set(made.look()) == set(ids)
    return made


def test_a_look_tries_to_remove_no_further_pod_once_one_cannot_be_removed(cluster, tmp_path):
    def broken(method: str, path: str) -> None:
        if method == "PATCH":
            raise RefusedError(500, "a webhook failed")

    ids = {"k8s-1", "k8s-2", "k8s-3"}
    made = noted(cluster, tmp_path, *ids)
    cluster.broken = broken
    for looks in range(1, 4):
        assert set(made.look()) == ids
        assert patched(cluster) == looks
    assert len({path for method, path in cluster.requests if method == "PATCH"}) == 3


@pytest.mark.parametrize("stuck", ["k8s-1", "k8s-2", "k8s-3"])
def test_a_pod_that_cannot_be_removed_keeps_no_other_from_being_removed(cluster, tmp_path, stuck):
    def broken(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith(f"ebb-{stuck}"):
            raise RefusedError(500, "a webhook failed")

    made = noted(cluster, tmp_path, "k8s-1", "k8s-2", "k8s-3")
    cluster.broken = broken
    made.look(), made.look()
    assert set(cluster.pods) == {f"ebb-{stuck}"}
    cluster.broken = lambda method, path: None
    made.look()
    assert not cluster.pods


@pytest.mark.parametrize(
    ("name", "loan"),
    [("mine", "k8s-1"), ("ebb-k8s-1", "other-1"), ("ebb-k8s-x", "k8s-x"), ("ebb-..", ".."), ("ebb-", "")],
)
def test_a_pod_that_only_says_that_it_is_a_loan_is_none(cluster, tmp_path, name, loan):
    made = lender(tmp_path)
    asked(made, tmp_path)
    pod = cluster.pods.pop("ebb-k8s-1")
    pod["metadata"]["name"], pod["metadata"]["labels"]["ebbtide/loan"] = name, loan
    cluster.pods[name] = pod
    assert made.look() == {}


def test_another_supplier_tells_the_end_again(cluster, tmp_path):
    asked(lender(tmp_path), tmp_path)
    cluster.pods["ebb-k8s-1"]["status"]["phase"] = "Succeeded"
    for _ in range(3):
        assert state_of(lender(tmp_path)).state is LenderState.OVER


TERMINATED = {"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
RUNNING = {"state": {"running": {"startedAt": "2026-11-28T10:00:00Z"}}}
UNKNOWN = {"state": {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}}


@pytest.mark.parametrize(
    ("statuses", "spec", "proved"),
    [
        ([TERMINATED], {}, True),
        ([TERMINATED], {"hostPID": True}, False),
        ([RUNNING], {}, False),
        ([TERMINATED, RUNNING], {}, False),
        ([UNKNOWN], {}, False),
        ([], {}, False),
    ],
    ids=[
        "its node says so",
        "processes of the node",
        "the node was lost",
        "one of two",
        "unknown",
        "nothing is said",
    ],
)
def test_a_pod_that_failed_is_dead_only_if_its_node_has_seen_its_containers_end(statuses, spec, proved):
    pod = {
        "metadata": {"uid": "u"}, "spec": spec,
        "status": {"phase": "Failed", "reason": "NodeLost", "containerStatuses": statuses},
    }  # fmt: skip
    facts = facts_of(pod, 60.0, time.time())
    assert (facts.state, facts.reason, facts.proves_death) == (LenderState.OVER, "NodeLost", proved)


@pytest.mark.parametrize(
    ("reason", "since", "state"),
    [
        ("ImagePullBackOff", "2026-11-28T10:00:00Z", LenderState.WAITS),
        ("ImagePullBackOff", "2026-11-28T09:40:00Z", LenderState.NEVER_STARTS),
        ("InvalidImageName", "2026-11-28T10:00:00Z", LenderState.NEVER_STARTS),
        ("CreateContainerConfigError", "2026-11-28T10:00:00Z", LenderState.NEVER_STARTS),
    ],
)
def test_a_pod_that_does_not_start_waits_unless_time_does_not_help(reason, since, state):
    pod = {
        "metadata": {"uid": "u"}, "spec": {"nodeName": "worker"},
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}],
            "containerStatuses": [{"state": {"waiting": {"reason": reason, "message": "why"}}}],
        },
    }  # fmt: skip
    at = 1795860000.0 + 60.0  # 10:01
    assert facts_of(pod, 60.0, at) == LenderFacts(state, "u", f"{reason}: why")


# --- the file, and the command ---


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("cpus = 8\n", "", "cpus: is missing"),
        ('mem = "64GiB"\n', "", "mem: is missing"),
        ('image = "registry/ebbtide:1"\n', "", "image: is missing"),
        ('checkpoint_root = "/checkpoints/ebbtide"\n', "", "checkpoint_root: is missing: checkpoints would be lost"),
        ('mountPath = "/checkpoints"', 'mountPath = "/data"', "checkpoint_root: /checkpoints/ebbtide is in none of"),
        ('[{ name = "data", mountPath = "/checkpoints" }]', "[1]", "container.volumeMounts: is not a list of tables"),
        ("{ runAsUser = 4711, runAsGroup = 4711 }", '"x"', "pod.securityContext: is not a table"),
        ('image = "', 'pod.restartPolicy = "Always"\nimage = "', "pod.restartPolicy: is set by Ebbtide"),
        ('image = "', 'labels = { a = 1 }\nimage = "', "labels: is not a table of texts"),
    ],
)
def test_a_mistake_names_the_field(tmp_path, old, new, says):
    assert old in LEAST
    with pytest.raises(Failure) as failure:
        lender(tmp_path, LEAST.replace(old, new))
    assert f"[supply.k8s] {says}" in str(failure.value)
    assert failure.value.code == USAGE


def test_a_name_that_no_pod_can_have_is_refused(tmp_path):
    (tmp_path / "supply.toml").write_text(f"[supply.K_8]\n{LEAST}")
    with pytest.raises(Failure, match="the name of a supply of pods has small letters"):
        read(tmp_path / "supply.toml", "K_8")


def test_try_shows_the_pod_and_has_kubernetes_check_it_without_starting_one(cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EBB_HOME", str(tmp_path))
    lender(tmp_path)
    assert main(["supply", "try", "k8s"]) == 0
    shown = capsys.readouterr().out
    *pod, last = shown.splitlines()
    assert yaml.safe_load("\n".join(pod))["kind"] == "Pod"
    assert last == "Kubernetes would take this pod and its secret in namespace default."
    assert not cluster.pods
    assert not cluster.secrets
    (tmp_path / "supply.toml").write_text(f"[supply.k8s]\n{LEAST}pod.nodeSelector = 7\n")
    assert main(["supply", "try", "k8s"]) == 1
    assert "k8s" in capsys.readouterr().err


def test_the_log_of_a_loan_that_never_started_is_not_there(cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EBB_HOME", str(tmp_path))
    lender(tmp_path)
    assert main(["supply", "logs", "k8s-7"]) == 1
    assert 'supply: k8s-7: pods "ebb-k8s-7" not found' in capsys.readouterr().err


def test_within_a_pod_the_account_of_the_pod_is_used(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(LenderAwayError):  # there is no such account here
        lender(tmp_path).look()
    assert not cluster.requests
