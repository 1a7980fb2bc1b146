# `make demo` runs the main job, `make test` the tests; each installs what it needs by itself.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: install demo test test-all matrix chaos chaos-mutations attacks bench check protos man docs wheel compiled-wheel release-check bundle deb clean

install: $(STAMP)

$(STAMP): pyproject.toml sdk/pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (PyTorch included, about a minute the first time) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --progress-bar on --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ./sdk --editable '.[dev,docs,examples,simulate,dask]'
	@touch $@

demo: $(STAMP)
	$(BIN)/ebb demo

# Files of tests go to three processes, also on two cores: many of them wait for others.
test: $(STAMP)
	$(BIN)/python -m pytest -n 3 --dist loadfile

# Everything, the slow tests too (half an hour); those on real traces if EBB_TRACES names their folder. Some want to be
# alone: how much each user gets, and how far a run gets meanwhile, is told by a machine on which nothing else runs.
test-all: $(STAMP)
	$(BIN)/python -m pytest -n 3 --dist loadfile --hypothesis-profile thorough \
		-m 'not gpu and not alone and not matrix$(if $(EBB_TRACES),, and not traces)'
	$(BIN)/python -m pytest -m alone

# Every launcher, with everybody who may save, suspended, preempted, resized and killed; those that are missing here are
# deselected, and counted.
matrix: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m matrix tests/launchers

# Every kind of fault, as often as docs/explanation/reliability.md promises (20 minutes): `make chaos SEED=7` does it
# again.
chaos: $(STAMP)
	$(BIN)/python -m tests.faults.chaos $(if $(SEED),--seed $(SEED))

# Takes each fence out of a copy of the tree, and shows that a test fails then (two minutes).
chaos-mutations: $(STAMP)
	$(BIN)/python -m tests.faults.mutations

# What one user may make, 10,000 trees, names and processes of it, against a live agent (as root).
attacks: $(STAMP)
	$(BIN)/python -m tests.attacks $(if $(SEED),--seed $(SEED))

# What is fast and what is not, on this machine, as a table and figures in dist/bench (24 minutes at most): beside Slurm
# where it is installed, and beside HyperQueue and AccaSim with the Pythons that BENCH names, as in
# `make bench BENCH='--hyperqueue hq/bin/python --trace HPC2N-2002-2.2-cln.swf.gz'`.
bench: $(STAMP)
	$(BIN)/python benchmarks/bench.py $(BENCH)

# What CI runs beside the tests.
check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 $(filter-out sdk/ebbtide/torch.py,$(wildcard sdk/ebbtide/*.py))
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_protos.py --check
	$(BIN)/python scripts/reference.py --check

protos: $(STAMP)
	$(BIN)/python scripts/generate_protos.py

# Man pages, and completions for bash, zsh and fish, laid out as below /usr/share.
man: $(STAMP)
	$(BIN)/python scripts/reference.py --share dist/share

# The documentation as a site, a folder per version; fails at any warning and at a link that leads nowhere.
docs: $(STAMP)
	$(BIN)/python scripts/site.py dist/docs

# Wheels and source archives of both distributions, ebbtide and ebbtide-sdk, below dist/.
wheel: $(STAMP)
	$(BIN)/python scripts/release.py --build dist

# Whether the commit can be released: a line for each item of the checklist.
release-check: $(STAMP)
	$(BIN)/python scripts/release.py --check

# A wheel with the compiled core, for this platform and this Python, below dist/; it takes a C compiler.
compiled-wheel: $(STAMP)
	EBB_COMPILE=1 $(BIN)/python -m hatchling build --target wheel --directory dist

# What a machine without a network needs, in one file below dist/.
bundle: $(STAMP) docs
	PYTHON=$(BIN)/python scripts/make_bundle.sh

# The same as a package for Debian and Ubuntu.
deb: bundle
	scripts/make_deb.sh "$$(ls -t dist/ebbtide-*-py*.tar.gz | head -n 1)"

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
