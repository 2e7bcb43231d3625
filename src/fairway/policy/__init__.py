"""Compute what a policy changes on a cluster: wanted against found objects, with safety limits. Pure.

`objects` defines the values, `plan` computes changes, their order and what needs `--force`, `fleet_diff`
describes a change of the fleet file in its own terms. Each engine's translation of a fleet is in
`engines/*/policy`.
"""
