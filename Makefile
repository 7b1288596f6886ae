# make install | demo | test | test-long | topo-test | experiments | fuzz | fuzz-sums | fuzz-native | fuzz-python | sanitize | threads | exhaustive | tla | simulate | simulate-system | loss | soak | fuzz-api | training | torch-matrix | torch-kills | shared-slots | failovers | forged | packages | docs | bench | lint. Each does its own set-up; needs Python 3.11+, a C++20 compiler and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
EXTRAS ?= dev,plots
FUZZ_PACKETS ?= 100000
SECONDS ?= 600
API_EXAMPLES ?= 200
SUMS ?= 5000
# Two files of tests at a time: most of their time they wait. PYTEST= runs one after another.
PYTEST ?= -n 2 --dist loadfile
EXECUTIONS ?= 1000000
SCHEDULES ?= 100000
STEPS ?= 500
KILLS ?= 100
MOMENTS ?= 1000
PACKETS ?= 1000000
WAY ?= reconfigure
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(shell find switchagg worker_lib -name '*.cpp' -o -name '*.h')

.PHONY: install demo test test-long topo-test experiments fuzz fuzz-sums fuzz-native fuzz-python sanitize threads exhaustive tla simulate simulate-system loss soak fuzz-api training torch-matrix torch-kills shared-slots failovers forged packages docs bench lint format native clean

install: $(VENV)/.installed-$(EXTRAS)

$(VENV)/.installed-$(EXTRAS): $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "switchagg needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Set PYTHON=..."; exit 1; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { echo "switchagg needs a C++20 compiler: install g++ or clang++"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

demo: install
	$(BIN)/switchagg demo

test: install
	$(BIN)/python -m pytest $(PYTEST)

# The tests that `make test` leaves out for time: claims, soaks, examples, a thousand jobs.
test-long: install
	$(BIN)/python -m pytest --timeout 600 -m long $(PYTEST)

# Networks in Mininet, each with every switch that is here, and one of 64 workers. As root, or where user namespaces are allowed.
topo-test: install
	SWITCHAGG_TOPO_LONG=1 $(BIN)/python -m pytest --timeout 600 tests/mininet_topos

# The P4 programs against the native slot table: FUZZ_PACKETS to v1model, a fifth of them to TNA. SEED repeats a run.
fuzz: install
	$(BIN)/python -m tests.p4.fuzz --packets $(FUZZ_PACKETS) $(if $(SEED),--seed $(SEED))

# Random exact and bounded sums, SUMS of each, against integers of any size: some twenty minutes. SWITCHAGG_TEST_SEED repeats them.
fuzz-sums: install
	SWITCHAGG_SUMS=$(SUMS) $(BIN)/python -m pytest --timeout 3600 -n 2 tests/worker_lib/test_limbs.py

# The native parsers under address and undefined-behaviour sanitizers: EXECUTIONS inputs each, found by coverage. SEED repeats a run.
fuzz-native: install
	$(BIN)/python -m tests.native.fuzz --executions $(EXECUTIONS) $(if $(SEED),--seed $(SEED))

# Ranks killed and stopped in the middle of all-reduces through slots that they share, at MOMENTS random moments.
shared-slots: install
	$(BIN)/python -m tests.shared_slots --moments $(MOMENTS)

# Switches killed in the middle of all-reduces; VICTIM=leaf, root or drained, CONTROLLER=1 kills the controller too.
failovers: install
	$(BIN)/python -m tests.failovers --kills $(KILLS) $(if $(VICTIM),--victim $(VICTIM)) $(if $(CONTROLLER),--controller)

# Forged packets of each kind, PACKETS of each, from another process while a job runs. As root.
forged: install
	$(BIN)/python -m tests.forged --packets $(PACKETS)

# The Python parsers, each with EXECUTIONS random inputs (1,000 unless given). SEED repeats a run, TARGET names one of them.
fuzz-python: install
	$(BIN)/python -m tests.fuzz --executions $(if $(filter command% env%,$(origin EXECUTIONS)),$(EXECUTIONS),1000) $(if $(SEED),--seed $(SEED)) $(if $(TARGET),--target $(TARGET))

# The native modules under address and undefined-behaviour sanitizers, in the tests of what is native; TESTS=... takes others.
sanitize: install
	$(BIN)/python -m tests.native.sanitized $(TESTS)

# A switch and its workers as threads of one process, under the thread sanitizer.
threads: install
	$(BIN)/python -m pytest --timeout 600 -n 0 -m long tests/native/test_threads.py

# Every schedule of small jobs, and that mistakes in the rules are found; the tables of docs/verification.md.
exhaustive: install
	$(BIN)/python -m tests.exhaustive

# docs/protocol.tla with TLC: TLA2TOOLS is the path of tla2tools.jar, unless tlc is on PATH.
tla: install
	$(BIN)/python -m tests.exhaustive.tla

# Engines, switches and a network in virtual time: SCHEDULES random ones, with faults. SEED repeats a run.
simulate: install
	$(BIN)/python -m tests.native.simulation --schedules $(SCHEDULES) $(if $(SEED),--seed $(SEED))

# The whole system in virtual time: workers, switches, controller, store, links; SCHEDULES random ones. SEED repeats a run.
simulate-system: install
	$(BIN)/python -m tests.simulation --schedules $(SCHEDULES) $(if $(SEED),--seed $(SEED))

# Goodput and retransmission timers under loss, over workers, slots, words and loss; for every change of the window.
loss: install
	$(BIN)/python scripts/loss_envelope.py

# Every claim of docs/experiments.md, some ten minutes; OPTIONS=--quick for the short form. Brings scikit-learn.
experiments:
	$(MAKE) install EXTRAS=$(EXTRAS),experiments
	$(BIN)/switchagg experiment all $(OPTIONS)

# schemathesis on the controller's OpenAPI: API_EXAMPLES requests a call.
fuzz-api: install
	SWITCHAGG_API_EXAMPLES=$(API_EXAMPLES) $(BIN)/python -m pytest --timeout 1200 tests/switchagg/control/http/test_api_fuzz.py

# Jobs at once through one switch for SECONDS, with ranks that come late, leave early, stop and die.
soak: install
	$(BIN)/python -m tests.soak --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# The examples' models beside gloo, step by step, in every width of lanes; the table of docs/pytorch.md.
training: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS),examples]'
	$(BIN)/python -m tests.training --steps $(STEPS) --ranks 4

