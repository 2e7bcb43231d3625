"""Query and write jobs: submit, dispatch, mirror, list, search."""
