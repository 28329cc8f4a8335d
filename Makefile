# Everything works on a machine that has Python 3.11 or newer and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

PYTEST := $(BIN)/python -m pytest --quiet --numprocesses auto --dist worksteal

.PHONY: demo test test-slow browser check docs bench clean

# Reinstalled whenever the project's metadata changes.
$(VENV)/installed-%: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing overhand[$*] ..."
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

demo: $(VENV)/installed-service
	$(BIN)/overhand demo

test: $(VENV)/installed-dev
	$(PYTEST)

# Examples and printed commands, audits, evidence, clusters, killed services on PostgreSQL; then
# new examples for every property, a bounded number of them.
test-slow: $(VENV)/installed-dev
	$(PYTEST) -m 'slow and not browser'
	HYPOTHESIS_PROFILE=nightly $(PYTEST) -m 'hypothesis and not slow and not browser'

# Needs Debian's chromium.
browser: $(VENV)/installed-dev
	$(BIN)/python -m pytest --quiet -m browser

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A site of all pages, examples and docstrings, in build/site. Any warning is an error.
docs: $(VENV)/installed-docs
	$(BIN)/python docs/website/build.py build/site

bench: $(VENV)/installed-bench
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist
