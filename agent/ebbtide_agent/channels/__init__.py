"""The node's end of channels: what a client reaches inside a job here. See channel.proto."""
