"""The Dramatiq adapter of task-contract."""
