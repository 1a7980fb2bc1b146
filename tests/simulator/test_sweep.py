"""Sweeps on a Dask cluster give what they give here."""

from dataclasses import replace
from pathlib import Path

import pytest
from ebbtide_core.policies.registry import PolicyError
from ebbtide_sim.setup import Setup
from ebbtide_sim.sweep import combine, in_processes, on_dask
from ebbtide_sim.workload import WorkloadError

from tests.late import distributed

BASE = Setup(workload="bags", limit=60, nodes="1x4")


def test_a_real_dask_cluster_runs_the_same_sweep(tmp_path: Path) -> None:
    sweep = combine(BASE, [("policy", ("fifo", "fitgpp")), ("seed", ("0", "1"))])
    setups = [setup for _, setup in sweep.runs]
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        dashboard_address="127.0.0.1:0",
        host="127.0.0.1",
        protocol="tcp",
        local_directory=str(tmp_path),
    ) as cluster:
        there = dict(on_dask(cluster.scheduler_address)(setups))
    here = dict(in_processes(1)(setups))
    assert [without_wall(there[i]) for i in range(4)] == [without_wall(here[i]) for i in range(4)]


def without_wall(report):
    return replace(report, sim_wall_s=0.0)


def test_options_go_to_the_policies_that_know_them() -> None:
    sweep = combine(replace(BASE, options={"s": "2"}), [("policy", ("fitgpp", "fifo"))])
    assert [dict(setup.options) for _, setup in sweep.runs] == [{"s": "2"}, {}]


def test_the_seed_is_also_that_of_a_policy_that_draws() -> None:
    sweep = combine(replace(BASE, policy="rand"), [("seed", ("1", "2"))])
    assert [dict(setup.scenario().options) for _, setup in sweep.runs] == [{"seed": "1"}, {"seed": "2"}]
    assert replace(BASE, policy="rand", options={"seed": "3"}, seed=1).scenario().options == {"seed": "3"}
    assert replace(BASE, policy="fifo", seed=1).scenario().options == {}


def test_nodes_are_not_varied_beside_a_file_that_has_them() -> None:
    with pytest.raises(WorkloadError, match="--sweep: nodes are those of --cluster"):
        combine(replace(BASE, cluster="nodes.csv"), [("nodes", ("1x4", "2x4"))])


def test_an_option_of_none_of_the_policies_is_refused() -> None:
    with pytest.raises(PolicyError, match="'s' is no option of fifo"):
        combine(replace(BASE, policy="fifo"), [("s", ("0", "4"))])
