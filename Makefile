# Everything starts here: `make` lists what there is. Needs Python 3.11 or newer and make, nothing else.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format bench chaos soak run clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# One stamp each, so that a second run installs nothing.
$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tokenweir needs Python 3.11 or newer; name it: make PYTHON=python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@$(BIN)/python -m pip install --quiet --group dev
	@touch $@

setup: $(VENV)/installed-dev ## install the package and the development tools into .venv

demo: $(VENV)/installed ## the users' story, without and with tokenweir, on simulated providers (ARGS=--json)
	@$(BIN)/tokenweir demo $(ARGS)

run: $(VENV)/installed ## one worker with the embedded Redis (ARGS='--workers 4')
	@$(BIN)/tokenweir run $(ARGS)

test: $(VENV)/installed-dev ## the whole test suite, two files at a time (ARGS='tests/unit -k keys')
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: $(VENV)/installed-dev ## ruff, mypy strict, the dependency rule
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/installed-dev ## put the code into form
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

bench: $(VENV)/installed-dev ## hops, the gate's scripts, the limiter beside its peers (ARGS='gate --json')
	@$(BIN)/python -m tests.bench $(ARGS)

chaos: $(VENV)/installed-dev ## workers killed, replies cut, Redis restarted and frozen (ARGS='--seed 7 --requests 3000')
	@$(BIN)/python -m tests.chaos $(ARGS)

soak: $(VENV)/installed-dev ## 10 minutes of seeded random faults of all kinds (ARGS='--minutes 1 --seed 7')
	@$(BIN)/python -m tests.chaos.soak $(ARGS)

clean: ## remove what was installed and cached
	@rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
