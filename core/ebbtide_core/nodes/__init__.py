"""Follows nodes and their GPUs: health, silence, strays, drains, failed launches, booked GPUs."""
