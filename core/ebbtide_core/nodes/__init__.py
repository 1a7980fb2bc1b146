"""What becomes of nodes and their GPUs: health, silence, strays, draining, launch failures, booked GPUs."""
