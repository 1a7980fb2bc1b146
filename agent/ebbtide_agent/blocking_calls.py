"""Makes calls that may block for ever, such as the driver's, on threads that nothing has to wait for."""

from ebbtide_protos.threads import on_daemon_thread as in_thread

__all__ = ["in_thread"]
