"""Runs the checks of ``python -m ebbtide_agent.doctor NAME...`` on the subject that stdin describes.

They run in a process of their own, because a driver or a network disk may hang the process that asks. JSON lines on
standard output tell which check begins, and what each one found.
"""

import json
import sys
from typing import Any

from ebbtide_agent.doctor.finding import problem
from ebbtide_agent.doctor.probes import BY_NAME, Known
from ebbtide_agent.doctor.subject import Subject


def main(names: list[str]) -> None:
    subject, known = Subject.from_json(json.load(sys.stdin)), Known()
    for name in names:
        _tell({"begins": name})
        try:
            for finding in BY_NAME[name].run(subject, known):
                _tell({"found": finding.to_json()})
        except Exception as error:  # noqa: BLE001 - one check that cannot be made must not hide the others
            text = f"could not be checked: {type(error).__name__}: {error}"
            _tell({"found": problem(name, text, "see to what it says, and ask again").to_json()})


def _tell(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)  # noqa: T201 - it is what the parent reads


if __name__ == "__main__":
    main(sys.argv[1:])
