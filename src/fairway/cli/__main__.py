"""Run the command line with `python -m fairway.cli`."""

from fairway.cli import main

main()
