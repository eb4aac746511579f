# PYTHON: the interpreter to build with and for. TESTS: which tests, instead of all; PART: of make test-full, 3/8.
# SFRAMEGEN_CACHE: where peers and corpus are kept (default ~/.cache/sframegen).
# SFRAMEGEN_PEERS: a folder that tools/get-peers made elsewhere. PYTEST_FLAGS, BARE_FLAGS, WHEEL_FLAGS, TRIAL_FLAGS: what pytest, tools/bare,
# tools/release and its trial get; STUDY, FLAGS: the module that make study runs, and what it gets.
PYTHON ?= python3
PYTEST_FLAGS ?= -n 2 --dist worksteal

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
# Without bytecode, each process of pytest would rewrite all tests once more.
unexport SFRAMEGEN_PURE PYTHONPATH PYTHONDONTWRITEBYTECODE

SOURCES := pyproject.toml setup.py $(shell find cfi linker sframegen -name '*.py' -o -name '*.[ch]' -o -path '*/integration/*' -type f)
LINTED := cfi linker sframegen conformance tests benchmarks docs corpus tools conftest.py setup.py debian/tests/completion
python_name := $(notdir $(PYTHON))

.PHONY: help
help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

# --- Environments: the same package twice, compiled in .venv and interpreted in .venv-pure -----------------------------------------

# missing(PAIRS): adds the packages of program:package, or file:package, whose program or file is missing to the shell's list `packages`
missing = for pair in $(1); do [[ -e $${pair%%:*} ]] || command -v "$${pair%%:*}" >/dev/null || packages+=("$${pair\#*:}"); done

# install_packages: installs the apt packages of the shell's list `packages`, or fails and prints the remedy
install_packages = (($${\#packages[@]} == 0)) || tools/install-packages "$${packages[@]}"

# Users who are not root may have no /sbin in their PATH.
ldconfig := PATH="$$PATH:/sbin:/usr/sbin" ldconfig

# What compiles the kernel program of sframegen profile; libbpf.so.1 loads it.
kernel_program_with := clang:clang llvm-strip:llvm

.PHONY: machine
machine:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "sframegen needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version): make PYTHON=python3.NN" >&2; exit 1; }
	@packages=(); \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || packages+=($(python_name)-venv); \
	$(PYTHON) -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || packages+=($(python_name)-dev); \
	$(install_packages)
	@( \
	packages=(); \
	$(call missing,$(kernel_program_with)); \
	$(ldconfig) -p | grep -q 'libbpf\.so\.1 ' || packages+=(libbpf1); \
	$(install_packages) \
	) || echo "sframegen profile is then installed without its kernel program." >&2

# What only tests need: those that miss something are skipped, so that it need not be there.
tested_with := qemu-aarch64:qemu-user aarch64-linux-gnu-g++:g++-aarch64-linux-gnu s390x-linux-gnu-g++:g++-s390x-linux-gnu gdb:gdb \
    perf:linux-perf file:file mold:mold ld.gold:binutils mksquashfs:squashfs-tools \
    groff:groff-base zsh:zsh fish:fish cmake:cmake ninja:ninja-build meson:meson \
    dpkg-buildpackage:dpkg-dev dh:debhelper fakeroot:fakeroot rpmbuild:rpm rpm2cpio:rpm2cpio cpio:cpio eu-strip:elfutils \
    pkg-config:pkgconf node:nodejs mmdebstrap:mmdebstrap \
    chromium:chromium bpftrace:bpftrace dwz:dwz \
    zstd:zstd unzip:unzip xz:xz-utils go:golang-go g++:g++ clang:clang musl-gcc:musl-tools ld.lld:lld valgrind:valgrind

.PHONY: test-machine
test-machine: | machine
	@( \
	packages=(); \
	$(call missing,$(tested_with)); \
	$(install_packages) \
	) || echo "Tests that need them are skipped." >&2

# install(VENV): with a wheel that is built once for a state of the sources, in about a minute where nothing is compiled yet
define install
$(PYTHON) -m venv $(1)
wheel=$$($(PYTHON) tools/built_wheel.py) && $(1)/bin/pip install --quiet --force-reinstall --no-deps "$$wheel" && $(1)/bin/pip install "$$wheel"
touch $@
endef

.venv/installed: $(SOURCES) | machine
	$(call install,.venv)

.venv-pure/installed: export SFRAMEGEN_PURE := 1
.venv-pure/installed: $(SOURCES) | machine
	$(call install,.venv-pure)

# requirements(WHICH): a list of pyproject.toml, as a file for pip
requirements = <($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))$(1), sep="\n")')

