"""What every call passes before its method: the edge, the guard, and the gate that checks who asks."""
