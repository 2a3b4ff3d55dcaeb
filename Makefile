# One virtual environment, made once and remade when the dependencies change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Torch goes in first and by itself, so that no other package chooses its build.
TORCH := torch==2.13.0
EXTRAS := $(foreach extra,demo explorer images datasets ray,--extra $(extra))
# Bytecode is kept: the tests start many processes, and without it each one compiles the sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help constraints demo decoder families test test-all test-slow test-gpu test-recipes test-lowest check bench bench-quick bench-device docs docs-check release-check clean

help: ## say what each target does
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/' | expand -t 16

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "identilens needs Python 3.11 or newer; set PYTHON=..."'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,dev]'
	touch $(STAMP)

constraints: $(STAMP) ## take the newest releases that pyproject.toml allows; make test-all says whether they work
	$(BIN)/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable '.[demo,dev]' $(TORCH)
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '^torch==' > constraints.txt
	touch $(STAMP)

demo: $(STAMP) ## install, audit the bundled encoder on its texts, write demo-report/report.html
	$(BIN)/identilens audit --model bundled --file src/identilens/demo/texts.txt --out demo-report --overwrite
	@echo "notebook: $(CURDIR)/notebooks/1-first-look.ipynb (Jupyter and VS Code open it; it can be read without being run)"

# Memory of large tensors is kept rather than given back at each step: a sixth faster.
decoder: $(STAMP) ## train the bundled decoder on Wikipedia, about an hour on one core; resumes
	OMP_NUM_THREADS=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 $(BIN)/python tools/decoder.py

families: $(STAMP) ## try every model type of transformers, about half an hour, and write docs/results/families.csv; resumes
	PYTHONPATH=tools $(BIN)/python -m families.run

test: $(STAMP) ## the tests to run while working: a few minutes, every study, browser and command line
	$(BIN)/python -m pytest -m 'not slow and not gpu' -n auto --dist worksteal

test-all: $(STAMP) ## every test but those that need a GPU
	$(BIN)/python -m pytest -m 'not gpu' -n auto --dist worksteal

test-slow: $(STAMP) ## the tests that make test leaves out
	$(BIN)/python -m pytest -m 'slow and not gpu' -n auto --dist worksteal

test-gpu: $(STAMP) ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

test-recipes: ## the recipes for other tools, each in an environment of its own
	for tool in bertviz nnsight captum torchao; do \
		test -x .venv-$$tool/bin/python || $(PYTHON) -m venv .venv-$$tool || exit 1; \
		.venv-$$tool/bin/python -m pip install --quiet $(TORCH) || exit 1; \
		.venv-$$tool/bin/python -m pip install --quiet --editable '.[demo,dev]' $$tool || exit 1; \
		.venv-$$tool/bin/python -m pytest -n 0 -W 'ignore:invalid escape' tests/recipes/test_$$tool*.py || exit 1; \
	done

test-lowest: ## the fast tests with the lowest versions that pyproject.toml allows, in an environment of its own
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet uv
	.venv-lowest/bin/uv pip compile --quiet --resolution lowest-direct $(EXTRAS) pyproject.toml -o .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --quiet --constraint .venv-lowest/constraints.txt --editable '.[demo,dev]'
	.venv-lowest/bin/python -m pytest -m 'not slow and not gpu' -n auto --dist worksteal

check: $(STAMP) ## ruff and pyright
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/pyright

bench: $(STAMP) ## the benchmarks, one after another: leave the machine alone meanwhile
	$(BIN)/python benchmarks/run.py

bench-quick: $(STAMP) ## the quick part of the benchmarks, about three minutes
	$(BIN)/python benchmarks/run.py --quick

bench-device: $(STAMP) ## what each study costs in forward passes, on a GPU where there is one
	$(BIN)/python benchmarks/device.py

docs: $(STAMP) ## build the site of the documentation into build/site, in less than a minute
	$(BIN)/python tools/reference.py
	PYTHONPATH=tools $(BIN)/zensical build --clean --strict

docs-check: $(STAMP) ## run the examples of all pages, docstrings and notebooks; check links, names, commands and figures
	$(BIN)/python -m pytest -n auto tests/test_docs.py tests/test_examples.py

release-check: $(STAMP) ## build wheel and sdist, install the wheel elsewhere, and try it there
	rm -rf dist build/release
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/release/venv
	build/release/venv/bin/python -m pip install --quiet $(TORCH)
	build/release/venv/bin/python -m pip install --quiet check-wheel-contents "$$(ls dist/*.whl)[demo]"
	build/release/venv/bin/check-wheel-contents --package src/identilens dist/*.whl
	cd build/release && venv/bin/identilens --version && venv/bin/identilens audit --model bundled --text "Nobody came." --out demo && venv/bin/identilens verify demo

clean: ## remove the environment and what runs have left
	rm -rf $(VENV) demo-report .pytest_cache .ruff_cache
