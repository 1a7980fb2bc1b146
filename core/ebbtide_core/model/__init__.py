"""Defines the values that all other packages use: identifiers, states, specs, constraints, settings and limits."""
