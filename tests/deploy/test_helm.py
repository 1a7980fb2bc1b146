"""The chart for Kubernetes, as Helm renders it."""

import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from ebbtide_cli.supplying.kubernetes import Kubernetes
from ebbtide_cli.supplying.settings import PodOptions, read
from ebbtide_protos.version import VERSION

CHART = Path(__file__).parents[2] / "deploy/helm/ebbtide"
VERSIONS = ("1.32", "1.34", "1.37")
PILOTS = {
    "pool": "research", "max_nodes": 8, "gpus_per_node": 4, "gpu_type": "A100-80GB", "cpus": 32, "mem": "256GiB",
    "time": "12h", "notice": "60s", "checkpoint_root": "/checkpoints", "labels": {"team": "vision"},
    "container": {"volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}]},
    "pod": {
        "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "tolerationSeconds": 60}],
    },
}  # fmt: skip
EVERYTHING = {
    "image": {"repository": "registry/ebbtide", "tag": "1", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "master": {
        "hosts": ["ebbtide.lab.example"],
        "config": {"pools": {"research": {"policy": "priority", "options": {"preemption": "on", "min_run_s": 60}}}},
        "storage": {"size": "1Gi", "className": "fast"},
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "labels": {"team": "infra"},
        "annotations": {"note": "x"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
    },
    "dashboard": {"enabled": True, "host": "ebbtide.lab.example", "tlsSecret": "web"},
    "supplies": {"a100": PILOTS, "spot": PILOTS | {"agent": ["--mps", "off"]}},
    "serviceAccount": {"annotations": {"a": "b"}},
}

pytestmark = pytest.mark.helm


def rendered(values: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """What Helm makes of the chart, object by object."""
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values, name=options.get("name", "lab"), namespace="research")
    parts = [one for name, text in files.items() if not name.endswith(".txt") for one in yaml.safe_load_all(text)]
    return [part for part in parts if part]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [found] = [one for one in objects if one["kind"] == kind]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "values",
    [{}, EVERYTHING, {"supplies": {"a100": PILOTS}, "priorityClass": {"create": False}}],
    ids=["defaults", "everything", "a class of one's own"],
)
def test_all_that_is_rendered_is_valid_in_the_strictest_sense(values, version):
    for one in rendered(values):
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pods_and_secrets_of_loans_are_as_valid(tmp_path, monkeypatch, version):
    monkeypatch.setattr("os.getuid", lambda: 10001)
    pods = supplier(tmp_path, "a100")
    kubernetes_validate.validate(pods.pod("a100-1", kept=False), version, strict=True)
    kubernetes_validate.validate(pods.secret("a100-1", "words", "uid"), version, strict=True)


def supplier(folder: Path, name: str) -> Kubernetes:
    """The supplier that the chart's supply.toml describes."""
    config = of_kind(rendered(EVERYTHING), "ConfigMap")["data"]
    (folder / "supply.toml").write_text(config["supply.toml"])
    borrowing = read(folder / "supply.toml", name)
    assert isinstance(borrowing.lender, PodOptions)
    return Kubernetes(borrowing, borrowing.lender, folder)


def test_a_supply_of_the_values_is_one_of_supply_toml(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 10001)
    pod = supplier(tmp_path, "a100").pod("a100-1", kept=False)
    spec, [container] = pod["spec"], pod["spec"]["containers"]
    assert (container["image"], spec["priorityClassName"]) == ("registry/ebbtide:1", "lab-pilots")
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["nodeSelector"] == PILOTS["pod"]["nodeSelector"]
    assert spec["tolerations"] == PILOTS["pod"]["tolerations"]
    assert spec["terminationGracePeriodSeconds"] == 65
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert "--shared-account" in container["command"]
    assert (
        "--shared-account"
        not in supplier(tmp_path, "spot").pod("spot-1", kept=False)["spec"]["containers"][0]["command"]
    )


def test_the_configuration_of_the_values_is_that_of_the_master(tmp_path):
    from ebbtide_master.config.file import read_config

    text = of_kind(rendered(EVERYTHING), "ConfigMap")["data"]["ebbtide.toml"]
    assert tomllib.loads(text) == EVERYTHING["master"]["config"]
    (tmp_path / "ebbtide.toml").write_text(text)
    read_config(tmp_path / "ebbtide.toml")


def test_suppliers_alone_have_a_token_and_may_read_no_secret():
    objects = rendered(EVERYTHING)
    pod = of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]
    with_token = {
        container["name"]
        for container in pod["containers"] + pod["initContainers"]
        if any(mount["name"] == "account" for mount in container["volumeMounts"])
    }
    assert (with_token, pod["automountServiceAccountToken"]) == ({"supply-a100", "supply-spot"}, False)
    rules = {rule["resources"][0]: rule["verbs"] for rule in of_kind(objects, "Role")["rules"]}
    assert rules["secrets"] == ["create"]
    assert not [one for one in rendered({}) if one["kind"] in ("Role", "RoleBinding", "PriorityClass")]


def test_the_master_is_reached_also_while_another_container_of_its_pod_fails():
    objects = rendered(EVERYTHING)
    assert len(of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]) > 1
    assert of_kind(objects, "Service")["spec"]["publishNotReadyAddresses"]


def test_no_container_is_root_or_can_become_it_or_write_to_its_image():
    pod = of_kind(rendered(EVERYTHING), "StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    for container in pod["containers"] + pod["initContainers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_a_pod_that_is_started_again_finds_its_directories_as_private_as_it_has_left_them():
    pod = of_kind(rendered({}), "StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"dashboard": {"enabled": True}}, "host"),
        ({"supplies": {"A_1": PILOTS}}, "A_1"),
        ({"supplies": {"a": {}}}, "max_nodes"),
        ({"mster": {}}, "mster"),
    ],
)
def test_values_that_cannot_be_are_refused_with_their_name(values, says):
    import helm_python

    with helm_python.Chart.load(CHART) as chart, pytest.raises(helm_python.HelmError, match=says):
        chart.validate_schema(values)


def test_helm_finds_nothing_to_say_about_the_chart():
    import helm_python

    found = helm_python.lint(CHART)
    assert not [one for one in found["messages"] if one["severity"] not in ("INFO", "info", 1)], found


def test_the_chart_is_of_this_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
