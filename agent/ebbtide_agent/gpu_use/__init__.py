"""Who uses a node's GPUs: attribution, the proof that they are free, telemetry, and what is out of bounds."""