# tests/project/test_install.py builds wheels in .venv; .venv-pure does without Cython, as a user's environment does
.venv/test-tools: .venv/installed
	.venv/bin/pip install --quiet -r $(call requirements,["project"]["optional-dependencies"]["test"]) \
	    -r $(call requirements,["build-system"]["requires"])
	touch $@

# What make lint needs, what fleet and symbols of profile need, and mutmut, whose operators make the mutants of the product.
$(foreach extra,lint fleet symbols mutations,.venv/$(extra)-tools): .venv/%-tools: .venv/test-tools
	.venv/bin/pip install --quiet -r $(call requirements,["project"]["optional-dependencies"]["$*"])
	touch $@

.venv-pure/test-tools: .venv-pure/installed
	.venv-pure/bin/pip install --quiet -r $(call requirements,["project"]["optional-dependencies"]["test"])
	touch $@

.PHONY: venv
venv: .venv/installed ## install into .venv

.PHONY: develop
develop: .venv/test-tools .venv/lint-tools ## .venv with what tests and lint need: CONTRIBUTING.md

.PHONY: quick
quick: ## copy changed modules into .venv, in a second; compiled ones need make venv
	cp -ru cfi linker sframegen "$$(.venv/bin/python -P -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

# --- Packages of sframegen itself ---------------------------------------------------------------------------------------------------

# What the two share: as root, each in a root of its own that mmdebstrap makes from the archive that the machine's apt uses. SUITE: of Debian.
SUITE ?= sid

# What makes and enters a root.
rooted_with := mmdebstrap:mmdebstrap mount:mount

# packager(SCRIPT): runs it
define packager
@packages=(); $(call missing,$(rooted_with)); $(install_packages)
packaging/$(1) $(SUITE)
endef

.PHONY: deb
deb: ## Debian packages of the last commit, built, checked, installed and tried in clean roots, as root: docs/packaging.md; SUITE
	$(call packager,build-deb)

.PHONY: rpm
rpm: .venv-release/tools ## RPM packages of the last commit, in the same way
	$(call packager,build-rpm)

# --- Trying it ---------------------------------------------------------------------------------------------------------------------

# docs/testing.md. With SFRAMEGEN_NO_SKIP=1, test-all fails if anything is skipped, test if what it fetches is.
gate := not (sampled or dear or full)
sampled := sampled and not (dear or full)

.PHONY: test
test: .venv/test-tools ## the tests that most changes need, in some minutes: the compiled build, with binutils 2.47 beside the system
	tools/get-peers --binutils || echo "Tests that need them are skipped." >&2
	$(call pytest,.venv,compiled) $(PYTEST_FLAGS) -m "$(gate)" $(TESTS)
	$(call pytest,.venv,compiled) $(few_at_a_time) -m "$(sampled)" $(TESTS) || (($$? == 5)) # 5: none of TESTS is sampled

# What is sampled needs processors: two at a time at most.
few_at_a_time := -n 2

# As root: it makes roots with mmdebstrap, from the archive that the machine's apt uses.
.PHONY: test-bare
test-bare: ## README's commands, and make release, in roots of three suites that have nothing: docs/testing.md; BARE_FLAGS
	@packages=(); $(call missing,$(rooted_with)); $(install_packages)
	$(PYTHON) -m tools.bare $(BARE_FLAGS)

