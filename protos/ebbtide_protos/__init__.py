"""Ebbtide's wire protocol (gRPC), one sub-package per protocol version."""
