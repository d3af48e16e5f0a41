# Everything from a fresh clone: `make demo` chats with a tiny model, `make test` runs all checks.
# Needs Python 3.11 or newer (PYTHON=... picks one) and a C++ compiler; the rest goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INPUTS := setup.cfg pyproject.toml constraints.txt
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test lint config-docs clean
.DELETE_ON_ERROR:

help:
	@echo "make demo         install, start the server on the embedded tiny model, stream one answer"
	@echo "make test         install with test tools; lint, types, all tests that need no GPU"
	@echo "make lint         only ruff and mypy"
	@echo "make config-docs  rewrite docs/configuration.md from the table of settings"
	@echo "make clean        remove .venv and caches"

demo: $(VENV)/.installed
	@echo "== demo: ds41 serves the embedded tiny model on the CPU and answers one question"
	@$(BIN)/python bench/demo.py

# One thread: the tests' tensors are tiny, and threads that wait for each other would rule the time.
test: lint
	@echo "== tests that need no GPU; the slowest ten are listed at the end"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest

lint: $(VENV)/.installed-test
	@echo "== ruff check: style and imports"
	@$(BIN)/ruff check .
	@echo "== ruff format: layout of the source"
	@$(BIN)/ruff format --check .
	@echo "== mypy: types"
	@$(BIN)/mypy

config-docs: $(VENV)/.installed
	@$(BIN)/python -m engine.config --markdown > docs/configuration.md.new
	@mv docs/configuration.md.new docs/configuration.md
	@echo "docs/configuration.md written"

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .benchmarks .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is missing or older than 3.11; name another: make PYTHON=python3.12" >&2; \
		exit 1; }
	@echo "== creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
		echo "$(PYTHON) cannot create environments; on Debian install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.installed: $(INPUTS) | $(VENV)/.created
	@echo "== installing ds41 and what it needs into $(VENV) (minutes, once)"
	@$(PIP) --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-test: $(INPUTS) | $(VENV)/.created
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { \
		echo "no C++ compiler found; the compiled decode step is tested with one" >&2; exit 1; }
	@echo "== installing ds41 with its test tools into $(VENV) (minutes, once)"
	@$(PIP) --constraint constraints.txt --editable '.[test]'
	@touch $(VENV)/.installed $@
