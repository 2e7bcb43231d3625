"""The policy of a fleet on Slurm: accounts, associations and QOS through slurmrestd, the rest as advice.

Pure: `partitions` locates each supply, `names` names objects, `translate` makes the objects of a fleet,
`advice` lists what it needs and cannot have, `render` writes files for an administrator,
`import_` reads a hand-made policy. `records` converts between slurmrestd's records and fields. With I/O:
`read`, `write`, `activity` and `intervene`.
"""
