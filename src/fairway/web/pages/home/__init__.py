"""The Home page of each person."""
