# Two commands do all the set-up: `make run` and `make test`. `make help` lists the rest.
# Prefers an installed Python that was built with profile-guided optimization, which is a tenth faster (decision 218).
# Distributions build theirs this way, but do not record it.
PYTHON ?= $(shell for one in python3 /usr/bin/python3; do "$$one" -c 'import ensurepip, sys, sysconfig; sys.exit(sys.version_info < (3, 11) or sys.base_prefix != "/usr" and "--enable-optimizations" not in (sysconfig.get_config_var("CONFIG_ARGS") or ""))' 2> /dev/null && { echo "$$one"; exit; }; done; echo python3)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Otherwise each of hundreds of processes would compile the product again, and each test run the tests.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run test rewritten javac chromium check format types layers bench faults release lock clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | awk -F'\t' '{printf "  make %-8s %s\n", $$1, $$2}'

# One stamp per lock file: packages are reinstalled only when it has changed. Python compiles modules when they are first
# used; pip would compile all of them, which takes 5 s.
$(VENV)/runtime.stamp: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Heliograph needs Python 3.11 or later; name one with PYTHON=...")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Python has no venv: on Debian, apt-get install python3-venv"; exit 1; }
	$(PIP) install --no-compile --require-hashes -r requirements.lock
	@echo "$(CURDIR)" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/heliograph.pth"
	@printf '#!/bin/sh\nexec "%s/python" -m heliograph "$$@"\n' "$(CURDIR)/$(BIN)" > $(BIN)/heliograph && chmod 755 $(BIN)/heliograph
	@touch $@

$(VENV)/dev.stamp: $(VENV)/runtime.stamp requirements-dev.lock
	$(PIP) install --no-compile --require-hashes -r requirements-dev.lock
	@touch $@

# smpp.twisted3 pins old versions of packages that we use as well, so it has its own environment, without pip.
.peers/stamp: requirements-peers.lock | $(VENV)/runtime.stamp
	@test -x .peers/bin/python || $(PYTHON) -m venv --without-pip .peers
	$(PIP) --python .peers/bin/python install --no-compile --require-hashes -r requirements-peers.lock
	@touch $@

# Client generators from npm, run by the Node that is installed in .peers.
NPM := PATH="$(CURDIR)/.peers/bin:$$PATH" npm --no-audit --no-fund --no-update-notifier --loglevel=error
.peers/npm/stamp: .peers/stamp tests/api/peers/package-lock.json
	@mkdir -p .peers/npm && cp tests/api/peers/package.json tests/api/peers/package-lock.json .peers/npm/
	cd .peers/npm && $(NPM) ci --ignore-scripts > npm.log 2>&1 || { cat npm.log; exit 1; }
	@touch $@

run: $(VENV)/runtime.stamp ## Start everything on this machine: PostgreSQL, API, worker, a simulated SMSC
	@exec $(BIN)/python -m heliograph up $(ARGS)

test: javac chromium ## Checks, then the whole test suite
	@$(MAKE) --no-print-directory -j3 check rewritten .peers/npm/stamp
	$(BIN)/python -m pytest -n auto --dist loadgroup $(ARGS)

# pytest caches its rewritten assertions: 10 s of processor time, spent in parallel with the checks.
rewritten: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest --collect-only -q > $(VENV)/collected.log 2>&1 || { tail -50 $(VENV)/collected.log; exit 1; }

javac:
	@command -v javac > /dev/null || { echo "The tests compile a Java client, and there is no javac: on Debian, apt-get install default-jdk-headless"; exit 1; }

# Prefers the headless shell of Debian's Chromium, which renders the same pages in two thirds of the processor time.
chromium:
	@{ command -v chromium-headless-shell || command -v chromium || command -v chromium-browser || command -v google-chrome || { test "$$(id -u)" = 0 && { apt-get install -y -q chromium-headless-shell || apt-get install -y -q chromium; }; }; } > /dev/null 2>&1 || { echo "The tests use a browser, and there is no Chromium: on Debian, apt-get install chromium-headless-shell, or chromium"; exit 1; }

check: $(VENV)/dev.stamp ## Formatting, lint, types and import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(BIN)/python -m release.audit

format: $(VENV)/dev.stamp ## Format the code and fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/dev.stamp ## Measure against the budgets (about a quarter of an hour)
	$(BIN)/python -m bench $(ARGS)

faults: chromium $(VENV)/dev.stamp .peers/npm/stamp ## The fault tests, browser journeys and the image test, in their long form
	HELIOGRAPH_FAULTS=long $(BIN)/python -m pytest tests/faults tests/browser tests/api/test_schemathesis.py tests/journeys/test_release.py --timeout 7200 $(ARGS)

release: $(VENV)/dev.stamp ## Build wheel, source distribution, bill of materials and checksums in dist/
	rm -rf dist
	$(BIN)/python -m release --to dist $(ARGS)

lock: $(VENV)/dev.stamp .peers/stamp ## Update the lock files
	$(PIP) install uv
	for f in requirements requirements-traces requirements-dev requirements-peers; do $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --quiet --upgrade $$f.in -o $$f.lock; done
	cd tests/api/peers && rm package-lock.json && $(NPM) install --package-lock-only --omit-lockfile-registry-resolved=true

clean: ## Remove the environments and caches (data stays)
	rm -rf $(VENV) .peers .pytest_cache .mypy_cache .ruff_cache .hypothesis
