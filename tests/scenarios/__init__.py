"""The promises of a policy, each written once and played on every engine. See stage.py."""