# The oldest and the newest releases that pyproject.toml allows, each in an environment of its own. Warnings of deprecation are errors: in the
# build, in the commands, in the tests. The tests are those of make test that come near a dependency.
constraints := oldest newest
deprecations := error::DeprecationWarning,error::PendingDeprecationWarning,error::FutureWarning
constrained_tests := api checks cli code conversion detached elf linker packages project

$(constraints:%=.venv-%/test-tools): .venv-%/test-tools: tests/constraints/%.txt $(SOURCES) | machine
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --constraint $< -r $(call requirements,["project"]["dependencies"]) \
	    -r $(call requirements,["build-system"]["requires"]) -r $(call requirements,["project"]["optional-dependencies"]["test"])
	wheel=$$(PYTHONWARNINGS=$(deprecations) $(PYTHON) tools/built_wheel.py --with $(CURDIR)/$(@D)/bin/python) && \
	    $(@D)/bin/pip install --quiet --no-deps "$$wheel"
	$(@D)/bin/pip check
	touch $@

.PHONY: test-constraints
test-constraints: $(constraints:%=test-%) ## the larger part of the gate's tests, with the oldest and the newest releases of what sframegen needs: docs/testing.md

.PHONY: $(constraints:%=test-%)
$(constraints:%=test-%): test-%: .venv-%/test-tools
	tools/get-peers --binutils || echo "Tests that need them are skipped." >&2
	PYTHONWARNINGS=$(deprecations) .venv-$*/bin/sframegen doctor
	PYTHONWARNINGS=$(deprecations) $(call pytest,.venv-$*,compiled) $(PYTEST_FLAGS) -m "$(gate)" $(constrained_tests:%=tests/%)

.PHONY: test-all
test-all: export BARE_FLAGS := --release
test-all: lint docs test-ready test test-units test-full test-bare ## everything, before a release: peers, corpus, every ABI, all roots

.PHONY: test-ready
test-ready: .venv/test-tools .venv/docs-tools .venv/fleet-tools .venv/symbols-tools .venv/mutations-tools .venv-pure/test-tools peers corpus test-machine ## what the tests need, all of it

.PHONY: test-units
units := cfi code conversion elf format tables
test-units: .venv-pure/test-tools ## the interpreted build: the tests of what is compiled in the other one
	$(call pytest,.venv-pure,interpreted) $(PYTEST_FLAGS) -m "$(gate) and not once" $(units:%=tests/%)

.PHONY: test-full
test-full: test-ready ## tests that take long or need what is fetched; PART=3/8: one part of eight
	$(call pytest,.venv,compiled) $(PYTEST_FLAGS) -m "dear or full" $(if $(PART),--part $(PART)) $(TESTS)

# pytest(VENV, BUILD): nothing but VENV's site-packages offers the packages, also to the programs that tests start
pytest = env PYTHONSAFEPATH=1 SFRAMEGEN_EXPECT_BUILD=$(2) SFRAMEGEN_PURE_PYTHON='$(CURDIR)/.venv-pure/bin/python' $(1)/bin/pytest

# It needs nothing but Python, and asks no reader of sframegen for a verdict.
.PHONY: conformance
conformance: | machine ## small sections with verdicts, for readers and linkers of SFrame, in build/conformance and as a tarball: docs/conformance.md
	rm -rf build/conformance build/conformance.tar.gz
	mkdir -p build
	$(PYTHON) -m conformance build/conformance

.PHONY: lint
lint: .venv/lint-tools ## ruff, mypy, also of the recipes in docs/library.md, and the project's own rules: tools/lint
	.venv/bin/ruff check $(LINTED)
	.venv/bin/ruff format --check $(LINTED)
	.venv/bin/mypy
	sed -n '/^```python$$/,/^```$$/{/^```/!p}' docs/library.md > .mypy_cache/recipes.py
	.venv/bin/mypy .mypy_cache/recipes.py
	.venv/bin/python -m tools.lint

