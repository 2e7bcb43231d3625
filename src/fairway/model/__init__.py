"""Define the domain model of Fairway: plain frozen values, no I/O, no clock.

Each module has one subject: `fleet` (the policy that a platform team writes), `gpu` (the hardware),
`observation` (what an engine reports), `job`, `usage`, `charge`, `budget`, `errors`, `names`.
"""
