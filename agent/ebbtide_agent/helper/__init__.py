"""Runs tasks that touch what users control in helper processes, for processes that must not be held up by users.

A task is a function of a module that needs nothing but the standard library, this package and the SDK. It gets plain
data, such as JSON has, and returns plain data. It runs in a process of its own, with the rights of the account whose
files it touches, a clean environment, no descriptors but those that it is given, and bounds of time and memory. If it
does not come back in time it is killed, no process waits for its end, and the answer is `NoAnswer`.

asking.py    for processes with threads, such as the agent: a server with one thread forks for them
task.py      for processes with one thread, such as a supervisor: they fork themselves, and wait in their own loop
worker.py    a process that is forked in advance, so that no task waits for that; it stays for one after the other
"""
