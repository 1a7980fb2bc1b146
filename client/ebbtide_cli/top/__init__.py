"""``ebb top``: what is fetched, how it is drawn, and the terminal that it is drawn on."""
