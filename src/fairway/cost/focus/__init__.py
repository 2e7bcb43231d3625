"""Export charges as rows of FOCUS, the FinOps Open Cost and Usage Specification."""
