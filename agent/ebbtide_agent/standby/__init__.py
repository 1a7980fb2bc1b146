"""A folder for the PYTHONPATH of interpreters that are held ready; there is nothing in it but sitecustomize.py."""

from pathlib import Path

FOLDER = Path(__file__).parent
