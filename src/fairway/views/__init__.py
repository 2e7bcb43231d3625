"""Text shown by both the command line and the pages: headlines of jobs, plans, costs, reasons. Pure."""
