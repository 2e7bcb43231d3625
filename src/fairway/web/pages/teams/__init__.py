"""The pages Teams and Team."""
