"""Store service level objectives: the histories of the jobs they count, counts, cursors and states."""
