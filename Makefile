# make demo and make test set everything up by themselves, given Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
# -qq leaves errors only.
PIP := $(BIN)/pip -qq --disable-pip-version-check
# One thread each: two workers with two threads each would fight over two cores.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -q --durations=20
# Without byte code every process would compile torch again, for seconds.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL: # two installs into one .venv would get in each other's way
.PHONY: chaos check demo docs fuzz test lint matrix release clean

# What check runs: formulas against oracles, what every method promises, records and selection.
FAST := tests/paper tests/results tests/statistics/test_head_variance.py \
  tests/statistics/test_feature_statistics.py tests/statistics/test_gradient_mean.py \
  tests/algorithms/test_contract.py tests/algorithms/test_fishr.py tests/algorithms/test_vrex.py \
  tests/gradients/test_convolutions.py tests/test_penalties.py tests/test_regularizers.py \
  tests/test_rooms.py tests/test_storage.py

demo: .venv/.installed-demo
	$(BIN)/shoal demo

# Lint comes first because it is over in seconds. A worker keeps to its half, whose modules share
# what they prepare, and then takes from the other's.
test: lint
	$(PYTEST) -n 2 --dist worksteal -m "not chaos"

# Ranks, workers and hosts that are killed: minutes, so not in test.
chaos: .venv/.installed-test
	$(PYTEST) -n 1 -m chaos tests/chaos

# While you edit: under a minute. Compiling takes longer than all the rest.
check: lint
	$(PYTEST) -n 2 -k "not one_graph and not compiled_loss" $(FAST)

# The site, in build/site; a warning is an error, and so is a link that leads nowhere.
docs: .venv/.installed-docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site
	$(BIN)/python tools/site_links.py build/site
	@echo "Open build/site/index.html"

# Damaged files of every kind, by the thousand: make fuzz CASES=1000 SEED=2
CASES ?= 100000
SEED ?= 1
fuzz: .venv/.installed-test
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m benchmarks.fuzz \
	  --cases $(CASES) --seed $(SEED)

lint: .venv/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src

# Wheel, sdist and notes in dist/, checked and tried in a bare environment; nothing is uploaded.
release:
	$(PYTHON) tools/release.py

# The core's tests on other versions of torch and Python, each in a new environment: gigabytes, and
# some four minutes for each of the eight.
matrix:
	$(PYTHON) tools/matrix.py --out benchmarks/results/matrix.json

clean:
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed-demo: EXTRAS := cli,report
.venv/.installed-test: EXTRAS := test
.venv/.installed-docs: EXTRAS := docs
# An oracle of some tests. With torchvision, but not with its torch: the constraints name another.
.venv/.installed-test: ALSO := backpack-for-pytorch

.venv/.installed-demo .venv/.installed-docs .venv/.installed-test: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "shoal needs Python 3.11 or newer, got: $$($(PYTHON) --version 2>&1 || true)." \
	    "Name another one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@echo "Installing shoal[$(EXTRAS)] into .venv (a few minutes the first time)"
	@# Byte code of all modules would take half as long again; those that are imported make it.
	@$(PIP) install --no-compile -c constraints.txt -e '.[$(EXTRAS)]' $(ALSO)
	@touch $@
