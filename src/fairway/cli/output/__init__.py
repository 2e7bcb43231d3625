"""Output of the command line: tables, documents and messages, one module for each subject."""
