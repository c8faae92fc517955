# Common development tasks. Each target creates the environment it needs, from requirements-dev.lock.

SHELL := /bin/bash
PYTHON := .venv/bin/python
ENVIRONMENT := ./spark-submit.sh --prepare-dev
CORES := $(shell getconf _NPROCESSORS_ONLN)
# One more worker than cores, because some tests wait for other processes. Each worker needs about 1 GiB.
WORKERS := --numprocesses $(shell echo $$(($(CORES) < 4 ? $(CORES) + 1 : 4)))
# Tests that `make test` leaves out: they need more than Python and Java, or are slow special cases.
SLOW := oracle or cluster or released or slow
# The files with these tests: about 350 of 8,000 tests. Each worker collects every file that it is given.
SLOW_FILES = tests/oracle tests/scale tests/released \
	$(shell grep -rlE 'mark\.(released|slow)\b' --include='test_*.py' tests/jobs tests/rmq_formats) \
	$(shell grep -lE 'mark\.(released|slow)\b' tests/test_*.py)

WRITERS := tests/oracle/test_scenarios.py

# Tests of compiled code and of whole verbs wait for the compiler, and try hundreds of random logs: not in `make test-fast`.
COMPILED := $(wildcard $(patsubst %,tests/rmq_formats/test_%.py,bodies columns compiled index_build consumequeue_build kernels open_segments rocksdb scan)) \
	tests/test_documented_commands.py tests/test_faults.py tests/test_transcripts.py
FAST := $(filter-out $(COMPILED),$(wildcard tests/test_*.py tests/rmq_formats/test_*.py)) \
	$(wildcard $(patsubst %,tests/jobs/%.py,command/test_cli command/test_options launch/test_submission))

# Without the JIT, the lines of compiled functions are counted. The random examples, and so the result, never change.
COVERED := NUMBA_DISABLE_JIT=1 $(PYTHON) -m pytest -q -m "not ($(SLOW) or campaign or spark)" --hypothesis-seed=0

# Hashes for all supported platforms and Python versions; no index URL, so that any mirror can be used.
LOCK := uv pip compile pyproject.toml --generate-hashes --universal --no-emit-index-url --no-header --quiet

# Processes that tests start use cached bytecode, even if the environment disables writing it.
compiled test test-fast test-system test-slow test-released test-campaign test-matrix: export PYTHONDONTWRITEBYTECODE =

# The JVMs with Spark that tests start use a sixth less processor time if they do not check the bytecode of the JARs.
test test-slow: export SPARK_SUBMIT_OPTS = -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote

.DEFAULT_GOAL := help
.PHONY: help environment compiled test test-fast test-system test-slow test-released test-campaign test-matrix matrix-writers matrix-others golden coverage check size format site bench lock

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

environment: # create .venv with everything that development needs
	@$(ENVIRONMENT)

# Compile the kernels, and, before the first test run, the test modules, once. Otherwise all workers would do so at the
# same time.
compiled: environment
	ls tests/*/__pycache__/*-pytest-*.pyc >/dev/null 2>&1 || $(PYTHON) -m pytest --collect-only -qq >/dev/null & \
	$(PYTHON) -m rmq_formats.warm_up; wait

test: compiled ## Run the tests that need only Python and Java, on all cores
	$(PYTHON) -m pytest $(WORKERS) -m "not ($(SLOW) or campaign)" --ignore tests/oracle --ignore tests/released --ignore tests/scale $(ARGS)

# These modules depend on the interpreter's treatment of files, signals and connections. On another Python than that of
# `make test`, they find what changed there in a quarter of its time.
SYSTEM := $(FAST) tests/jobs/command_line tests/jobs/console tests/jobs/inspect tests/jobs/launch tests/jobs/rebuild \
	tests/jobs/repair tests/jobs/storage tests/jobs/verify tests/jobs/lake/test_iceberg.py

test-system: compiled ## Run the tests that depend on the interpreter's treatment of the operating system
	$(PYTHON) -m pytest $(WORKERS) -m "not ($(SLOW) or campaign or spark)" $(SYSTEM) $(ARGS)

test-fast: environment ## Run the tests of readable format modules and of the command line: seconds, no JVM
	$(PYTHON) -m pytest $(WORKERS) --maxprocesses $(CORES) -m "not ($(SLOW) or campaign or spark)" $(FAST) $(ARGS)

# The seconds of each campaign of random kills; the default is thirty. Four workers keep two cores busy, because brokers,
# clusters and servers mostly wait; each worker needs about 2 GiB, including the processes that it starts.
test-slow: export LONGEST_S = 8
test-slow: export PIP_NO_COMPILE = 0
test-slow: environment ## Run the tests with real brokers, clusters, S3, Azure storage and a browser
	$(PYTHON) -m pytest --numprocesses 4 -m "($(SLOW)) and not campaign" $(SLOW_FILES) $(ARGS)

test-released: environment ## Run every command, recipe and notebook cell of the documentation in the released environment
	$(PYTHON) -m pytest -m released --campaigns $(ARGS)

test-campaign: environment ## Run the campaigns, which kill whole commands: hours, on an idle machine
	$(PYTHON) -m pytest -m "campaign and not oracle" $(ARGS)

test-matrix: environment ## Run every case of every matrix, and all broker releases (an hour); update docs/internals/compatibility.csv
	$(PYTHON) -m pytest --whole $(WORKERS) -m "sample and not ($(SLOW) or campaign)" $(ARGS)
	$(MAKE) --jobs 2 --no-print-directory matrix-writers matrix-others

# Run two halves in parallel: brokers wait most of the time.
matrix-writers: MATRIX_PART = $(WRITERS)
matrix-others: MATRIX_PART = $(filter-out $(WRITERS),$(wildcard tests/oracle/test_*.py))
matrix-writers matrix-others:
	ORACLE_VERDICTS=1 $(PYTHON) -m pytest -m oracle --campaigns $(MATRIX_PART) $(ARGS)

golden: environment ## Let real brokers write stores, with provenance and hashes, into build/golden (ARGS="--release 5.5.0")
	$(PYTHON) -m tests.oracle.plays --out build/golden $(ARGS)

coverage: environment ## Measure branch coverage of rmq_formats (fails below 98 %), then of jobs
	$(COVERED) --cov=rmq_formats --cov-fail-under=98 tests/rmq_formats tests/jobs/typed tests/jobs/dump tests/jobs/inspect
	$(COVERED) --cov=jobs --ignore=tests/rmq_formats $(ARGS)

check: environment ## Check format, lint and types, as CI does before any test
	$(PYTHON) -m ruff format --check
	$(PYTHON) -m ruff check
	$(PYTHON) -m mypy

size: environment ## Print lines, modules, classes and words
	@$(PYTHON) -m tests.support.size

format: environment ## Format the code, and apply ruff's automatic fixes
	$(PYTHON) -m ruff format
	$(PYTHON) -m ruff check --fix

site: environment ## Build the documentation site with search, in build/site; fails on a dead link
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet --strict
	cp build/site/quick-start.html build/site/index.html

bench: environment ## Run the benchmarks, with results as JSON; SCALE=small takes minutes, SCALE=tiny seconds
	$(PYTHON) -m benchmarks --scale $(or $(SCALE),full) $(ARGS)

lock: ## Update both lock files from pyproject.toml (needs uv)
	$(LOCK) --extra browse --extra iceberg --extra rocksdb --extra spark --extra types --output-file requirements.lock
	$(LOCK) --all-extras --group dev --constraint requirements.lock --output-file requirements-dev.lock
