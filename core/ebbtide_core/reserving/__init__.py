"""Computes reservations for jobs of unknown length (Aupy, Gainaru, Honoré, Raghavan, Robert and Sun; seed 002).

A job asks for t_1 seconds; if it has not ended by then, it asks for t_2 > t_1, and so on. The sequence that costs least
is computed from what is known of run times: a distribution, or the run times of earlier runs.
"""
