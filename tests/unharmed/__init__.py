"""The promise `unharmed`: what worked on a site before Fairway works the same way after it."""
