"""Code shared by several commands: fleet and plan files, logs, `--watch`, the progress of an apply."""
