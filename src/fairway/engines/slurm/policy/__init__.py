"""A fleet's policy on Slurm: accounts, associations and QOS through slurmrestd, the rest as advice.

`sites` says where each supply is, `names` what objects are called, `wanted` what a fleet means, `notices` and
`settings` what it needs and cannot have, `render` the files for an administrator, `imports` the way back: all
pure. `records` is the two-way table between the API's records and fields. `finding`, `writing`, `activity`
and `nudging` talk.
"""
