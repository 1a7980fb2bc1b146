"""Links the agent to its master: joining, membership, the stream, and the orders that come over it."""
