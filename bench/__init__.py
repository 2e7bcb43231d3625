"""Measured figures, each beside its bare counterpart in the same run.

These machines are shared and noisy: a ratio of two things measured in turn holds, an absolute time does not.
"""
