"""What the package asks of its installer is what its generated code asks when it is imported."""

import re
import tomllib
from pathlib import Path

from ebbtide_protos.v1 import client_pb2, client_pb2_grpc

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def required(name: str) -> str:
    """The lower bound of a dependency."""
    dependencies = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    (bound,) = (text.removeprefix(f"{name}>=") for text in dependencies if text.startswith(f"{name}>="))
    return bound


def test_no_grpcio_is_accepted_that_the_generated_code_would_refuse():
    assert required("grpcio") == client_pb2_grpc.GRPC_GENERATED_VERSION


def test_no_protobuf_is_accepted_that_the_generated_code_would_refuse():
    source = Path(client_pb2.__file__).read_text()
    checked = re.search(r"Domain\.PUBLIC,\s*(\d+),\s*(\d+),\s*(\d+),", source)
    assert checked
    assert required("protobuf") == ".".join(checked.groups())
