"""The continuous-integration pipeline: stages with time budgets, run side by side where they can be.

Only the standard library: `.ci/run` starts it before there is a virtual environment.
"""
