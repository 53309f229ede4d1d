# Everything runs in the project's own virtual environment; Python 3.10 or newer and make are all it needs.
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
CODE := common celery_contract dramatiq_contract tests examples benchmarks

INTERPRETERS := python3 python3.14 python3.13 python3.12 python3.11 python3.10 python
NEW_ENOUGH := -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))'

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench mutants wheel clean

help: ## Print this text
	@echo "Usage: make TARGET [ARGS='...'] [PYTHON=python3.12]"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## Run the demo: duplicates, flaky and broken work, a killed worker
	$(BIN)/python -m examples.demo $(ARGS)

test: $(VENV)/.dev ## Run the tests; ARGS="-k name" goes to pytest
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.dev ## Check format, rules and types
	$(BIN)/ruff format --check $(wildcard $(CODE))
	$(BIN)/ruff check $(wildcard $(CODE))
	$(BIN)/mypy

format: $(VENV)/.dev ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix-only $(wildcard $(CODE))
	$(BIN)/ruff format $(wildcard $(CODE))

bench: $(VENV)/.dev ## Measure the stores next to their bare drivers
	$(BIN)/python -m benchmarks $(ARGS)

mutants: $(VENV)/.dev ## Break the scripts on purpose and see the suite notice
	$(BIN)/python -m tests.mutants $(ARGS)

wheel: $(VENV)/.dev ## Build the wheel and the sdist into dist/
	$(BIN)/python -m build --no-isolation

clean: ## Remove the virtual environment and everything built
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo needs a fraction of what the tests need, so that it starts soon after a clone.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.demo

$(BIN)/python:
	@set -e; \
	for candidate in $(or $(PYTHON),$(INTERPRETERS)); do \
		if $$candidate $(NEW_ENOUGH) >/dev/null 2>&1; then \
			echo "$$candidate -m venv $(VENV)"; \
			exec $$candidate -m venv $(VENV); \
		fi; \
	done; \
	echo "No Python 3.10 or newer with venv and ensurepip among: $(or $(PYTHON),$(INTERPRETERS))." >&2; \
	echo "Install one (on Debian also python3-venv), or name it: make PYTHON=/path/to/python3.12 ..." >&2; \
	exit 1
