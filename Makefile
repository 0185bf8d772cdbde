# Targets for users and CI; `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

ifneq ($(words $(CURDIR)),1)
$(error Snakemake cannot run in a path with spaces: move '$(CURDIR)')
endif
# Braces are written as variables: make reads them as its own syntax.
BRACES := { }
ifneq ($(strip $(foreach brace,$(BRACES),$(findstring $(brace),$(CURDIR)))),)
$(error Snakemake cannot run in a path with braces: move '$(CURDIR)')
endif

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# `nproc` would count the threads that OMP_NUM_THREADS names instead of the cores.
CORES  ?= $(shell env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
PORT   ?= 5000
SCALE  ?= demo
# Number of slowest tests that `make test` lists (default: none).
DURATIONS ?=

# No tool reports usage.
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := 1
# The CUDA packages of torch are large: wait longer on slow lines.
export UV_HTTP_TIMEOUT ?= 300

STAMP := $(VENV)/.installed
# An upgrade of Python can remove the environment's interpreter; then install again.
$(shell test -x $(BIN)/python || rm -f $(STAMP))

# Their bytecode is compiled once, instead of by each of the first processes.
IMPORTED := torch torchvision matplotlib.pyplot scipy.stats mlflow snakemake.cli fltrain.cli

UV_OPTIONS := --python $(BIN)/python --no-build-isolation
# A start without bytecode takes half a minute.
unexport PYTHONDONTWRITEBYTECODE
# These concern the project alone, without the user's own folder.
golden docs: export FLTRAIN_PATH :=

.PHONY: help env quick reproduce tables results test test-slow test-gpu coverage golden lint format docs ui lock clean

.DEFAULT:
	$(error unknown target or missing file '$@'; `make help` lists the targets)

help: ## list the targets
	@echo "usage: make TARGET [PYTHON=$(PYTHON)] [CORES=$(CORES)] [PORT=$(PORT)] [SCALE=$(SCALE)]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# pyenv has shims of Pythons that are installed but not active: these exist and do not start.
define CHECK_PYTHON
	@command -v "$(PYTHON)" >/dev/null || \
	  { echo "error: '$(PYTHON)' not found; set PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c '' 2>/dev/null || \
	  { found=$$(pyenv whence "$(PYTHON)" 2>/dev/null | awk -F. '$$1 == 3 && $$2 * 100 + $$3 >= 1104' | tail -n 1); \
	    echo "error: '$(PYTHON)' does not start ($$("$(PYTHON)" -V 2>&1 | head -n 1)); set" \
	    "$${found:+PYENV_VERSION=$$found, or }PYTHON=/path/to/python3" >&2; exit 1; }
endef

env: $(STAMP) ## create .venv with the locked packages (does nothing when up to date)
ifeq ($(origin PYTHON),command line)
	$(CHECK_PYTHON)
	@wanted=$$("$(PYTHON)" -V 2>&1); present=$$($(BIN)/python -V); [ "$$wanted" = "$$present" ] || \
	  { echo "error: $(VENV) has $$present, not $$wanted; delete $(VENV) to install it again" >&2; exit 1; }
endif

$(BIN)/python:
	$(CHECK_PYTHON)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11, 4))' || \
	  { echo "error: fltrain needs Python 3.11.4 or newer, not $$("$(PYTHON)" -V 2>&1); set PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "error: $(PYTHON) lacks the venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "Creating $(VENV) with $$("$(PYTHON)" -V)"
	@"$(PYTHON)" -m venv --clear $(VENV)

# Only a change of the lock or of the project's metadata starts an installation. The package itself is
# installed editable, so changed sources take effect at once.
# The installer (uv) and the build backend (setuptools, for the one package without a wheel) come from the
# lock, too: nothing runs that was not checked against a hash.
$(STAMP): requirements.lock pyproject.toml | $(BIN)/python
	@echo "Installing the locked packages into $(VENV): about 3 GB to download, 6 GB on disk (PyTorch brings CUDA;"
	@echo "docs/artifact.md shows how to install less)"
	@awk '/^[^ #]/ { keep = /^(uv|setuptools)==/ } keep' requirements.lock > $(VENV)/bootstrap.lock
	@echo "[1/3] installer"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/bootstrap.lock
	@echo "[2/3] packages (without a terminal, only downloads of 100 MiB or more are shown)"
	@sync="$(BIN)/python -m uv pip sync $(UV_OPTIONS) --require-hashes requirements.lock"; \
	  if [ -t 2 ]; then $$sync; else set -o pipefail; $$sync 2>&1 | { grep --line-buffered -Ev \
	  '^ ([+~-]|Downloaded) |^ *Downloading .*\(([0-9]{1,2}(\.[0-9]+)?M|[0-9.]+K)iB\)' || true; }; fi
	@echo "[3/3] fltrain, and the bytecode of the packages that it imports (half a minute):"
	@$(BIN)/python -m uv pip install --quiet $(UV_OPTIONS) --no-deps --editable .
	@$(BIN)/python -c 'import importlib, sys; [print(" ", name, flush=True) or importlib.import_module(name) for name in \
	  sys.argv[1:]]' $(IMPORTED)
	@touch $@

