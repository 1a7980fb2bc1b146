"""The agent's attempts: it launches, adopts, stops, recovers and forgets them."""
