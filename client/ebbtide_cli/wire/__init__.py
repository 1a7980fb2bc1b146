"""Speaks gRPC on the master's UNIX socket without the gRPC library, which takes longer to load than a call takes."""
