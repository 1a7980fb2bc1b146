"""The dashboard: a process of its own that shows a cluster in a browser, and is a client of the master.

It decides nothing about who may do what: what is private, and every change, goes to the master with the token of the
person who asks. What everybody may see comes over one stream for all viewers.
"""
