"""Defines the values that all others use: identifiers, states, specs, constraints, settings and limits."""