# All tables and figures of a scale, with training or from existing records; prints their location.
WORKFLOW = $(BIN)/snakemake --cores $(CORES) --config scale=$(SCALE) train=$(1) \
	  --report-after-run --report results/$(SCALE)/report.html
define WHERE
	@echo
	@echo "Overview:            results/$(SCALE)/index.html  (open it in a browser)"
	@echo "Workflow report:     results/$(SCALE)/report.html"
	@echo "Tables and figures:  results/$(SCALE)/<paper>/"
	@echo "Runs in MLflow:      $(1)make ui"
endef

quick: env ## make the two controls, tables whose verdicts are known beforehand, in two minutes
	@$(BIN)/snakemake --cores $(CORES) --config scale=demo items=controls -- results/demo/index.html
	@echo
	@$(BIN)/fltrain compare controls/flower
	@$(BIN)/fltrain compare controls/flower_spiked
	@echo
	@echo "Known beforehand:    all values of flower are true, the last accuracy of flower_spiked is false"
	@echo "Overview:            results/demo/index.html  (open it in a browser)"
	@echo "All tables:          make reproduce"

reproduce: env ## train everything that is missing and build the report
	@$(call WORKFLOW,true)
	$(call WHERE)

tables: env ## make tables, figures, claims and report from existing records; train nothing
	@$(call WORKFLOW,false)
	$(call WHERE)

results: SCALE = published
results: env site/index.html ## the same from our records, without the export to MLflow
	@$(BIN)/fltrain records import published/records.tar.gz
	@$(call WORKFLOW,false) --omit-from track
	$(call WHERE,$(BIN)/fltrain track --scale published && )

# Each worker starts with a contiguous share of the tests, so most files stay in one process, which makes their fixtures once.
# A worker that has finished takes tests from the end of another's share.
PYTEST := $(BIN)/pytest -n $(CORES) --dist worksteal $(if $(DURATIONS),--durations $(DURATIONS))

# These run apart: they register a device, and then PyTorch cannot train in a fork of the process.
STUB := $(BIN)/pytest -n $(CORES) tests/engine

test: env ## run the tests
	@$(PYTEST) -m "not slow and not gpu"
	@$(STUB) -m "not slow"

test-slow: env ## run the slow tests, which `make test` leaves out
	@$(PYTEST) -m "slow and not gpu"
	@$(STUB) -m slow

test-gpu: env ## run tests of training on a GPU
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; \
	  then $(BIN)/pytest -m "gpu and not slow" tests/properties tests/unit; \
	  else echo "skipped: this machine has no GPU that PyTorch can use"; fi

coverage: env ## run all tests and show their coverage (a fifth slower)
	@$(STUB) --cov --cov-report=
	@$(PYTEST) --cov --cov-append --cov-report=term

golden: env ## add numbers of new components and revisions, which tests compare with
	@$(BIN)/python tests/golden/golden.py

lint: env ## check style, wording, types and the workflow
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/snakefmt --check Snakefile workflow/Snakefile workflow/rules
	@$(BIN)/lint-imports
	@$(BIN)/python docs/prose.py
	@$(BIN)/snakemake --lint

format: env ## rewrite the sources in the project's style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/snakefmt Snakefile workflow/Snakefile workflow/rules

docs: env ## make the documentation's site in site/; open site/index.html
	@rm -rf site
	@$(BIN)/sphinx-build --quiet --fail-on-warning --conf-dir docs . site

# Pages of results link to the site, if it exists.
site/index.html: README.md $(wildcard docs/*.md docs/*/*.md) | env
	@echo "Building the documentation (half a minute)"
	-@$(MAKE) docs

ui: env ## browse the runs with MLflow on 127.0.0.1:PORT
	@$(BIN)/fltrain ui --port $(PORT)

lock: env ## resolve the dependencies again, within constraints.txt
	@$(BIN)/uv pip compile pyproject.toml --quiet --upgrade --universal --all-extras --python-version 3.11 \
	  --constraints constraints.txt --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" --output-file requirements.lock

clean: ## remove caches (keeps .venv and results)
	@rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage build dist site *.egg-info
	@find . -path ./$(VENV) -prune -o -path ./.git -prune -o -type d -name __pycache__ -exec rm -rf {} +