# Features of PyTorch through gloo and through the switch; the table of docs/pytorch.md.
torch-matrix: install
	$(BIN)/python -m tests.torch_matrix $(if $(ONLY),--only "$(ONLY)")

# Ranks that are killed in training and come back, KILLS of them, under PyTorch's reconfigure; WAY=torchft under its Manager.
torch-kills: install
	$(BIN)/python -m tests.torch_kills --kills $(KILLS) --way $(WAY)

# The sdist and the wheels, from fresh environments of each of PYTHONS; KEEP=FOLDER keeps them.
packages:
	$(PYTHON) scripts/check_packages.py $(if $(KEEP),--keep $(KEEP)) $(or $(PYTHONS),$(PYTHON))

# The site, in build/site; a link that leads nowhere is an error.
docs:
	$(MAKE) install EXTRAS=$(EXTRAS),docs
	$(BIN)/mkdocs build

bench: install
	$(BIN)/switchagg bench allreduce

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_sources.py

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# For work on the C++ code: incremental builds, the modules beside the Python sources.
native: native-switch native-worker

native-%:
	mkdir -p build/dev-$*
	flock build/dev-$*.lock sh -ec 'export PATH=$(CURDIR)/$(BIN):$$PATH; \
	  test -f build/dev-$*/build.ninja || cmake -S . -B build/dev-$* -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python; \
	  cmake --build build/dev-$* --target $(if $(filter switch,$*),switchagg_native,worker_native switchagg_c)'
	cp --remove-destination build/dev-$*/out/$(if $(filter switch,$*),switchagg/emulator,worker_lib)/_native*.so $(if $(filter switch,$*),switchagg/emulator,worker_lib)/
	$(if $(filter worker,$*),cp --remove-destination build/dev-worker/out/worker_lib/c/libswitchagg.so worker_lib/c/)

clean:
	rm -rf build .venv
