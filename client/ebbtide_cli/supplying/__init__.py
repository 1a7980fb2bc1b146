"""Borrow nodes from another scheduler: read what is to be borrowed, ask the lender, and say so to the master."""
