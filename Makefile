# Everything sets itself up: `make demo` and `make test` work in a fresh clone.
#   LANE=2.14-rtx, 2.14, 2.14-executorch-1.4, 2.13-rtx, 2.15 or 2.14-rtx-1.7: constraints/LANE.txt, upstream's releases;
#   2.14-rtx where torch-tensorrt-rtx has wheels, 2.14 elsewhere
#   JOBS=2: test files that run at once
#   TESTS="tests/py tests/exir": only these of `make test`
#   MARKS="not slow": those of tests/long_tests.txt as well
#   PAGES="README.md docs/targets.md": only these of `make clean-install`
#   PYTHON=python3.10 ... python3.13: the interpreter that the environment is made with

DEFAULT := $(if $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m)),2.14-rtx,2.14)
LANE ?= $(DEFAULT)
PYTHON ?= python3
JOBS ?= 2
VENV ?= $(if $(filter $(DEFAULT),$(LANE)),.venv,.venv-$(LANE))
RUN = $(VENV)/bin
export PATH := $(abspath $(RUN)):$(PATH)
PYTEST = OMP_NUM_THREADS=1 $(RUN)/python -m pytest -n $(JOBS) --dist loadfile
SOURCES = torchtrt_executorch py backends exir tests benchmarks examples tools setup.py
# What a change to any file may break, and that needs only seconds.
SOURCE_TESTS = $(addprefix tests/test_,skips.py names.py long_tests.py lanes.py quantization_table.py)

.DEFAULT_GOAL := help
.PHONY: help environment demo demo-llm lanes needed test test-all test-cpp test-upstream clean-install lint format bench zoo zoo-sample docs fuzz clean patches merged dist

help:
	@echo "make demo      the detector, from a photograph to a .pte that runs"
	@echo "make demo-llm  a language model: prefill and decode over one cache in one .pte, and its tokens"
	@echo "make test      the tests, on LANE=$(LANE); with MARKS=\"not slow\" those that take long as well"
	@echo "make test-all  the slow sweeps as well"
	@echo "make test-upstream  upstream's own tests with the overlay, compared with it off where they fail"
	@echo "make lanes     which patches have no place in another lane's releases"
	@echo "make needed    which patches upstream has made superfluous here, compared with docs/needed.md"
	@echo "make test-cpp  programs in ExecuTorch's C++ runtime, of its wheel; needs cmake and g++"
	@echo "make clean-install  README's and the guides' commands, from the wheel in empty environments"
	@echo "make lint      black, isort, ruff, mypy, who imports whom, and the tests of the sources themselves"
	@echo "make format    let black and isort write"
	@echo "make bench     tables of ours beside upstream's"
	@echo "make zoo       networks outside of transformers by three doors: an hour, or a sample by zoo-sample"
	@echo "make docs      the reference of all public names, in build/reference"
	@echo "make fuzz      the engine blob's reader, until it is stopped"
	@echo "make patches   each patch as a diff against the installed releases, in patches/"
	@echo "make merged    each patch's tests in a copy of upstream that has it"
	@echo "make dist      wheel and sdist in dist/, checked and installed; REPOSITORY= is the project's address"
	@echo "make clean     remove the environments and what builds left"

environment:
	@$(PYTHON) tools/environment.py --lane $(LANE) --venv $(VENV)

demo: environment
	@$(RUN)/python examples/detector.py

demo-llm: environment
	@mkdir -p build && $(RUN)/torchtrt-executorch export --decode cuda --out build/model.pte

test: environment
	@$(PYTEST) $(if $(MARKS),-m "$(MARKS)") $(TESTS)

test-all: environment
	@$(PYTEST) -m "slow or not slow"

test-upstream: environment
	@$(RUN)/python tools/test_upstream.py --jobs $(JOBS)

clean-install:
	@$(PYTHON) tools/clean_install.py $(PAGES)

lint: environment
	@$(RUN)/black --check --quiet $(SOURCES) || { echo "black: run make format"; exit 1; }
	@$(RUN)/isort --check --quiet $(SOURCES) || { echo "isort: run make format"; exit 1; }
	@$(RUN)/ruff check --quiet $(SOURCES)
	@$(RUN)/python tools/typecheck.py
	@$(RUN)/python tools/imports.py
	@$(RUN)/python tools/private_names.py
	@$(RUN)/python tools/messages.py || { echo "docs/troubleshooting.md: run make format"; exit 1; }
	@$(RUN)/python -m pytest -qq --disable-warnings -p no:cacheprovider $(SOURCE_TESTS)

format: environment
	@$(RUN)/isort --quiet $(SOURCES)
	@$(RUN)/black --quiet $(SOURCES)
	@$(RUN)/python tools/messages.py --write

lanes: environment
	@$(RUN)/python tools/lanes.py

needed: environment
	@$(RUN)/python -W ignore tools/needed.py --check

test-cpp: environment
	@$(RUN)/python tests/cpp/check.py build make run share llm delegate page

bench: environment
	@$(RUN)/python -m benchmarks

# Beside the environment, which other tests are to find as it is.
build/zoo/installed: benchmarks/models/requirements.txt | environment
	@rm -rf build/zoo
	@$(RUN)/python -m pip install --quiet --no-deps --target build/zoo -r $<
	@touch $@

zoo: build/zoo/installed
	@PYTHONPATH=$(abspath build/zoo) $(RUN)/python -m benchmarks models --out build/zoo.jsonl

zoo-sample: build/zoo/installed
	@PYTHONPATH=$(abspath build/zoo) $(RUN)/python -m benchmarks models --sample

docs: environment
	@$(RUN)/python -m pip install --quiet "pdoc>=15"
	@$(RUN)/python -m pdoc --docformat google --output-directory build/reference torchtrt_executorch \
		torchtrt_executorch.runtime torchtrt_executorch.generation torchtrt_executorch.inspection '!torchtrt_executorch.patches'

fuzz: environment
	@$(RUN)/python -m pip install --quiet atheris
	@$(RUN)/python tests/fuzz/engine_blob.py

patches: environment
	@$(RUN)/python tools/patch_set.py write

merged: environment
	@OMP_NUM_THREADS=1 $(RUN)/python tools/patch_set.py check

dist: environment
	@$(RUN)/python -m pip install --quiet twine
	@$(RUN)/python tools/dist.py --repository "$(REPOSITORY)"

clean:
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
