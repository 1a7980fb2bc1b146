"""Every method of every service that there is, from its descriptor, as something to call."""

import asyncio
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import ebbtide_protos.v1
import grpc
from google.protobuf.message_factory import GetMessageClass

REFUSED_WHILE_WRITING = "Internal error from Core"
"""All that gRPC says if a stream was refused while its first message was on its way."""


@dataclass(frozen=True)
class Method:
    """One method; ``path`` is how gRPC names it."""

    path: str
    descriptor: Any

    @property
    def name(self) -> str:
        return str(self.descriptor.name)

    def request(self, **fields: Any) -> Any:
        """A request with those of these fields that it has."""
        kind: Any = GetMessageClass(self.descriptor.input_type)
        return kind(**{name: value for name, value in fields.items() if name in kind.DESCRIPTOR.fields_by_name})

    async def call(self, channel: grpc.aio.Channel, request: Any, token: str | None, seconds: float = 10.0) -> Any:
        """The first reply; `AioRpcError` if there is none."""
        metadata = () if token is None else (("authorization", token),)
        reply: Any = GetMessageClass(self.descriptor.output_type)
        coding = {
            "request_serializer": lambda message: message.SerializeToString(),
            "response_deserializer": reply.FromString,
        }
        async with asyncio.timeout(seconds):
            while self.descriptor.client_streaming:
                call: Any = channel.stream_stream(self.path, **coding)(iter([request]), metadata=metadata)
                try:
                    return await anext(aiter(call))
                except grpc.aio.AioRpcError as error:
                    if error.details() != REFUSED_WHILE_WRITING:
                        raise
            if self.descriptor.server_streaming:
                return await anext(aiter(channel.unary_stream(self.path, **coding)(request, metadata=metadata)))
            return await channel.unary_unary(self.path, **coding)(request, metadata=metadata)


def all_methods() -> Iterator[Method]:
    """Of all services in `ebbtide_protos.v1`."""
    for module in pkgutil.iter_modules(ebbtide_protos.v1.__path__):
        if module.name.endswith("_pb2"):
            file = import_module(f"ebbtide_protos.v1.{module.name}").DESCRIPTOR
            for service in file.services_by_name.values():
                yield from (Method(f"/{service.full_name}/{method.name}", method) for method in service.methods)
