"""Links the agent to its master: it joins, keeps its membership, opens the stream, and carries out the orders."""
