"""Jobs that share a GPU: through an MPS server of NVIDIA's where there can be one, else by time-slicing.

`control` speaks to the control daemon of one GPU, `daemon` starts and ends it with its server, `sharing` decides how
the jobs on each GPU share it and watches over the servers, and `environment` is what they are given.
"""
