"""Code shared by several commands: options, spinner, `--watch`, submitting jobs."""
