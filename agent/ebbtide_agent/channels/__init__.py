"""Serves the node's end of channels, over which clients reach into jobs of this node. See channel.proto."""
