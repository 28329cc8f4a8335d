# Everything works on a machine that has Python 3.11 or newer and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

PYTEST := $(BIN)/python -m pytest --quiet --numprocesses auto --dist worksteal

JAVASCRIPT := clients/javascript
NODE_MODULES := $(JAVASCRIPT)/node_modules/.package-lock.json

.PHONY: demo web test test-core test-slow browser javascript check docs bench package lock clean

# Reinstalled whenever the project's metadata changes.
$(VENV)/installed-%: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing overhand[$*] ..."
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

demo: $(VENV)/installed-service
	$(BIN)/overhand demo

# A poll in a web page, with simulated voters besides.
web: $(VENV)/installed-service $(NODE_MODULES)
	$(BIN)/python examples/web/serve.py

# Reinstalled whenever the package's lock changes.
$(NODE_MODULES): $(JAVASCRIPT)/package.json $(JAVASCRIPT)/package-lock.json
	@node --eval 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || \
		{ echo "node 20 or newer is needed, with npm"; exit 1; }
	cd $(JAVASCRIPT) && npm ci --silent --no-fund --no-audit
	@touch $@

# Types, the protocol's vectors, the law of the noise, a real service on the loopback; the weight.
javascript: $(VENV)/installed-dev $(NODE_MODULES)
	cd $(JAVASCRIPT) && npm run --silent check
	cd $(JAVASCRIPT) && OVERHAND_PYTHON=$(abspath $(BIN))/python npm test --silent
	cd $(JAVASCRIPT) && npm run --silent size

test: $(VENV)/installed-dev
	$(PYTEST)

# Core and client with no extras but their own, as on Windows and macOS; in another environment,
# such as `make VENV=build/core test-core`. The tests' conftest.py is that of the services; without
# it, Hypothesis would draw other examples each time, and take one of more than 200 ms for a failure.
test-core: $(VENV)/installed-cli,client,frames,test
	COLUMNS=80 OPENBLAS_NUM_THREADS=1 $(PYTEST) --noconftest --hypothesis-profile ci tests/core tests/deploy/test_client.py

# Examples and printed commands, audits, evidence, clusters, killed services on PostgreSQL; then
# more examples for every property, the same ones each time.
test-slow: $(VENV)/installed-dev
	$(PYTEST) -m 'slow and not browser'
	HYPOTHESIS_PROFILE=thorough $(PYTEST) -m 'hypothesis and not slow and not browser'

# Needs Debian's chromium, and node's packages for the poll.
browser: $(VENV)/installed-dev $(NODE_MODULES)
	$(BIN)/python -m pytest --quiet -m browser

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/licences.py

# A site of all pages, examples and docstrings, in build/site, that asks nothing of any other host.
# Any warning is an error, such as a page that is in no table of contents or a link that leads nowhere.
docs: $(VENV)/installed-docs
	rm -rf build/doctrees build/site docs/website/reference
	$(BIN)/python -m sphinx -W --keep-going -q -j auto -d build/doctrees -c docs/website docs build/site
	@! grep -rlE --include='*.html' '<(script|link|img|iframe)[^>]* (src|href)="(https?:)?//' build/site
	@echo "the site: build/site/index.html"

# Wheel and sdist in dist, and each tried in new environments: without extras, and with every one.
package: $(VENV)/installed-dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python .ci/smoke.py dist

# The versions that development was last done with (pip install -r requirements-dev.lock), and the
# licences of what is installed.
lock: $(VENV)/installed-dev,docs
	$(BIN)/python -m pip freeze --exclude-editable --exclude overhand > requirements-dev.lock
	$(BIN)/python .ci/licences.py --write

bench: $(VENV)/installed-bench
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist $(JAVASCRIPT)/node_modules $(JAVASCRIPT)/types
