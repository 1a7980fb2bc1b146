"""Limits how much of the master one user takes, so that all others are served as if that user were not there.

A call meets the limits in this order. Once its user is known, all work that the call brings waits in a queue of that
user (`fair_queue`). A call or stream is refused if the user, or the master, has too many open already. A question, or a
change with the jobs that it submits, that comes faster than the user may ask is refused with the time to wait
(`rates`). A few of each user's other calls are worked on at a time, and their questions and requests take turns with
those of other users in the queues of the loop. A submit that would give its user too many unfinished jobs is refused.
Lists and streams of jobs are sent page by page, at a rate of their own. Calls that need a copy of all jobs run one at a
time for each user, and the users of a node share its channels and reads of its logs (`places`).

`throttle.Throttle` holds what is counted for all calls.
"""
