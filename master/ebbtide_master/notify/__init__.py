"""Words about jobs on their way to people: what is said, how it is delivered, and what is not forgotten meanwhile."""
