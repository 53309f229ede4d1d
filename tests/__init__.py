"""The tests. A package, so that no `tests` of another distribution is imported instead."""
