"""The agents' side of the master: their streams, and what nodes tell, ask and are sent."""
