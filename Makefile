PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
PYTHONS := 3.11 3.12 3.13
SOURCES := supervisor runner shards store tests loadtest examples

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all check types lint format bench soak loadtest build/typed

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv with everything the other targets need

# A venv counts as installed once the stamp is younger than pyproject.toml. pip < 25.1 has no --group.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("Python >= 3.11 is needed, $(PYTHON) is %d.%d: make PYTHON=python3.12" % v)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -e ".[embedded]" --group dev
	touch $@

demo: $(STAMP) ## index the standard library with 4 workers and kill one on the way
	$(BIN)/python -m examples.stdlib_index

test: $(STAMP) ## all tests, on this Python
	$(BIN)/python -m pytest -q -n logical --dist worksteal

test-all: $(STAMP) ## all tests on every supported Python that this machine has
	@bash .ci/test-all $(PYTHONS)

check: lint types test ## everything that CI asks for

types: $(STAMP) build/typed ## mypy strict and basedpyright strict
	$(BIN)/mypy
	$(BIN)/basedpyright

lint: $(STAMP) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## throughput, latency and memory, as a table and as JSON
	$(BIN)/python -m loadtest.bench

soak: $(STAMP) ## the long counts: random kills, stops and restarts, bounded in time
	$(BIN)/python -m loadtest.kills
	$(BIN)/python -m loadtest.soak

loadtest: bench soak ## bench, then soak

# Type checkers cannot read package-dir, so the import tree is laid out as links. Never removed as a
# whole: another checker may be reading it.
build/typed:
	@mkdir -p $@/pyrula/workflows
	@find $@ -xtype l -delete
	@ln -sfn $(CURDIR)/supervisor $@/pyrula/supervisor
	@ln -sfn $(CURDIR)/runner/*.py $(CURDIR)/runner/py.typed $@/pyrula/workflows/
	@for folder in $(CURDIR)/runner/*/; do ln -sfn $${folder%/} $@/pyrula/workflows/; done
	@ln -sfn $(CURDIR)/shards $@/pyrula/workflows/shards
	@ln -sfn $(CURDIR)/store $@/pyrula/workflows/stores
