"""Read, follow and print what jobs have printed."""
