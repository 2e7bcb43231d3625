"""The subcommands, one module each; `jobs_change` has cancel, hold and release, `run` also submit."""
