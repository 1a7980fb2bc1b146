"""Processes that touch what users control, in place of those that must not wait for it.

A task is a function of a module that needs nothing but the standard library, this package and the SDK. It gets plain
data, such as JSON has, and returns plain data. It runs in a process of its own, with the rights of the account whose
files it is about, a clean environment, no descriptors but those that it is given, and bounds of time and memory. When
it does not come back in time it is killed, nobody waits for its end, and the answer is `Unknown`.

asking.py    for processes with threads, such as the agent: a server with one thread forks for them
errand.py    for processes with one thread, such as a supervisor: they fork themselves, and wait in their own loop
worker.py    what they fork beforehand, where nobody is to wait for that: it stays for one errand after the other
"""
