"""Puts the services for clients together, so that gRPC calls each method of the protocol in the service that has it."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final, cast

from ebbtide_protos.v1 import client_pb2, client_pb2_grpc
from google.protobuf.descriptor import MethodDescriptor

from ebbtide_master.api.arrays import ArrayService
from ebbtide_master.api.board import BoardService
from ebbtide_master.api.channels import ChannelService
from ebbtide_master.api.cluster import ClusterService
from ebbtide_master.api.context import Context
from ebbtide_master.api.explaining import ExplanationService
from ebbtide_master.api.identity import IdentityService
from ebbtide_master.api.job_changes import JobChangeService
from ebbtide_master.api.journal import JournalService
from ebbtide_master.api.listings import ListingService
from ebbtide_master.api.logs import LogService
from ebbtide_master.api.membership import MembershipService
from ebbtide_master.api.nodes import NodeService
from ebbtide_master.api.notices import NoticeService
from ebbtide_master.api.reloading import ReloadService
from ebbtide_master.api.reservations import ReservationService
from ebbtide_master.api.snapshots import SnapshotService
from ebbtide_master.api.submissions import SubmissionService
from ebbtide_master.api.timeline import TimelineService
from ebbtide_master.api.usage import UsageService

METHODS: Final[Mapping[str, MethodDescriptor]] = client_pb2.DESCRIPTOR.services_by_name["ClientService"].methods_by_name

_OF_CONTEXT: Final[tuple[Callable[[Context], object], ...]] = (
    ArrayService, BoardService, ChannelService, ClusterService, ExplanationService, IdentityService, JobChangeService,
    JournalService, ListingService, LogService, MembershipService, NodeService, NoticeService, ReservationService,
    SnapshotService, SubmissionService, TimelineService, UsageService,
)  # fmt: skip


def client_services(master: Context, reloading: ReloadService) -> list[object]:
    """Return one service for each area."""
    return [*(service(master) for service in _OF_CONTEXT), reloading]


def servicer(services: Iterable[object]) -> client_pb2_grpc.ClientServiceServicer:
    """Return what gRPC calls. Raises `LookupError` unless each method has one handler, and each handler a method."""
    handlers = dict[str, Callable[..., Any]]()
    for service in services:
        for name, handler in inspect.getmembers(service, callable):
            if not name[0].isupper():
                continue
            if name in handlers or name not in METHODS:
                raise LookupError(f"{type(service).__name__}.{name}: there is no such method, or it has a handler")
            if inspect.isasyncgenfunction(handler) is not METHODS[name].server_streaming:
                raise LookupError(f"{type(service).__name__}.{name}: only one of handler and method is a stream")
            handlers[name] = handler
    if missing := sorted(METHODS.keys() - handlers.keys()):
        raise LookupError(f"no service has {', '.join(missing)}")
    return cast("client_pb2_grpc.ClientServiceServicer", SimpleNamespace(**handlers))
