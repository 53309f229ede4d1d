"""The Celery adapter of task-contract."""