# --- Documents ---------------------------------------------------------------------------------------------------------------------

.venv/docs-tools: .venv/installed
	.venv/bin/pip install --quiet -r $(call requirements,["project"]["optional-dependencies"]["docs"]) \
	    -r $(call requirements,["project"]["optional-dependencies"]["bench"])
	touch $@

# Warnings are errors: a link that leads nowhere, a page that no list has, a name that the reference lacks.
sphinx = PYTHONSAFEPATH=1 .venv/bin/python -m sphinx --fail-on-warning --keep-going --quiet --doctree-dir build/doctrees

.PHONY: docs
docs: .venv/docs-tools ## the site, in build/site
	$(sphinx) docs build/site

.PHONY: man
man: .venv/docs-tools ## the man pages, in build/man
	$(sphinx) --builder man docs build/man

# What is measured has to be named because some of it is large; BENCH_FLAGS: `python -m benchmarks.run --help` lists them.
measured := bash libc libcrypto libLLVM librustc_driver libxul
BENCH_FLAGS ?= --json docs/measured/performance.json

.PHONY: bench
bench: .venv/docs-tools peers test-machine | machine ## sizes, times, memory against other tools': docs/measured.md
	@packages=(); \
	for program in gcc npm; do command -v "$$program" >/dev/null || packages+=("$$program"); done; \
	$(install_packages)
	tools/get-gcc
	$(PYTHON) -m corpus.fetch $(measured)
	.venv/bin/python -m benchmarks.run $(BENCH_FLAGS)

.PHONY: peers
peers:
	tools/get-peers $(SFRAMEGEN_PEERS)
	tools/get-old-binutils
	tools/get-qemu

.PHONY: corpus
corpus: | machine ## fetch the binaries that everything is tried on
	$(PYTHON) -m corpus.fetch

# --- Studies -----------------------------------------------------------------------------------------------------------------------

# By the study's name: whether its results are kept, as JSON; what is fetched before it; program:package or file:package; its environment, if that
# is not the one of the tests. corpus/README.md describes the studies.
kept := $(addprefix benchmarks.,backtrace linking profilers) tests.checks.damages tests.mutations $(addprefix corpus.,blind conformance \
    contradictions ground_truth kernel_sections kernels merge projects run stacks survey tools)
writes = $(if $(filter $(STUDY),$(kept)),--json docs/measured/$(lastword $(subst ., ,$(STUDY))).json) $(writes_$(STUDY))
writes_corpus.conformance := --measured
writes_tests.fuzz := --corpus .fuzz --seconds 60

fetches := $(PYTHON) -m corpus.fetch
before_benchmarks.backtrace := ldconfig -p | grep -q 'libunwind\.so\.1 ' || \
    tools/install-packages $$(apt-cache pkgnames libunwind- | grep -E '^libunwind-[0-9]+$$' | sort -V | tail -n 1)
before_benchmarks.everyday := $(fetches) bash libLLVM libxul
before_benchmarks.linking := tools/get-gcc
before_benchmarks.profilers := tools/get-peers --profilers && $(fetches) libc libLLVM libxul
before_corpus.blind := $(fetches) && $(fetches) libLLVM
before_corpus.conformance := tools/get-old-binutils --llvm
before_corpus.contradictions := $(fetches)
before_corpus.merge := tools/get-gcc
before_corpus.run := $(fetches)
before_tests.checks.damages := $(fetches)

needs_benchmarks.backtrace := /usr/lib/$(shell uname -m)-linux-gnu/libunwind.so.8:libunwind8
needs_benchmarks.profilers := git:git rg:ripgrep pgbench:postgresql
needs_corpus.kernels := qemu-system-x86_64:qemu-system-x86 qemu-system-aarch64:qemu-system-arm x86_64-linux-gnu-gcc:gcc-x86-64-linux-gnu \
    aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu
