"""What a policy changes on a cluster: wanted objects against found ones, in order, with safety limits. Pure.

`objects` has the nouns, `plan` the plan and how it is made, `limits` what needs `--force`, `words` a plan in
the user's words. What a fleet wants on an engine is that engine's translation (engines/*/policy).
"""
