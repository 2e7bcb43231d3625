"""The scheduler of the virtual engine: a discrete-event simulation of a cluster.

`simulator` is the entry point. `events` moves jobs through time; `scheduler` decides what starts next on one
supply, by its `accounting`, with `preemption` and `reservation`; `admission` decides what may be submitted;
`reasons` says why a job waits. The state is in `jobs`, `queues`, `quota` and `nodes`.
"""
