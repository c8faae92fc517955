# One command for each thing one does here. Every target makes its environment itself, from requirements-dev.lock.

SHELL := /bin/bash
PYTHON := .venv/bin/python
ENVIRONMENT := ./spark-submit.sh --prepare-dev
CORES := $(shell getconf _NPROCESSORS_ONLN)
# One more than cores: some tests wait for processes of their own. Each takes some 1 GiB.
WORKERS := --numprocesses $(shell echo $$(($(CORES) < 4 ? $(CORES) + 1 : 4)))
# Left out of `make test`: what needs more than Python and Java, or minutes.
SLOW := oracle or cluster or released or slow
# Where these are: of nine thousand tests two hundred, and each worker looks at all that it is given.
SLOW_FILES = tests/oracle tests/scale tests/released \
	$(shell grep -rlE 'mark\.(released|slow)\b' --include='test_*.py' tests/jobs tests/rmq_formats) \
	$(shell grep -lE 'mark\.(released|slow)\b' tests/test_*.py)

WRITERS := tests/oracle/test_scenarios.py

# What tests compiled code or runs verbs waits for the compiler, and tries hundreds of random logs; `make test` has it.
COMPILED := $(wildcard $(patsubst %,tests/rmq_formats/test_%.py,bodies columns compiled index_build consumequeue_build kernels open_segments rocksdb scan)) \
	tests/test_documented_commands.py tests/test_faults.py tests/test_transcripts.py
FAST := $(filter-out $(COMPILED),$(wildcard tests/test_*.py tests/rmq_formats/test_*.py)) \
	$(wildcard $(patsubst %,tests/jobs/%.py,command/test_cli command/test_options launch/test_submission))

# With the JIT off compiled code counts. Random examples are the same ones in every run: so is the result.
COVERED := NUMBA_DISABLE_JIT=1 $(PYTHON) -m pytest -q -m "not ($(SLOW) or campaign or spark)" --hypothesis-seed=0

# Hashes for every platform and Python that we support; no address of a registry, so that any mirror serves.
LOCK := uv pip compile pyproject.toml --generate-hashes --universal --no-emit-index-url --no-header --quiet

# Whatever a test starts finds the tests and our modules compiled, also where the environment forbids to keep that.
compiled test test-fast test-slow test-released test-campaign test-matrix: export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help environment compiled test test-fast test-slow test-released test-campaign test-matrix matrix-writers matrix-others golden coverage check size format site bench lock

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

environment: # .venv with everything that development needs
	@$(ENVIRONMENT)

# What is compiled is compiled once: our kernels, and, where no test ran yet, what pytest makes of the tests. Else each
# worker does it, all of them at the same moment.
compiled: environment
	ls tests/*/__pycache__/*-pytest-*.pyc >/dev/null 2>&1 || $(PYTHON) -m pytest --collect-only -qq >/dev/null & \
	$(PYTHON) -m rmq_formats.warm_up; wait

test: compiled ## Every test that this machine needs nothing for, on all cores
	$(PYTHON) -m pytest $(WORKERS) -m "not ($(SLOW) or campaign)" $(ARGS)

test-fast: environment ## Formats as their readable modules have them, and the command line: seconds, no JVM
	$(PYTHON) -m pytest $(WORKERS) --maxprocesses $(CORES) -m "not ($(SLOW) or campaign or spark)" $(FAST) $(ARGS)

# Seconds of each campaign of random kills; by itself it takes thirty. Four workers keep two cores busy, as brokers,
# clusters and servers mostly wait; each takes some 2 GiB with what it starts.
test-slow: export LONGEST_S = 10
test-slow: environment ## The rest: a real RocketMQ, clusters, S3, HDFS, a browser
	$(PYTHON) -m pytest --numprocesses 4 -m "($(SLOW)) and not campaign" $(SLOW_FILES) $(ARGS)

test-released: environment ## Every command, recipe and notebook cell that the pages show, in the environment that users get
	$(PYTHON) -m pytest -m released $(ARGS)

test-campaign: environment ## What takes a quiet machine and patience: whole commands killed
	$(PYTHON) -m pytest -m "campaign and not oracle" $(ARGS)

test-matrix: environment ## Every case of every matrix; what brokers of all releases write and accept (an hour), as docs/internals/compatibility.md
	$(PYTHON) -m pytest --whole $(WORKERS) -m "sample and not ($(SLOW) or campaign)" $(ARGS)
	$(MAKE) --jobs 2 --no-print-directory matrix-writers matrix-others

# Two halves side by side: brokers wait most of the time.
matrix-writers: MATRIX_PART = $(WRITERS)
matrix-others: MATRIX_PART = $(filter-out $(WRITERS),$(wildcard tests/oracle/test_*.py))
matrix-writers matrix-others:
	ORACLE_VERDICTS=1 $(PYTHON) -m pytest -m oracle $(MATRIX_PART) $(ARGS)

golden: environment ## Stores of real brokers, with provenance and hashes, in build/golden (ARGS="--release 5.5.0")
	$(PYTHON) -m tests.oracle.plays --out build/golden $(ARGS)

coverage: environment ## The branches of rmq_formats by tests of formats (less than 98 in 100 fails), then those of jobs by tests of jobs
	$(COVERED) --cov=rmq_formats --cov-fail-under=98 tests/rmq_formats tests/jobs/typed tests/jobs/dump tests/jobs/inspect
	$(COVERED) --cov=jobs --ignore=tests/rmq_formats $(ARGS)

check: environment ## Format, lint and types; what CI demands before any test
	$(PYTHON) -m ruff format --check
	$(PYTHON) -m ruff check
	$(PYTHON) -m mypy

size: environment ## Lines, modules, classes and words, each with its budget
	@$(PYTHON) -m tests.support.size

format: environment ## Let ruff rewrite what it can
	$(PYTHON) -m ruff format
	$(PYTHON) -m ruff check --fix

site: environment ## The documentation as a site with search, in build/site; a dead link fails
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet --strict
	cp build/site/quick-start.html build/site/index.html

bench: environment ## The benchmarks, results as JSON; SCALE=small takes minutes, SCALE=tiny seconds
	$(PYTHON) -m benchmarks --scale $(or $(SCALE),full) $(ARGS)

lock: ## Resolve both lock files again from pyproject.toml (needs uv)
	$(LOCK) --extra browse --extra iceberg --extra rocksdb --extra spark --extra types --output-file requirements.lock
	$(LOCK) --all-extras --group dev --constraint requirements.lock --output-file requirements-dev.lock
