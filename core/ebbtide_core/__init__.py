"""The pure core: model, events, commands, the cluster state machine and the policies. No I/O, no clock, no await."""
