"""Provides the folder for the PYTHONPATH of standby interpreters; Python finds only sitecustomize.py in it."""

from pathlib import Path

FOLDER = Path(__file__).parent
