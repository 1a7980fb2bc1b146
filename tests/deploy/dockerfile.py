"""A Dockerfile as data: the instructions of its stages."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction, such as COPY, with its words; what is written as a JSON list is those."""

    name: str
    words: list[str]
    is_list: bool


@dataclass
class Stage:
    """What follows one FROM."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        return [one for one in self.instructions if one.name == name]

    def the(self, name: str) -> list[str]:
        """The words of the instruction that comes once."""
        [only] = self.all(name)
        return only.words

    def environment(self) -> dict[str, str]:
        pairs = [word.partition("=") for one in self.all("ENV") for word in one.words]
        return {key: value for key, _, value in pairs}


def read(path: Path) -> tuple[dict[str, str], list[Stage]]:
    """The arguments before the first stage with their defaults, and the stages."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        is_list = rest.startswith("[")
        words = json.loads(rest) if is_list else shlex.split(rest)
        if name == "FROM":
            base, *named = words
            stages.append(Stage(base, named[1] if named else ""))
        elif not stages:
            assert name == "ARG", line
            arguments |= dict([rest.split("=", 1)])
        else:
            stages[-1].instructions.append(Instruction(name, words, is_list))
    return arguments, stages
