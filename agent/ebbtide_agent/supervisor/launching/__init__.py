"""Start the processes of an attempt: what they need, what is executed, and standbys that are ready to become them."""
