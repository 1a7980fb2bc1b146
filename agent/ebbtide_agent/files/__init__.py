"""Handles files of jobs on a node: copies checkpoints, makes working directories, and clears away what is left."""
