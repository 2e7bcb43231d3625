"""The nouns of Fairway: plain frozen values, no I/O, no clock.

Each file holds one family: `fleet` (what a platform team writes), `gpu` (what the hardware is),
`observation` (what an engine shows), `errors` (how anything says no), `names` (what things are called).
"""
