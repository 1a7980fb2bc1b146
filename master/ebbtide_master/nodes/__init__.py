"""Holds the streams of agents: takes in what nodes report and ask, and sends them what they are to do."""
