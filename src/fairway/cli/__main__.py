"""`python -m fairway.cli` is `fairway`."""

from fairway.cli import main

main()
