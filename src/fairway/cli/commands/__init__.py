"""The subcommands, one module each; `jobs_change` has cancel, hold, release and keep, `run` also submit."""
