"""Two users and an operator on one cluster, each through `ebb` with a token of their own."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, Result, wait_for
from tests.e2e.conftest import a_home

pytestmark = pytest.mark.slow
SLEEPS = ("--cpu-only", "--hold", "--", "sleep", "600.25")
"""A job that never starts: as whom it would run is another test's business."""


class Person:
    """Somebody with a configuration folder of their own, and no home of the master's."""

    def __init__(self, cluster: Cluster, name: str, folder: Path) -> None:
        self.own = Cluster(folder)
        del self.own.environment["EBB_HOME"]  # while that is set, the last login does not count
        self.own.environment["HOME"] = str(folder)
        self.name, self.cluster = name, cluster

    def login(self, *options: str) -> None:
        """As an admin has them do it."""
        token = self.cluster.ebb("token", "create", "--user", self.name, *options).out
        self.pipe(token, "login", self.address)

    @property
    def address(self) -> str:
        return f"unix:{self.cluster.home}"

    def pipe(self, text: str, *arguments: str, code: int = 0) -> Result:
        """`ebb` with this on its standard input."""
        return self.own.ebb(*arguments, code=code, text=text)

    def ebb(self, *arguments: str, code: int = 0) -> Result:
        return self.own.ebb(*arguments, code=code)


@pytest.fixture
def people(tmp_path: Path) -> Iterator[tuple[Cluster, dict[str, Person]]]:
    with a_home() as cluster:
        cluster.up("none")
        people = {}
        for name, role in {"ann": "user", "bob": "user", "olga": "operator"}.items():
            cluster.add_user(name, role)
            people[name] = Person(cluster, name, tmp_path / name)
            people[name].login()
        yield cluster, people


def test_users_have_their_own_jobs_operators_everybodys_and_who_is_removed_is_out_at_once(people):
    cluster, persons = people
    ann, bob, olga = (persons[name] for name in ("ann", "bob", "olga"))
    job = ann.ebb("submit", *SLEEPS).out.strip()

    refusals = {verb: bob.ebb(verb, job, code=3).err for verb in ("cancel", "suspend", "hold", "logs", "requeue")}
    assert set(refusals.values()) == {f"ebb: job {job} is ann's, not bob's\n"}
    assert "is ann's" in bob.ebb("exec", job, "--", "true", code=125).err
    seen = json.loads(bob.ebb("show", job, "--json").out)
    assert (seen["user"], seen["state"], seen["command"], seen["workdir"]) == ("ann", "PENDING", [], "")
    assert json.loads(ann.ebb("show", job, "--json").out)["command"] == ["sleep", "600.25"]
    assert "600.25" not in bob.ebb("events", "--json").out + bob.ebb("story", job).out + bob.ebb("ls", "--json").out
    for words in (
        "ls",
        "top --once",
        f"explain {job}",
        f"show {job}",
        "usage",
        "nodes",
        "reservations",
    ):
        assert "600.25" not in bob.ebb(*words.split()).out, words
    assert bob.ebb("user", "add", "eve", code=3).err == "ebb: adding users is for admins: bob is user\n"

    olga.ebb("set", job, "--priority", "7")
    following = ann.own.start("events", "--follow")
    assert "master started" in following.stdout.readline()
    cluster.ebb("user", "remove", "ann")
    assert "is not one of this cluster" in ann.ebb("ls", code=3).err
    _, words = following.communicate(timeout=20)
    assert (following.returncode, words) == (3, "ebb: user ann does not exist any more\n"), "a stream ends, too"
    assert [cluster.show(job)[key] for key in ("state", "user", "priority")] == ["PENDING", "ann", 7]
    olga.ebb("cancel", job)
    assert cluster.show(job)["state"] == "CANCELLED"


def test_a_login_says_who_one_is_and_is_forgotten_with_its_token(people):
    _, persons = people
    ann = persons["ann"]
    facts = json.loads(ann.ebb("whoami", "--json").out)
    assert (facts["name"], facts["role"], facts["master"]) == ("ann", "user", ann.address)
    logins = ann.own.home / "config" / "ebbtide" / "logins.json"
    assert (logins.stat().st_mode & 0o777, logins.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    short = ann.ebb("token", "create", "--expires", "3d", "--label", "laptop").out
    assert "expires" not in ann.ebb("whoami").err
    ann.pipe(short, "login", ann.address)
    assert "in 3 days" in ann.ebb("whoami").err
    assert ann.ebb("token", "create", "--user", "bob", code=3).err.startswith("ebb: tokens of others are an admin's")
    ann.ebb("logout", "--revoke")
    assert "EBB_HOME" in ann.ebb("ls", code=3).err
    assert "is not one of this cluster" in ann.pipe(short, "login", ann.address, code=3).err
    assert "neither an invitation" in ann.pipe("hello", "login", ann.address, code=2).err
    assert json.loads(logins.read_text()) == {}


def test_users_are_imported_and_the_configuration_is_read_again(people, tmp_path):
    cluster, persons = people
    users = tmp_path / "users.csv"
    users.write_text("name,account,uid,role\nann,a.smith,1003,\nzoe,,1004,operator\n")
    first = cluster.facts("user", "import", str(users), "--dry-run")
    assert [(one["name"], one["change"]) for one in first] == [("ann", "changed"), ("zoe", "added")]
    assert "zoe" not in [user["name"] for user in cluster.facts("user", "ls")]
    assert cluster.facts("user", "import", str(users)) == first
    again = cluster.facts("user", "import", str(users))
    assert [(one["name"], one["role"], one["uid"], one["change"]) for one in again] == [
        ("ann", "user", 1003, "unchanged"), ("zoe", "operator", 1004, "unchanged"),
    ]  # fmt: skip
    file = cluster.home / "ebbtide.toml"
    file.write_text("[quotas.default]\nqueued = -1\n")
    assert "quotas.default.queued: -1 is less than 0" in cluster.ebb("master", "reload", code=2).err
    file.write_text("[quotas.default]\nqueued = 0\n[pools.more]\n")
    assert cluster.facts("master", "reload") == {"changed": ["quotas"], "needs_restart": ["pools"]}
    assert "over the limit of 0" in persons["bob"].ebb("submit", *SLEEPS, code=1).err
    file.write_text("")
    cluster.daemon("master").send_signal(1)
    wait_for("the quota is gone", lambda: persons["bob"].own.ebb("submit", *SLEEPS, code=None).code == 0)
    assert "configuration read again: quotas changed" in cluster.ebb("events").out
    assert os.getuid() == (cluster.home / "master.json").stat().st_uid
