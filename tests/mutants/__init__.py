"""The stores, broken on purpose: `make mutants` shows that the tests notice."""
