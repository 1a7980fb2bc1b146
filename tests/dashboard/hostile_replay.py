"""A simulator that says nothing but hostile texts: it fails under fifo, and has a result under other policies."""

import json
import sys

from tests.dashboard.hostile import CORPUS

SUMMARY = {"mean": 1.0, "p50": 1.0, "p95": 2.0, "p99": 2.0, "max": 3.0}


def report(policy: str) -> dict:
    of_class = {"jobs": 1, "waiting_s": SUMMARY, "flow_time_s": SUMMARY}
    return {
        "policy": policy, "jobs": 1, "finished": 1, "makespan_s": 1.0, "busy": 0.5, "preemptions": 1, "resizes": 0,
        "slowdown": {"te": SUMMARY, "be": SUMMARY, "all": SUMMARY}, "by_class": {"te": of_class, "be": of_class},
        "wasted_gpu_s": 60.0, "dropped": 1,
    }  # fmt: skip


def main() -> None:
    sys.stdin.read()
    for text in CORPUS:
        print(json.dumps({"words": text, "done": 0.5}), file=sys.stderr)
    if "fifo" in sys.argv:
        sys.exit(CORPUS[1])
    facts = {
        "live": report(CORPUS[0]), "simulated": [report(CORPUS[0])], "since": 0, "until": 60, "gpus": [1, 2],
        "restart_cost_s": 1.0, "skipped": dict.fromkeys(CORPUS, 1), "notes": list(CORPUS),
    }  # fmt: skip
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
