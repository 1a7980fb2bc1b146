"""The attempts on a node as its agent sees them: launched, adopted, stopped, recovered and forgotten."""
