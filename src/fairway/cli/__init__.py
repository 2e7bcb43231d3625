"""The command line interface. `main` is the entry point of the `fairway` script; see `commands`.

Import only what `fairway --help` needs here and in `root`: imports are most of the start-up time.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with its code."""
    import sys

    try:
        from fairway.cli.errors import run
        from fairway.cli.root import root
    except KeyboardInterrupt:  # `run` handles later ones
        sys.exit(130)
    sys.exit(run(root, sys.argv[1:]))
