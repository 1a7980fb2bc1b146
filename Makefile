# `make demo` runs the main job, `make test` the tests; each installs what it needs by itself.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: install demo test test-all check protos clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (PyTorch included, about a minute the first time) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --progress-bar on --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,examples,simulate,dask]'
	@touch $@

demo: $(STAMP)
	$(BIN)/ebb demo

test: $(STAMP)
	$(BIN)/python -m pytest

# Everything, the slow tests too (at most an hour); those on real traces if EBB_TRACES names their folder.
test-all: $(STAMP)
	$(BIN)/python -m pytest -m 'not gpu$(if $(EBB_TRACES),, and not traces)'

# What CI runs beside the tests.
check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_protos.py --check

protos: $(STAMP)
	$(BIN)/python scripts/generate_protos.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
