# One virtual environment, made once and remade when the dependencies change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Torch goes in first and by itself, so that no other package chooses its build.
TORCH := torch==2.13.0

.PHONY: demo test test-slow test-gpu check bench docs clean

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "identilens needs Python 3.11 or newer; set PYTHON=..."'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[demo,dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/identilens demo --out demo-report --overwrite

test: $(STAMP)
	$(BIN)/python -m pytest -m 'not slow and not gpu' -n auto

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu

check: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/pyright

bench: $(STAMP)
	for script in benchmarks/[a-z]*.py; do $(BIN)/python $$script || exit 1; done

docs: $(STAMP)
	$(BIN)/python docs/check.py

clean:
	rm -rf $(VENV) demo-report .pytest_cache .ruff_cache
