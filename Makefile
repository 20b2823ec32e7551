# SPDX-License-Identifier: Apache-2.0
#
# make            the library and the program, in build/
# make demo       install what is missing, build, quantize the shipped model, plan, generate, evaluate
# make test       install what is missing, build, run every test; last line: N passed, N failed
# make test-neon  Arm's kernels alone, under qemu; with fewer cases part of make test
# make portable   every file but those of src/base and src/device compiles with POSIX alone; part of make test
# make lint       style, layers and formatting
# make SAN=address,undefined test-unit      the same tests under sanitizers, in their own build folder
# make CUDA=1     with kernels for NVIDIA's GPUs, where nvcc (12.0 or later) is, in build/cuda; other builds lack
#                 them, say so, and take no longer for a machine that has nvcc
# make test-cuda-build   compiles those kernels and reads the machine code; needs nvcc, no GPU
# make test-cuda-emulated   checks them by their sources on the CPU; both, with fewer cases, are part of make test
# make test-gpu   checks and times them on the GPUs found; says `skipped` where there is none
# make test-bare  make demo, make test and more in a fresh Debian in build/bare; needs root and debootstrap
# make install PREFIX=/usr/local, make uninstall PREFIX=/usr/local

CC      ?= gcc
AR      ?= ar
PREFIX  ?= /usr/local
SAN     ?=
CUDA    ?=
BUILD   ?= build/$(if $(SAN),san-$(subst $(comma),-,$(SAN)),$(if $(CUDA),cuda$(CUDA:1=),release))
comma   := ,

VERSION := $(shell sed -n 's/^.define NIB_VERSION "\(.*\)"/\1/p' include/nibble.h)
# opencl-c-headers (CL/cl.h) has no .pc file; the library itself is loaded at run time.
PKGS    := oniguruma libutf8proc libxxhash
# Empty while the packages are not installed yet: tools/setup installs them before anything is compiled.
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
PROGRAM_LIBS := $(shell pkg-config --libs libmicrohttpd libedit 2>/dev/null) # the library needs neither
CMOCKA     := -lcmocka

WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes
STRICT  := -Wconversion
# What is sanitized is checked, not timed, and half of the time to build it went into optimizing it.
OPT     ?= $(if $(SAN),-O1 -g1,-O2 -g)
# Every folder of the library is here; make arm-programs builds the first of them alone.
FOLDERS := base kernel kernel/cpu kernel/gpu device container checkpoint checkpoint/dialect verify quant graph plan model model/arch \
           tokenizer template constrain handle planner session measure convert advise api train
MODULES := $(FOLDERS)
CPPFLAGS += -Iinclude $(FOLDERS:%=-Isrc/%) $(PKG_CFLAGS) -D_GNU_SOURCE
# No contraction: where a fused multiply-add is meant, the source says fma.
CFLAGS  += -std=c11 $(OPT) -ffp-contract=off -fvisibility=hidden -fPIC -pthread $(WARN)
LDLIBS  += $(PKG_LIBS) -pthread -lm -ldl
ifneq ($(SAN),)
CFLAGS  += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined
LDFLAGS += -fsanitize=$(SAN)
endif

ifneq ($(CUDA),)
CPPFLAGS += -DNIB_WITH_CUDA
endif

