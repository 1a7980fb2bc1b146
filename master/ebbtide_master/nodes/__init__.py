"""Holds the agents' streams: takes in the reports and questions of nodes, and sends them orders and answers."""
