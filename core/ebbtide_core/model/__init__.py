"""The values that all others speak of: identifiers, states, specs, constraints, settings and limits."""
