"""What `ebb --json` prints against what docs/schema.json says that it prints."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA = Path(__file__).resolve().parents[1] / "docs" / "schema.json"


@cache
def published() -> dict[str, Any]:
    """The whole schema."""
    schema: dict[str, Any] = json.loads(SCHEMA.read_text())
    Draft202012Validator.check_schema(schema)
    return schema


@cache
def _validator(verb: str) -> Draft202012Validator:
    schema = published()
    assert verb in schema["verbs"], f"docs/schema.json does not say what ebb {verb} --json prints"
    return Draft202012Validator({"$ref": f"#/verbs/{verb}", "$defs": schema["$defs"], "verbs": schema["verbs"]})


def check_json(arguments: tuple[str, ...], out: str) -> None:
    """Fail unless what ``ebb ARGUMENTS`` printed is as published, if it was asked for JSON and printed any."""
    if "--json" not in arguments[: arguments.index("--") if "--" in arguments else None] or not out.strip():
        return
    try:
        documents = [json.loads(out)]
    except ValueError:  # one per line
        documents = [json.loads(line) for line in out.splitlines()]
    for document in documents:
        for error in _validator(arguments[0]).iter_errors(document):
            where = "/".join(str(step) for step in error.absolute_path)
            raise AssertionError(f"ebb {' '.join(arguments)}: {where}: {error.message[:500]}")
