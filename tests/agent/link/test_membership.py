"""Which masters may give orders to a node."""

import pytest
from ebbtide_agent.link import membership
from ebbtide_agent.link.membership import Membership, WelcomeRefused
from ebbtide_protos.v1.agent_pb2 import Welcome

NEW = Membership()
MEMBER = Membership("c1", 5)


@pytest.mark.parametrize(
    ("before", "welcome", "has_attempts", "after"),
    [
        pytest.param(NEW, ("c1", 3), False, Membership("c1", 3), id="a new node joins the first cluster it meets"),
        pytest.param(NEW, ("c1", 3), True, Membership("c1", 3), id="even with attempts, which can only be of it"),
        pytest.param(MEMBER, ("c1", 5), True, MEMBER, id="the same master again"),
        pytest.param(MEMBER, ("c1", 6), True, Membership("c1", 6), id="its successor"),
        pytest.param(MEMBER, ("c2", 1), False, Membership("c2", 1), id="another cluster when nothing is here"),
    ],
)
def test_a_welcome_is_accepted_from(before, welcome, has_attempts, after):
    assert before.admit(Welcome(cluster_id=welcome[0], epoch=welcome[1]), has_attempts) == after


@pytest.mark.parametrize(
    ("before", "welcome", "has_attempts", "reason"),
    [
        pytest.param(MEMBER, ("c1", 4), False, "epoch 4 is older than 5", id="an older master"),
        pytest.param(MEMBER, ("c2", 9), True, "attempts of cluster c1", id="another cluster while attempts are here"),
        pytest.param(MEMBER, ("", 9), False, "names no cluster", id="a master without a cluster"),
        pytest.param(NEW, ("", 9), False, "names no cluster", id="even to a new node"),
    ],
)
def test_a_welcome_is_refused_from(before, welcome, has_attempts, reason):
    with pytest.raises(WelcomeRefused, match=reason):
        before.admit(Welcome(cluster_id=welcome[0], epoch=welcome[1]), has_attempts)


def test_a_membership_is_read_back_as_it_was_written(tmp_path):
    path = tmp_path / "cluster.json"
    assert membership.load(path) == Membership()
    membership.store(path, MEMBER)
    assert membership.load(path) == MEMBER
    assert [entry.name for entry in tmp_path.iterdir()] == ["cluster.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"cluster_id": 1, "epoch": 1}', '{"cluster_id": "c1"}'])
def test_a_damaged_membership_is_not_taken_for_a_new_node(tmp_path, content):
    path = tmp_path / "cluster.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"cluster\.json"):
        membership.load(path)
