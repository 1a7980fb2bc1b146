"""How tasks are to be compared, as it is written and shown."""

import pytest
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.client.scripted_master import make_job


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("min-steps=100,max-steps=1600", {"metric": "loss", "eta": 4, "min_steps": 100, "max_steps": 1600}),
        (
            "metric=val/acc,mode=max,eta=3,min-steps=1,max-steps=2",
            {"metric": "val/acc", "maximise": True, "eta": 3, "min_steps": 1, "max_steps": 2},
        ),
    ],
)
def test_what_is_asked_for_is_sent(ebb, master, text, sent):
    assert ebb("submit", "--asha", text, "--", "train.py").code == 0
    assert master.sent("Submit")[-1].spec.asha == job_pb2.Asha(**sent)
    ebb("submit", "--", "train.py")
    assert not master.sent("Submit")[-1].spec.HasField("asha")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is none of metric=, mode=, eta=, min-steps=, max-steps="),
        ("eta=4", "min-steps= is needed"),
        ("min-steps=100", "max-steps= is needed"),
        ("min-steps=100,max-steps=soon", "max-steps takes a whole number, not 'soon'"),
        ("min-steps=100,max-steps=50", "max-steps: 50 is not more than min-steps, 100, and at most 1000000000000000"),
        ("min-steps=1,max-steps=9,mode=best", "mode is min or max, not 'best'"),
        ("min-steps=1,max-steps=9,eta=1", "eta: 1 is not between 2 and 100"),
        ("min-steps=1,max-steps=9,metric=", "metric: has no name"),
    ],
)
def test_what_makes_no_sense_is_refused_before_it_is_sent(ebb, master, text, complaint):
    result = ebb("submit", "--asha", text, "--", "train.py")
    assert (result.code, result.complaint, master.sent("Submit")) == (2, f"submit: --asha: {complaint}", [])


def test_it_is_shown(ebb, master):
    job = make_job()
    job.spec.asha.CopyFrom(job_pb2.Asha(metric="loss", eta=4, min_steps=100, max_steps=1600))
    job.rungs.extend([client_pb2.RungResult(steps=100, value=0.5), client_pb2.RungResult(steps=400)])
    master.add(job)
    facts = {"metric": "loss", "mode": "min", "eta": 4, "min-steps": 100, "max-steps": 1600}
    assert ebb("show", "17", "--json").json["asha"] == facts
    assert ebb("show", "17", "--json").json["rungs"] == [{"steps": 100, "value": 0.5}, {"steps": 400, "value": None}]
    assert "0.5 at 100 steps, no number at 400 steps" in ebb("show", "17").out
    assert "metric loss, mode min, eta 4, min-steps 100, max-steps 1600" in ebb("show", "17").out
