"""What Prometheus reads, and the rules that it may raise alarms by."""

import asyncio
import re
import time
import urllib.request
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import yaml
from ebbtide_master.config.file import read_config
from ebbtide_master.config.table import ConfigError
from ebbtide_master.metrics.exporter import MetricsPortError, exported
from ebbtide_master.metrics.states import look
from ebbtide_protos.v1 import agent_pb2, client_pb2
from prometheus_client.parser import text_string_to_metric_families

from tests.docs.pages import REPOSITORY
from tests.master.world import DEADLINE_S, FREED, RUNNING, STEPPED_ASIDE, Master, a_master

RULES = REPOSITORY / "deploy/prometheus/alerts.yml"
WORDS = {"absent", "and", "by", "changes", "histogram_quantile", "increase", "job", "max", "on", "or", "pool", "rate"}
WORDS |= {"last_over_time", "time", "unless", "up"}
"""Of Prometheus' own language, and labels and metrics, in the rules' expressions."""


def read_at(master: Master, port: int = 0) -> AbstractAsyncContextManager[int]:
    """A page of ``master``; 0 is any free port."""
    return exported(master.service.loop, master.service.context.clock, master.store, None, port)


async def read(port: int) -> dict[str, float]:
    """The page: values by name with labels."""

    def page() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.read().decode()

    text = await asyncio.to_thread(page)
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_states_and_sums_are_told_and_no_names_of_users_or_jobs(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master, read_at(master) as port:
        agent = await master.agent("n1", 2)
        job = await master.running(agent, name="secret-name")
        await master.submit(gpus=2, name="secret-name")
        seen = await read(port)
        assert seen["ebbtide_jobs pool=default state=running"] == 1
        assert seen["ebbtide_jobs pool=default state=pending"] == 1
        assert seen["ebbtide_gpus pool=default state=allocated"] == 1
        assert seen["ebbtide_gpus pool=default state=idle"] == 1
        assert seen["ebbtide_nodes pool=default state=up"] == seen["ebbtide_node_up node=n1"] == 1
        assert seen["ebbtide_jobs_submitted_total pool=default"] == 2
        assert seen["ebbtide_wait_seconds_count pool=default"] == 1
        assert seen["ebbtide_pass_seconds_count"] > 0
        assert seen["ebbtide_journal_commit_seconds_count"] > 0
        assert seen["ebbtide_store_free_bytes"] > 0
        await master.ask.Suspend(client_pb2.JobRequest(job_id=job))
        await agent.receive("stop")
        await agent.report(job, 1, FREED, exit=STEPPED_ASIDE)
        await master.becomes(job, "SUSPENDED")
        await agent.send(heartbeat=agent_pb2.Heartbeat(gpus=[agent_pb2.GpuReading(uuid="n1-1", healthy=False)]))
        async with asyncio.timeout(DEADLINE_S):
            while "GpuHealthChanged" not in await master.kinds():
                await asyncio.sleep(0.005)
        after = await read(port)
        assert after["ebbtide_suspensions_total checkpoint=yes pool=default"] == 1
        assert after["ebbtide_gpus pool=default state=unhealthy"] == 1
        assert not any("secret" in name or "ann" in name for name in after)
        agent.vanish()
        await master.until_node("n1", "down")
        assert (await read(port))["ebbtide_node_up node=n1"] == 0


async def test_after_the_machine_slept_a_wait_is_told_by_the_clock_by_which_it_began(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master, read_at(master) as port:
        master.slept(8 * 3600.0)
        await master.submit(gpus=1)
        assert 0.0 <= (await read(port))["ebbtide_oldest_wait_seconds pool=default"] < 3600.0


async def test_certificates_are_told_of_nodes_that_are_there_and_of_no_others(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master:
        await master.agent("n1", 1)
        ends = {("authority", ""): 3.0, ("master", ""): 2.0, ("node", "n1"): 1.0}
        seen = look(master.cluster, time.time(), tmp_path, ends | {("node", "loan-7"): 1.0}, "0")
        assert seen.certificates == ends


async def test_preemptions_and_ends_are_counted_once(tmp_path: Path) -> None:
    async with a_master(tmp_path, "priority") as master, read_at(master) as port:
        agent = await master.agent("n1", 1)
        low = await master.running(agent)
        high = await master.submit(priority=1)
        assert (await agent.receive("stop")).job_id == low
        await agent.report(low, 1, FREED, exit=STEPPED_ASIDE)
        assert (await agent.receive("launch")).job_id == high
        await agent.report(high, 1, RUNNING)
        await agent.report(high, 1, FREED)
        await master.becomes(high, "COMPLETED")
        seen = await read(port)
        assert seen["ebbtide_preemptions_total pool=default"] == 1
        assert seen["ebbtide_jobs_ended_total pool=default state=completed"] == 1
        assert seen["ebbtide_suspensions_total checkpoint=yes pool=default"] == 1


async def test_every_metric_in_the_rules_is_one_that_is_told(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master, read_at(master) as port:
        await master.agent("n1", 1)
        known = {name.split()[0] for name in await read(port)}
    # Counters with labels appear with their first count, and certificates with TLS.
    known |= {"ebbtide_suspensions_total", "ebbtide_certificate_end_seconds"}
    expressions = re.findall(r"^ +expr: (.+)$", RULES.read_text(), re.MULTILINE)
    assert len(expressions) == len(re.findall(r"- alert: Ebbtide\w+$", RULES.read_text(), re.MULTILINE)) >= 6
    for expression in expressions:
        bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", "", expression)
        assert set(re.findall(r"[a-z_]{2,}", bare)) <= known | WORDS, expression


def test_a_master_is_missed_in_each_cluster_that_one_prometheus_reads_and_no_standby_is() -> None:
    expressions = {rule["alert"]: rule["expr"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
    of_each, of_all = expressions.pop("EbbtideMasterAway").split(" or on () ")  # never both for one cluster
    seen, answers = of_each.strip("()").split(" unless on (job) ")
    assert seen.startswith("max by (job) (last_over_time(up{"), "a machine that ended has no `up` any more"
    assert (answers, of_all) == ('up{job=~"ebbtide.*"} == 1', "absent(ebbtide_master_epoch)")
    assert not any(re.search(r"\bup\b", expression) for expression in expressions.values())


async def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    async with a_master(tmp_path) as master, read_at(master) as port:
        with pytest.raises(MetricsPortError, match=f"--metrics-port {port}: "):
            async with read_at(master, port):
                pass


@pytest.mark.parametrize("text", ["port = -2", "port = 70000", 'port = "9317"', "host = '0.0.0.0'"])
def test_the_table_takes_a_port_and_nothing_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ebbtide.toml"
    path.write_text(f"[metrics]\n{text}\n")
    with pytest.raises(ConfigError, match=r"metrics\."):
        read_config(path)
    path.write_text("[metrics]\nport = 9317\n")
    assert read_config(path).metrics_port == 9317
