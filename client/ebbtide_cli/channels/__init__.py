"""The client's end of channels: terminals, tunnels and copies. See channel.proto."""
