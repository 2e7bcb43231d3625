"""The command line: one file a verb. `main` is what the `fairway` script calls.

Nothing is imported here or in `root` that `fairway --help` can do without: start-up time is our imports.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with its code."""
    import sys

    try:
        from fairway.cli.failures import run
        from fairway.cli.root import root
    except KeyboardInterrupt:  # `run` answers all that come later
        sys.exit(130)
    sys.exit(run(root, sys.argv[1:]))
