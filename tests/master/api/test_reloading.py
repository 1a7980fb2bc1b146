"""The configuration, read again while everything goes on: what holds then, what has to wait, and mistakes."""

from dataclasses import replace

import grpc
import pytest
from ebbtide_core.cluster import Cluster
from ebbtide_core.model.log_rules import LogAction, LogRule
from ebbtide_core.model.quotas import Quota, Quotas
from ebbtide_core.model.settings import IdleSettings, PoolSettings, Settings
from ebbtide_core.model.types import WHOLE
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.digest import digest
from ebbtide_master.config.file import Config, read_config
from ebbtide_master.config.table import ConfigError
from ebbtide_protos.v1 import client_pb2, user_pb2

from tests.master.world import a_master, make_spec, refused


class File:
    """What the master reads."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()

    def __call__(self) -> Config:
        if self.config is None:
            raise ConfigError("ebbtide.toml: idle.after: 'soon' is not a duration")
        return self.config

    def change(self, **fields):
        self.config = replace(self.config, settings=replace(self.config.settings, **fields))


def quota(gpus):
    return Quotas(Quota(gpus * WHOLE, None))


async def reload(master):
    reply = await master.ask.Reload(user_pb2.ReloadRequest())
    return list(reply.changed), list(reply.needs_restart)


async def test_a_quota_counts_at_once_and_whoever_has_room_keeps_it(tmp_path):
    file = File()
    async with a_master(tmp_path, reread=file) as master:
        agent = await master.agent(gpus=4)
        jobs = [await master.running(agent) for _ in range(2)]
        file.change(quotas=quota(1))
        assert await reload(master) == (["quotas"], [])
        waits = await master.submit()
        assert (await master.show(waits)).reason == "ann has 2 of 1 GPUs of the quota"
        assert [(await master.show(job)).state for job in jobs] == [client_pb2.Job(state=3).state] * 2
        file.change(quotas=Quotas())
        assert await reload(master) == (["quotas"], [])
        assert (await agent.receive("launch")).job_id == waits


async def test_a_replay_goes_by_the_file_of_its_own_time_and_comes_to_the_same(tmp_path):
    file = File()
    async with a_master(tmp_path, reread=file) as master:
        await master.agent(gpus=2)
        file.change(quotas=quota(1))
        await reload(master)
        for _ in range(3):
            await master.submit()
        live = digest(master.cluster.state)
        for settings in (Settings(), Settings(quotas=quota(1)), Settings(quotas=quota(7))):
            again = Cluster(create_policy("fitgpp", {}), settings=settings)
            for line in master.store.events():
                again.replay(line.event, line.time)
            assert digest(again.state) == live


async def test_what_is_new_is_named_and_a_second_reading_finds_nothing(tmp_path):
    rule = LogRule("NCCL WARN", LogAction.NOTIFY)
    file = File()
    async with a_master(tmp_path, reread=file) as master:
        file.config = replace(file.config, log_rules=(rule,))
        file.change(idle=IdleSettings(after_s=60.0), idle_s=None)
        assert await reload(master) == (["idle", "sessions", "log_rules"], [])
        assert await reload(master) == ([], [])
        agent = await master.agent()
        await master.submit()
        assert [one.pattern for one in (await agent.receive("launch")).log_rules] == ["NCCL WARN"]
        assert master.cluster.state.settings.idle.after_s == 60.0
        [line] = [line for line in master.store.events() if type(line.event).__name__ == "ConfigurationRead"]
        assert line.event.sections == ("idle", "sessions", "log_rules")


async def test_pools_wait_for_a_restart_and_the_rest_does_not_wait_for_them(tmp_path):
    file = File()
    async with a_master(tmp_path, reread=file) as master:
        pools = {**file.config.settings.pools, "more": PoolSettings()}
        file.change(pools=pools, gpu_pool="more", quotas=quota(2))
        for _ in range(2):
            changed, later = await reload(master)
            assert later == ["pools", "gpu_pool"]
        assert changed == []
        assert master.cluster.state.settings.gpu_pool == "default"
        job = await master.submit()
        assert (await master.show(job)).pool == "default"


async def test_a_mistake_is_told_to_whoever_asked_and_changes_nothing(tmp_path, caplog):
    file = File()
    async with a_master(tmp_path, reread=file) as master:
        before, file.config = (master.cluster.state.settings, master.store.last_sequence), None
        code, words = await refused(master.ask.Reload(user_pb2.ReloadRequest()))
        assert (code, words) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "ebbtide.toml: idle.after: 'soon' is not a duration (nothing has changed)",
        )
        await master.service.reloading.on_signal()
        assert "nothing has changed: ebbtide.toml: idle.after" in caplog.text
        assert (master.cluster.state.settings, master.store.last_sequence) == before
        await master.ask.Submit(client_pb2.SubmitRequest(spec=make_spec(), user="ann"))


@pytest.mark.parametrize("text", ["[idle]\nafter = 'soon'", "[[", "[quotas.default]\ngpus = 'x'"])
def test_a_file_that_a_start_would_refuse_is_refused(tmp_path, text):
    path = tmp_path / "ebbtide.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"ebbtide.toml: "):
        read_config(path)


async def shown(master):
    return await master.ask.ShowSettings(user_pb2.ShowSettingsRequest())


async def test_what_a_reload_would_do_is_shown_beside_what_holds_and_nothing_changes(tmp_path):
    file = File()
    async with a_master(tmp_path, reread=file) as master:
        file.change(quotas=quota(1), pools={"default": PoolSettings(policy="fifo")})
        before = digest(master.cluster.state)
        reply = await shown(master)
        assert (list(reply.changed), list(reply.needs_restart), reply.problem) == (["quotas"], ["pools"], "")
        differ = {one.name: (one.value, one.in_file) for one in reply.settings if one.value != one.in_file}
        assert differ == {
            "pools.default.policy": ("fitgpp", "fifo"),
            "quotas.default.gpus": ("no limit", "1"),
        }
        assert digest(master.cluster.state) == before
        await reload(master)
        reply = await shown(master)
        assert (list(reply.changed), list(reply.needs_restart)) == ([], ["pools"])


async def test_a_mistake_in_the_file_is_shown_and_what_holds_as_well(tmp_path):
    file = File()
    async with a_master(tmp_path, reread=file) as master:
        file.config = None
        reply = await shown(master)
        assert reply.problem == "ebbtide.toml: idle.after: 'soon' is not a duration"
        assert {one.HasField("in_file") for one in reply.settings} == {False}
        assert "fitgpp" in [one.value for one in reply.settings]


async def test_quotas_in_use_and_the_journal_are_shown(tmp_path):
    file = File()
    async with a_master(tmp_path, reread=file) as master:
        agent = await master.agent(gpus=4)
        file.change(quotas=Quotas(Quota(2 * WHOLE, 5)))
        await reload(master)
        await master.running(agent)
        await master.submit()
        reply = await shown(master)
        (used,) = reply.quotas
        assert (used.user, used.gpus_used, used.gpus, used.unfinished, used.queued) == ("ann", 2.0, 2.0, 2, 5)
        assert (reply.journal.kind, reply.journal.has_room, reply.journal.damaged) == ("file", True, 0)
        assert reply.journal.last_sequence == master.store.last_sequence
        (last,) = master.store.newest(master.store.last_sequence + 1, limit=1)
        assert reply.journal.last_time == last.time > 0
