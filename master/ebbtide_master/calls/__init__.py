"""What every call passes before its method: the edge, admission, and the gate that checks who asks."""
