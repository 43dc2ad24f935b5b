# One command per activity; HACKING.md explains them. All install what they lack and ask nothing.
SHELL := /bin/bash
CONFIGURE = test -f build/$(1)/build.ninja || cmake --preset $(1)
BUILD = $(call CONFIGURE,$(1)) && cmake --build --preset $(1)
SOURCES = git ls-files -co --exclude-standard -- '*.h' '*.c' '*.cc' '*.cu' | sort -u
BENCHES := attention blocks cascade cache codec index model pool
# The layers whose suites find most in a second under ASan: threads, memory, the disk, sockets and what parses,
# and no kernels, which take as long to compile as all of these.
QUICK := $(addsuffix _test,base env index evict quota pool tier remote store text)
FUZZERS := $(basename $(notdir $(wildcard src/*/*_fuzz.cc src/*/*/*_fuzz.cc)))

PREFIX ?= /usr/local

.PHONY: help build build-times cuda install deb test-deb docs demo test bench bench-page bench-peers bench-shared-prefix asan asan-quick thorough tsan stress serve-load fuzz-smoke sim turns tidy mutants long-context nightly format format-check test-hf wheel test-adapters clean deps dev-deps asan-deps
.NOTPARALLEL:

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

deps:
	@scripts/install-deps

dev-deps:
	@scripts/install-deps --dev

asan-deps:
	@scripts/install-deps --asan

build: deps  ## the program, at build/release/quire
	@test -x build/release/quire || echo "build/release/quire: the first build takes some minutes; [files done/in all]"
	@$(call BUILD,release) $(if $(wildcard apps/quire/CMakeLists.txt),--target quire)

cuda: deps  ## the program for CUDA devices too, at build/cuda/quire (needs nvcc 13, no device)
	@command -v nvcc >/dev/null || { echo "make cuda: nvcc is not in PATH; install CUDA 13 and try again"; exit 2; }
	@$(call BUILD,cuda)

install: build  ## the program, libquire.so, headers, CMake and pkg-config files; PREFIX and DESTDIR
	@$(call BUILD,release) --target quire_shared
	@DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(PREFIX)" --strip
	@scripts/debug-files build/release "$(DESTDIR)$(PREFIX)"

deb: build  ## Debian packages in build/deb: libquire, libquire-dev, quire
	@scripts/install-deps --packages
	@$(call BUILD,release) --target quire_shared
	@scripts/package-files build/release
	@rm -rf build/deb
	@cpack --config build/release/CPackConfig.cmake -G DEB -B build/deb
	@rm -rf build/deb/_CPack_Packages

test-deb: deb  ## installs the packages in a fresh Debian 12 root (as root) and runs them there
	@tests/packages/clean-root.sh build/deb

docs:  ## the docs site, at build/site/index.html; a dead link is an error
	@scripts/install-deps --docs
	@scripts/venv docs
	@NO_MKDOCS_2_WARNING=1 build/venv-docs/bin/mkdocs build

demo: deps  ## the main job, end to end, on the bundled model
	@test -x build/release/quire_demo || echo "build/release/quire_demo, a part of the program: the first build takes some minutes; [files done/in all]"
	@$(call BUILD,release) --target quire_demo
	@build/release/quire_demo demo

test: deps  ## every suite; ends with: N passed, N failed
	@$(call BUILD,release)
	@scripts/run-tests build/release

build-times: deps  ## what a build costs in CPU seconds: by target, file and header
	@scripts/build-times

bench: deps  ## what the machine does, by every quire bench
	@$(call BUILD,release)
	@set -e; for name in $(BENCHES); do build/release/quire bench $$name; done

bench-page: build  ## measures this machine (KIND=zen4 TRACE=FILE) and renews docs/benchmarks.md
	@test -n "$(KIND)" || { echo "bench-page: say what kind of machine this is: KIND=zen4"; exit 2; }
	@scripts/benchmarks record "$(KIND)" $(if $(TRACE),--trace "$(TRACE)")
	@scripts/benchmarks page

bench-peers: build  ## the same beside llama.cpp, which is compiled first (FLAGS="--json --rounds 9")
	@bench/peers/run.sh kernels $(FLAGS)

bench-shared-prefix: build  ## 64 clients with one long prefix, beside llama-cpp-python's server (FLAGS="--rounds 1")
	@bench/peers/run.sh shared_prefix $(FLAGS)

asan: dev-deps  ## the C++ suites under AddressSanitizer and UBSan
	@$(call BUILD,asan)
	@scripts/run-tests build/asan --cpp-only

asan-quick: asan-deps  ## the same of the layers below the cache and of what parses text
	@$(call BUILD,asan) --target $(QUICK)
	@scripts/run-tests --cpp-only build/asan $(QUICK)

thorough: deps  ## every suite with all the cases that `make test` takes a sample of
	@$(call BUILD,release)
	@scripts/venv remote
	@QUIRE_THOROUGH=1 scripts/run-tests build/release

tsan: dev-deps  ## the C++ suites under ThreadSanitizer
	@$(call BUILD,tsan)
	@QUIRE_STRESS_SECONDS=$${QUIRE_STRESS_SECONDS:-60} scripts/run-tests build/tsan --cpp-only

stress: dev-deps  ## the stress test for ten minutes under ThreadSanitizer
	@$(call BUILD,tsan) --target registry_test
	@QUIRE_STRESS_SECONDS=$${QUIRE_STRESS_SECONDS:-600} \
	  build/tsan/bin/registry_test --gtest_filter='Stress.*'

serve-load: build  ## 200 streaming clients on one server for five minutes
	@scripts/venv
	@QUIRE_SERVE_CLIENTS=$${QUIRE_SERVE_CLIENTS:-200} QUIRE_SERVE_SECONDS=$${QUIRE_SERVE_SECONDS:-300} \
	  QUIRE_BINARY=build/release/quire build/venv/bin/python -m pytest -q -s -p no:cacheprovider \
	  tests/e2e/test_serve_load.py

mutants: deps  ## small faults put into the code: how many the suites notice (FLAGS="--folder pool")
	@scripts/mutants $(FLAGS)

sim: build  ## 10,000 seeds of all three simulators, 2,000 steps each
	@build/release/quire sim --what all --seeds 1..10000 --steps 2000

many-tenants: deps  ## a store of which a million tenants are erased
	@$(call BUILD,release) --target tier_test
	@QUIRE_MANY_TENANTS=1 build/release/bin/tier_test --gtest_filter='*VeryManyTenants*'

turns: deps  ## threads of a cache in the orders of 30,000 seeds
	@$(call BUILD,release) --target turns_test
	@QUIRE_TURNS_SEEDS=$${QUIRE_TURNS_SEEDS:-1..30000} build/release/bin/turns_test --gtest_brief=1

long-context: build  ## 200,000 tokens with a twentieth of them in memory, on a real directory (LONG="--directory DIR")
	@scripts/venv
	@build/venv/bin/python scripts/long-context $(LONG)
	@build/venv/bin/python scripts/long-context --window 4096

nightly: dev-deps  ## all that is too slow for every change, each step in turn; ends with one line
	@scripts/nightly

tidy: dev-deps  ## clang-tidy over src and apps; findings are errors
	@cmake --preset tidy >/dev/null
	@run-clang-tidy-19 -quiet -p build/tidy '^(?!.*_(test|bench)\.cc$$).*/(src|apps)/.*\.cc$$'

fuzz-smoke: dev-deps  ## every fuzzer for FUZZ_SECONDS (60) under AddressSanitizer and UBSan
	@$(call BUILD,fuzz) --target $(FUZZERS)
	@scripts/fuzz-smoke $(FUZZERS)

format: dev-deps  ## rewrites the C++ files in the house format
	@$(SOURCES) | xargs -r clang-format-19 -i

format-check: dev-deps  ## fails if `make format` would change a file
	@$(SOURCES) | xargs -r clang-format-19 --dry-run --Werror

test-hf: build  ## compares with Hugging Face transformers, live (installs PyTorch for the CPU)
	@if [ -x tests/hf/run.sh ]; then tests/hf/run.sh; else echo "tests/hf/run.sh is missing"; exit 1; fi

wheel: build  ## the Python package as a wheel that needs nothing of this machine, in build/wheel
	@scripts/wheel

test-adapters: build  ## Quire under the engines of docs/adapters (ENGINES=transformers: some of them)
	@scripts/test-adapters $(ENGINES)

clean:  ## removes build/
	@rm -rf build