needs_corpus.kernel_sections := qemu-system-aarch64:qemu-system-arm aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu clang-19:clang-19 ld.lld-19:lld-19 \
    modinfo:kmod flex:flex bison:bison bc:bc llvm-objcopy-19:llvm-19
needs_corpus.projects := /usr/include/gtest/gtest.h:libgtest-dev

environment_benchmarks.backtrace := .venv/docs-tools
environment_corpus.survey := .venv/fleet-tools
environment_tests.fuzz := .venv-pure/test-tools
environment_tests.mutations := .venv/mutations-tools .venv-pure/test-tools
environment := $(or $(environment_$(STUDY)),.venv/test-tools)

.PHONY: named-study
named-study:
	@[[ -n "$(STUDY)" ]] || { echo "make study STUDY=MODULE, such as corpus.merge, benchmarks.linking, tests.fuzz: corpus/README.md" >&2; exit 2; }

.PHONY: study
study: named-study $(environment) peers test-machine ## a study, benchmark or long test: corpus/README.md; STUDY, as in STUDY=corpus.merge, FLAGS
	@packages=(); $(call missing,$(needs_$(STUDY))); $(install_packages)
	$(before_$(STUDY))
	$(dir $(firstword $(environment)))bin/python -m $(STUDY) $(writes) $(FLAGS)

# --- Releasing it ------------------------------------------------------------------------------------------------------------------

.venv-release/tools: tools/release/requirements.txt | machine
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/pip install --quiet -r tools/release/requirements.txt
	touch $@

released_with := git:git x86_64-linux-gnu-gcc:gcc-x86-64-linux-gnu aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu \
    s390x-linux-gnu-gcc:gcc-s390x-linux-gnu $(rooted_with) $(kernel_program_with)

# A cross compiler only recommends the headers of its libc.
machine_headers := amd64:x86_64 arm64:aarch64 s390x:s390x

.PHONY: release-machine
release-machine: | machine
	@packages=(); \
	$(call missing,$(released_with)); \
	for pair in $(machine_headers); do \
	    [[ $$(dpkg --print-architecture) == "$${pair%%:*}" || -e /usr/$${pair#*:}-linux-gnu/include/stdio.h ]] || packages+=("libc6-dev-$${pair%%:*}-cross"); \
	done; \
	$(install_packages)

.PHONY: wheel
wheel: .venv-release/tools | release-machine ## the sdist and wheels of the last commit, in dist; WHEEL_FLAGS=--compare: build again, elsewhere, and compare the bytes
	.venv-release/bin/python -m tools.release $(WHEEL_FLAGS)

version = $(shell sed -n 's/^__version__ = "\(.*\)".*/\1/p' sframegen/__init__.py)

.PHONY: release
release: wheel conformance ## everything that is released of the last commit, with checksums, in dist: docs/testing.md
	rm -f dist/*.cdx.json
	cp build/conformance.tar.gz dist/sframegen-$(version)-conformance.tar.gz
	.venv-release/bin/python -m tools.release.sbom
	cd dist && sha256sum sframegen-* >SHA256SUMS

# Needs root, and Linux 6.7 for the machines that are emulated.
.PHONY: test-wheel
test-wheel: .venv-release/tools | release-machine ## dist's wheels, installed where there is only Python: docs/installing.md; TRIAL_FLAGS
	.venv-release/bin/python -m tools.release.trial --docs docs/installing.md $(TRIAL_FLAGS)

.PHONY: clean
clean: ## remove what was made here; peers and corpus stay in the cache
	rm -rf .venv .venv-pure .venv-release $(constraints:%=.venv-%) .fuzz build dist docs/reference *.egg-info .mypy_cache .ruff_cache .hypothesis
