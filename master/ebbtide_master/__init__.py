"""The master: gRPC service, one event loop around the core, and its journal."""