# Kernels of other processors are left out; their rows stay in the table, not built.
X86_ISA  := avx2 avx512 avx512vnni avx512bf16
ARM_ISA  := neon dotprod i8mm
MACHINE  := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))
FOREIGN  := $(if $(filter x86_64,$(MACHINE)),,$(X86_ISA)) $(if $(filter aarch64 arm64,$(MACHINE)),,$(ARM_ISA))
LIB_SRC  := $(filter-out $(FOREIGN:%=\%__%.c),$(foreach m,$(MODULES),$(wildcard src/$(m)/*.c)))
CLI_SRC  := $(wildcard src/cli/*.c src/serve/*.c)
UNIT_SRC := $(wildcard tests/unit/test_*.c)
MACHINES := $(patsubst %,machines/%.json,$(sort $(patsubst machines/%.json,%,$(wildcard machines/*.json))))
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o) $(BUILD)/made/machine_files.o
PAGE     := $(sort $(wildcard web/*.html web/*.js web/*.css web/*.svg))
CLI_OBJ  := $(CLI_SRC:%.c=$(BUILD)/%.o) $(BUILD)/made/page_files.o
UNIT_BIN := $(UNIT_SRC:tests/unit/%.c=$(BUILD)/tests/%)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_BIN := $(FUZZ_SRC:tests/fuzz/%.c=$(BUILD)/fuzz/%)
LIB      := $(BUILD)/libnibble.a
PROGRAM  := $(BUILD)/nibble

all: $(LIB) $(if $(CLI_SRC),$(PROGRAM))

# A kernel file names what it needs: linear_a8t_w4g__avx512vnni.c is compiled for that and nothing more.
$(BUILD)/src/kernel/cpu/%__avx2.o:       ISA = -mavx2 -mfma -mf16c -mbmi2
$(BUILD)/src/kernel/cpu/%__avx512.o:     ISA = -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mbmi2
$(BUILD)/src/kernel/cpu/%__avx512vnni.o: ISA = -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c -mbmi2
$(BUILD)/src/kernel/cpu/%__avx512bf16.o: ISA = -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma -mf16c -mbmi2
$(BUILD)/src/kernel/cpu/%__neon.o:       ISA = -march=armv8-a
$(BUILD)/src/kernel/cpu/%__dotprod.o:    ISA = -march=armv8.2-a+dotprod
$(BUILD)/src/kernel/cpu/%__i8mm.o:       ISA = -march=armv8.2-a+dotprod+i8mm
$(BUILD)/src/kernel/cpu/%.o: STRICT = $(KERNEL_FLAGS)
# Sanitized, with tiles inlined in every form, kernels would take minutes to compile. Line tables only: tracking variables
# doubles the time that unrolled tiles take.
$(BUILD)/src/kernel/cpu/%.o: CPPFLAGS += $(if $(SAN),-D'NIB_INLINE=static inline __attribute__((unused))')
KERNEL_OPT = $(if $(SAN),-O1,-O3)
$(BUILD)/src/kernel/cpu/%.o: OPT = $(KERNEL_OPT) -g1
# Loading and quantizing pass every weight through these loops.
$(BUILD)/src/base/float_formats.o $(BUILD)/src/checkpoint/weight_check.o $(BUILD)/src/checkpoint/weight.o: OPT = $(if $(SAN),-O1 -g1,-O3 -g)
$(BUILD)/src/base/hash__avx512.o: ISA = -mavx512f
$(BUILD)/src/base/hash__avx512.o: STRICT =
$(BUILD)/src/base/hash__avx512.o: OPT = $(if $(SAN),-O1 -g1,-O3 -g)
# Its accumulators must stay in registers, or it measures the first cache.
$(BUILD)/src/device/measure.o: OPT = -O3 -g

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(STRICT) $(ISA) -MMD -MP -c $< -o $@

# Sources for a device's compiler go into the library as bytes: prelude.cl becomes nib__text_prelude_cl.
EMBEDDED := $(wildcard src/kernel/gpu/*.cl)
LIB_OBJ  += $(EMBEDDED:%=$(BUILD)/%.o)
$(BUILD)/%.cl.c: %.cl
	@mkdir -p $(@D)
	@{ echo '#include <stddef.h>'; name=$$(basename $< | tr . _); \
	   echo "extern const unsigned char nib__text_$$name[]; extern const size_t nib__size_$$name;"; \
	   echo "const unsigned char nib__text_$$name[] = {"; od -An -v -tu1 $< | sed 's/\([0-9][0-9]*\)/\1,/g'; \
	   echo "0};"; echo "const size_t nib__size_$$name = sizeof nib__text_$$name - 1;"; } > $@
$(BUILD)/%.cl.o: $(BUILD)/%.cl.c
	$(CC) $(CFLAGS) -c $< -o $@

# Programs for CUDA, of which each has a fat binary: machine code of each architecture, all made of the PTX of
# the first, which is in it for those that come later.
LIB_OBJ     += $(BUILD)/cuda/programs.o
NVCC        ?= $(or $(shell command -v nvcc 2>/dev/null),/usr/local/cuda/bin/nvcc)
CUDA_FOLDER := $(BUILD)/cuda/images
CUDA_HEADERS := $(wildcard src/kernel/gpu/*.cuh) src/kernel/gpu/prelude.cl
CUDA_ALL     = $(shell $(NVCC) --list-gpu-arch | sed 's/.*_//')
CUDA_ARCHS  ?= $(filter 80 90 100,$(CUDA_ALL))
ifneq ($(CUDA),)
CUDA_ARCHS  := $(CUDA_ARCHS)
CPPFLAGS    += $(CUDA_ARCHS:%=-DNIB_WITH_SM%)
endif
NVCC_FLAGS   = -std=c++17 -O3 -x cu -include $(CURDIR)/src/kernel/gpu/cuda_prelude.cuh -Isrc/kernel/gpu \
               --Werror all-warnings -diag-suppress 177 -Xptxas -v
# $1: the architecture that a program asks for, if any. One that ends in a letter is its machine code alone; of others
# there is that of later ones, too, and the PTX.
CUDA_IF      = $(if $(filter-out $(CUDA_ARCHS),$(patsubst %a,%,$(filter %a,$1))),,$2)
CUDA_CODE    = $(if $1,-gencode arch=compute_$1$(comma)code=$(if $(filter %a,$1),sm_$1,$(call CUDA_LIST,$1,$1 $(filter-out 80,$(CUDA_ARCHS)))),\
               -gencode arch=compute_$(firstword $(CUDA_ARCHS))$(comma)code=$(call CUDA_LIST,$(firstword $(CUDA_ARCHS)),$(CUDA_ARCHS)))
CUDA_LIST    = '[compute_$1$(subst $() ,,$(2:%=$(comma)sm_%))]'
# Codes and tokens are those of the CPU: no multiplication and addition are made one.
CUDA_EXACT  := quant.cl quant_w.cl cast.cl sample.cl
CUDA_COMPILE = @mkdir -p $(@D); echo "nvcc $1 $2"; $(NVCC) -fatbin $(NVCC_FLAGS) $(call CUDA_CODE,$3) $(if $(filter $(CUDA_EXACT),$1),-fmad=false) $2 \
               src/kernel/gpu/$1 -o $@ >$@.log 2>&1 || { cat $@.log; exit 1; }
CUDA_TO_PTX  = @mkdir -p $(@D); $(NVCC) -ptx $(NVCC_FLAGS) -arch=compute_$(or $3,$(firstword $(CUDA_ARCHS))) $2 \
               src/kernel/gpu/$1 -o $@ >$@.log 2>&1 || { cat $@.log; exit 1; }
CUDA_RELEASE = $(shell $(NVCC) --version | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\),.*/\1 \2/p' | awk '{print $$1 * 1000 + $$2 * 10}')
$(BUILD)/cuda/rules.mk: src/kernel/gpu/cuda_programs.txt tools/cuda_programs
	@mkdir -p $(@D)
	@tools/cuda_programs rules $(CUDA_FOLDER) > $@
ifneq ($(CUDA),)
include $(BUILD)/cuda/rules.mk
endif
$(BUILD)/cuda/programs.c: $(CUDA_IMAGES) tools/cuda_programs src/kernel/gpu/cuda_programs.txt
	@mkdir -p $(@D)
	@tools/cuda_programs $(if $(CUDA),table $(CUDA_FOLDER) $(CUDA_RELEASE),none) > $@
$(BUILD)/cuda/programs.o: $(BUILD)/cuda/programs.c $(CUDA_IMAGES)
	$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@

# The files of machines/ as bytes, so that the program needs no file beside it.
$(BUILD)/made/machine_files.c: $(MACHINES) tools/embed_machines machines
	@mkdir -p $(@D)
	tools/embed_machines $(MACHINES) > $@.part
	@mv $@.part $@

# The page of `nibble serve`, likewise.
$(BUILD)/made/page_files.c: $(PAGE) tools/embed_page web
	@mkdir -p $(@D)
	tools/embed_page $(PAGE) > $@.part
	@mv $@.part $@
$(BUILD)/made/page_files.o $(BUILD)/src/serve/%.o $(BUILD)/src/cli/%.o: CPPFLAGS += -Isrc/serve

$(BUILD)/made/%.o: $(BUILD)/made/%.c
	$(CC) $(CPPFLAGS) $(CFLAGS) $(STRICT) -MMD -MP -c $< -o $@

# ---- tests of CUDA ----

cuda-images: $(CUDA_IMAGES)
# `make test` compiles every third of them, test-cuda-build all.
cuda-sample: $(shell printf '%s\n' $(sort $(CUDA_IMAGES)) | awk 'NR % 3 == 0')
cuda-programs: CUDA_GOAL ?= cuda-images
cuda-programs:
	@if command -v $(NVCC) >/dev/null; then $(MAKE) -s $(JOBS) CUDA=1 $(CUDA_GOAL); fi
test-cuda-build: cuda-programs
	@if NVCC=$(NVCC) tests/cuda/check_build --can; then tests/cuda/check_build build/cuda; fi
# The same sources as C++ on the CPU, behind a libcuda.so.1 of the tests' own: a kernel checker and a program whose library has
# the rows of CUDA, with names in the place of their programs.
EMULATED     := $(BUILD)/emulated
EMULATED_OBJ := $(patsubst %.c,$(EMULATED)/%.o,$(wildcard src/kernel/gpu/cuda_*.c)) $(EMULATED)/programs.o
CUDA_SOURCES := $(wildcard src/kernel/gpu/*.cl src/kernel/gpu/*.cu src/kernel/gpu/*.cuh) src/kernel/gpu/cuda_programs.txt tools/cuda_programs
$(EMULATED)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -DNIB_WITH_CUDA -DNIB_WITH_SM90 -DNIB_WITH_SM100 $(CFLAGS) $(STRICT) -MMD -MP -c $< -o $@
$(EMULATED)/programs.c $(EMULATED)/programs.h &: $(CUDA_SOURCES)
	@mkdir -p $(@D)
	@tools/cuda_programs names > $(EMULATED)/programs.c
	@tools/cuda_programs emulated > $(EMULATED)/programs.h
$(EMULATED)/programs.o: $(EMULATED)/programs.c
	$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@
$(EMULATED)/check_kernels: tests/kernel/check_kernels.c $(EMULATED_OBJ) $(LIB)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP $(LDFLAGS) $< $(EMULATED_OBJ) -o $@ $(LIB) $(LDLIBS)
$(EMULATED)/libcuda.so.1: tests/cuda/emulated_cuda.cpp $(wildcard tests/cuda/*.h) $(EMULATED)/programs.h
	$(CXX) -std=c++17 -O1 -U_FORTIFY_SOURCE -fPIC -shared -Wall -Wextra -Wno-unused -Wno-unknown-pragmas -Isrc/kernel/gpu \
	    -Itests/cuda -DEMULATED_PROGRAMS='"$(CURDIR)/$(EMULATED)/programs.h"' $< -o $@
$(EMULATED)/nibble: $(CLI_OBJ) $(EMULATED_OBJ) $(LIB)
	$(CC) $(LDFLAGS) -o $@ $(CLI_OBJ) $(EMULATED_OBJ) $(LIB) $(LDLIBS) $(PROGRAM_LIBS)
cuda-emulated: $(EMULATED)/check_kernels $(EMULATED)/nibble $(EMULATED)/libcuda.so.1
test-cuda-emulated: cuda-emulated
	LD_LIBRARY_PATH=$(EMULATED) $(EMULATED)/check_kernels --row __sm
	for sm in 90 100; do EMULATED_CUDA_SM=$$sm LD_LIBRARY_PATH=$(EMULATED) $(EMULATED)/check_kernels --row __sm$$sm || exit 1; done
# On the GPUs found: every row, then how fast the products are beside a copy and cuBLAS.
test-gpu:
	@if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then echo "skipped: test-gpu: no CUDA device"; \
	elif ! command -v $(NVCC) >/dev/null; then echo "skipped: test-gpu: no nvcc"; else \
	    $(MAKE) -s $(JOBS) CUDA=1 test-programs && build/cuda/tests/check_kernels --row __sm && \
	    build/cuda/tests/check_kernels --bench-gpu; fi

$(LIB): $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(PROGRAM): $(CLI_OBJ) $(LIB)
	$(CC) $(LDFLAGS) -o $@ $(CLI_OBJ) $(LIB) $(LDLIBS) $(PROGRAM_LIBS)

$(UNIT_BIN): private OPT = -O1 -g1
$(BUILD)/tests/%: tests/unit/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -Itests $(CFLAGS) -MMD -MP $(LDFLAGS) $< -o $@ $(LIB) $(LDLIBS) $(CMOCKA)

$(BUILD)/fuzz/%: tests/fuzz/%.c tests/fuzz/regress_main.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -MF $@.d $(LDFLAGS) $(filter %.c,$^) -o $@ $(LIB) $(LDLIBS)

$(BUILD)/fuzz-%: tests/fuzz/fuzz_%.c $(LIB)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -MF $@.d $(LDFLAGS) -fsanitize=fuzzer $< -o $@ $(LIB) $(LDLIBS)

# Programs that the scripts in tools/oracle talk to.
$(BUILD)/oracle/%: tools/oracle/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -MF $@.d $(LDFLAGS) $< -o $@ $(LIB) $(LDLIBS)

KERNEL_CHECK := $(patsubst tests/kernel/%.c,$(BUILD)/tests/%,$(wildcard tests/kernel/check_kernels.c))

$(BUILD)/tests/%: tests/kernel/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP $(LDFLAGS) $< -o $@ $(LIB) $(LDLIBS)

unit: $(UNIT_BIN)

# Programs for measuring: build/release/tools/random_checkpoint CONFIG_DIR OUT_DIR
tools: $(BUILD)/tools/random_checkpoint
$(BUILD)/tools/%: tools/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(STRICT) -MMD -MP $(LDFLAGS) $< -o $@ $(LIB) $(LDLIBS)

# ---- other systems ----

# Outside of src/base and src/device every file compiles with what POSIX has and nothing else. The width of a terminal
# and a map without a file are not POSIX's; every BSD, macOS too, has them.
EVERY_ISA := $(if $(filter x86_64,$(MACHINE)),-mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl \
             -mavx512vnni -mavx512bf16) $(if $(filter aarch64 arm64,$(MACHINE)),-march=armv8.2-a+dotprod+i8mm)
POSIX_SRC := $(filter-out src/base/% src/device/%,$(LIB_SRC) $(CLI_SRC))
READ       = @mkdir -p $(@D); $(CC) $(filter-out -D_GNU_SOURCE,$(CPPFLAGS)) $1 $(CFLAGS) -fsyntax-only \
             -Werror=implicit-function-declaration -MMD -MP -MF $@.d -MT $@ $< && touch $@
$(BUILD)/portable/src/cli/terminal.ok: MORE = -D_DEFAULT_SOURCE -D_DARWIN_C_SOURCE
$(BUILD)/portable/%.ok: %.c
	$(call READ,-D_XOPEN_SOURCE=700 $(MORE) $(EVERY_ISA) -Isrc/serve)
# And what base and device do on macOS is read by a compiler, with stand-ins for what it has.
APPLE_SRC := $(filter src/base/% src/device/%,$(LIB_SRC))
$(BUILD)/apple/%.ok: %.c tests/portable/apple.h
	$(call READ,-D_GNU_SOURCE -U__linux__ -Itests/portable/apple -include tests/portable/apple.h)
apple: $(APPLE_SRC:%.c=$(BUILD)/apple/%.ok)
portable: $(POSIX_SRC:%.c=$(BUILD)/portable/%.ok) apple
	@if command -v aarch64-linux-gnu-gcc >/dev/null; then $(MAKE) -s apple BUILD=build/aarch64 CC=aarch64-linux-gnu-gcc \
	    PKG_CFLAGS="-DXXH_INLINE_ALL -Itests/arm"; fi

# ---- what a person types ----

# On every core, unless -j was given.
JOBS = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 2))

demo: setup
	@[ -x $(PROGRAM) ] || echo "building $(PROGRAM): some minutes the first time"
	@$(MAKE) -s $(JOBS) all
	@tools/demo $(PROGRAM)

test: setup-test
	@echo "building the program and its tests, plain and with sanitizers: many minutes the first time"
	@$(MAKE) -s $(JOBS) all test-programs
	@$(MAKE) -s $(JOBS) test-programs SAN=address,undefined
	@$(MAKE) -s arm-programs
	@$(MAKE) -s cuda-programs CUDA_GOAL=cuda-sample
	@$(MAKE) -s $(JOBS) cuda-emulated
	@tests/run $(BUILD) build/san-address-undefined build/aarch64

setup:
	@tools/setup
setup-test:
	@tools/setup test

test-programs: $(UNIT_BIN) $(FUZZ_BIN) $(KERNEL_CHECK) $(if $(SAN),,$(BUILD)/tests/matrix tools $(BUILD)/oracle/logits_of)

# One after the other, stopping at the first that fails.
test-unit: $(UNIT_BIN)
	@for t in $(UNIT_BIN); do echo "== $${t##*/}"; $$t || exit 1; done
test-fuzz: $(FUZZ_BIN)
	@for t in $(FUZZ_BIN); do n=$${t##*/fuzz_}; echo "== fuzz_$$n"; $$t tests/fuzz/corpus/$$n || exit 1; done
check-kernels: $(KERNEL_CHECK)
	$(KERNEL_CHECK)

# The kernel checker and the tests of kernels for Arm: linked without the libraries that kernels do not need, because a
# machine has them for its own architecture only. Without a compiler nothing is built, and tests/arm/run says so.
ARM_TESTS := check_kernels $(addprefix test_,linear_int linear_float quant_rows cast train_rows float_formats portable_math machine)
arm-programs:
	@if command -v aarch64-linux-gnu-gcc >/dev/null; then $(MAKE) -s $(JOBS) $(ARM_TESTS:%=build/aarch64/tests/%) BUILD=build/aarch64 \
	    SAN= KERNEL_OPT=-O1 CC=aarch64-linux-gnu-gcc AR=aarch64-linux-gnu-ar MODULES='base kernel kernel/cpu kernel/gpu device' LDFLAGS=-static \
	    PKG_CFLAGS='-DXXH_INLINE_ALL -Itests/arm -DEMULATED' PKG_LIBS= CMOCKA=; fi
test-neon: arm-programs
	@NIBBLE_TEST_ALL=1 tests/arm/run build/aarch64
test-sanitized:
	@$(MAKE) -s $(JOBS) test-programs SAN=address,undefined
	@NIBBLE_TEST_ALL=1 tests/run --sanitized $(BUILD) build/san-address-undefined

lint: all
	tools/lint $(BUILD)

# Formats all sources by .clang-format, with clang-format 14 (Debian 12).
format:
	git ls-files '*.c' '*.h' '*.cpp' | xargs clang-format -i

# Pages that are printed by the program; `make lint` compares them.
docs: all
	$(PROGRAM) kernels --markdown > docs/kernels.md
	$(PROGRAM) models --markdown > docs/models.md
	$(PROGRAM) recipes --markdown > docs/recipes.md
	$(PROGRAM) formats --markdown > docs/checkpoints.md
	$(PROGRAM) manual --markdown > docs/commands.md
	$(PROGRAM) train --keys --markdown > docs/config.md
	$(PROGRAM) devices --markdown > docs/machines.md
	$(PROGRAM) explain --markdown > docs/codes.md
	tools/draw_folders > docs/images/folders.svg

bench: all
	$(PROGRAM) bench --kernels

# All of what `make test` runs a part of: every case of every row of a device here, for Arm and under sanitizers, every program for
# CUDA, training on and measuring a device, and every family by every scheme, cache, machine and way of training; over an hour.
# CELLS='WORD...': cells whose names have all the words, and nothing else.
matrix: $(if $(CELLS),,all check-kernels test-cuda-build test-neon test-sanitized) $(BUILD)/tests/matrix
	$(if $(CELLS),,NIBBLE_TEST_ALL=1 tests/cli/run measure opencl_train)
	XDG_CACHE_HOME=$(CURDIR)/$(BUILD)/test-cache $(BUILD)/tests/matrix $(CELLS)
# These need Python packages from PyPI (tools/golden/requirements.txt); the documentation says when they last ran.
golden:
	tools/golden/run
oracle: all
	tools/oracle/run $(PROGRAM)
audit: all
	tools/audit/run $(PROGRAM)
# One-line changes that make the program silent, each built in a copy of the tree: does the audit find it?
audit-mutants: all $(BUILD)/oracle/logits_of
	tools/audit/mutants $(BUILD) --out $(BUILD)/mutants.md
# What a stranger gets: a fresh Debian, a clone of HEAD and nothing beside it; about an hour.
test-bare:
	tests/bare/run
# The tests that differ without test data, as .ci/run adds them to a run with it.
test-sample: all test-programs
	@tests/run --sample $(BUILD)
# Half an hour of twice as many clients as `nibble serve` has places for; MINUTES=N for less.
soak: all
	NIBBLE=$(CURDIR)/$(PROGRAM) tests/serve/soak
# Each fuzz target under libFuzzer for MINUTES=N, 5 without; needs clang. Kernels, which the targets do not run, are not
# sanitized: clang would take half an hour for them.
fuzz:
	@command -v clang >/dev/null || { echo "make fuzz needs clang, which has libFuzzer: install Debian's clang"; exit 1; }
	@$(MAKE) -s $(JOBS) fuzz-programs CC=clang SAN=fuzzer-no-link,address,undefined BUILD=build/libfuzzer KERNEL_FLAGS='-fno-sanitize=all'
	tests/fuzz/run build/libfuzzer
fuzz-programs: $(FUZZ_SRC:tests/fuzz/fuzz_%.c=$(BUILD)/fuzz-%)
# The page of `nibble serve` in Chromium (tests/page/requirements.txt); page-screenshots are those of the documentation.
test-page: all
	tests/page/run $(BUILD)
page-screenshots: all
	tests/page/run $(BUILD) --screenshots docs/images

# ---- installing ----

# Always: it holds PREFIX, which may be another one this time.
$(BUILD)/nibble.pc: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' 'Name: nibble' \
	    'Description: quantize, check, run, serve and train low-bit language models' 'Version: $(VERSION)' \
	    'Requires.private: $(PKGS)' 'Libs: -L$${libdir} -lnibble' 'Libs.private: -pthread -lm -ldl' \
	    'Cflags: -I$${includedir}' > $@

MANUALS := $(addprefix $(BUILD)/man/nibble,.1 $(addsuffix .1,$(addprefix -,info plan advise quantize convert generate chat serve eval verify bench \
           tune train plot devices kernels models recipes formats explain manual completion)))
$(BUILD)/man/nibble.1: $(PROGRAM)
	@mkdir -p $(@D)
	$(PROGRAM) manual > $@
$(BUILD)/man/nibble-%.1: $(PROGRAM)
	@mkdir -p $(@D)
	$(PROGRAM) manual $* > $@

install: all $(BUILD)/nibble.pc $(MANUALS)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include \
	    $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
	    $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	install -m 755 $(PROGRAM) $(DESTDIR)$(PREFIX)/bin/nibble
	install -m 644 $(LIB) $(DESTDIR)$(PREFIX)/lib/libnibble.a
	install -m 644 include/nibble.h $(DESTDIR)$(PREFIX)/include/nibble.h
	install -m 644 $(BUILD)/nibble.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig/nibble.pc
	install -m 644 $(MANUALS) $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/nibble
	install -m 644 tools/nibble.service $(DESTDIR)$(PREFIX)/share/nibble/nibble.service
	$(PROGRAM) completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/nibble
	$(PROGRAM) completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_nibble
	$(PROGRAM) completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/nibble.fish

# What `make install` put there, and the folders that it made and that are empty now.
INSTALLED := bin/nibble lib/libnibble.a lib/pkgconfig/nibble.pc include/nibble.h share/nibble/nibble.service \
             $(MANUALS:$(BUILD)/man/%=share/man/man1/%) share/bash-completion/completions/nibble \
             share/zsh/site-functions/_nibble share/fish/vendor_completions.d/nibble.fish
uninstall:
	rm -f $(INSTALLED:%=$(DESTDIR)$(PREFIX)/%)
	@cd $(DESTDIR)$(PREFIX) && for folder in lib/pkgconfig share/nibble share/man/man1 share/bash-completion/completions \
	    share/bash-completion share/zsh/site-functions share/zsh share/fish/vendor_completions.d share/fish; do \
	    [ ! -d $$folder ] || rmdir --ignore-fail-on-non-empty $$folder; done

clean:
	rm -rf build

-include $(shell find $(BUILD) -type f -name '*.d' 2>/dev/null)

.PHONY: all unit matrix apple portable tools demo test setup setup-test test-programs test-unit test-fuzz check-kernels arm-programs test-neon test-sanitized lint docs \
        bench golden oracle audit audit-mutants soak fuzz fuzz-programs test-bare test-sample test-page page-screenshots cuda-images cuda-sample cuda-programs cuda-emulated test-cuda-build test-cuda-emulated test-gpu install uninstall clean FORCE
