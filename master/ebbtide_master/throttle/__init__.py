"""How much of the master one user may take, so that all others are served as if that user were not there.

A call meets the limits in this order. Once it is known who asks, all that the call brings waits in a line of that user
(`fair_queue`). One more call, or stream, than the user may have open is refused, and one more than the master has room
for. A question, or a change with the jobs that it submits, that comes faster than the user may ask is refused with the
time to wait (`rates`). Of the calls that are left, a few of each user are worked on at a time, and their questions and
wishes take turns with those of others in the lines of the loop. A submit that would give its user too many unfinished
jobs is refused. What is told of jobs, in lists and streams, goes out page by page at a rate of its own. What needs a
copy of all jobs is done once at a time for each user, and users of a node share its channels and looks at its logs
(`places`).

`throttle.Throttle` holds what is counted for all calls.
"""
