# SPDX-License-Identifier: Apache-2.0
#
# make            the library and the program, in build/
# make demo       install what is missing, build, quantize the shipped model, plan, generate, evaluate
# make test       install what is missing, build, run every test; last line: N passed, N failed
# make test-neon  all cases of the Arm kernels under qemu; make test runs fewer
# make portable   compiles files outside src/base and src/device with nothing but POSIX, as every build does, and others as for
#                 macOS; part of make test
# make portable-all   also builds and tests with clang, musl and for 32-bit x86, and links for macOS, where their tools are installed
# make lint       style, layers and formatting
# make SAN=address,undefined test-unit      the same tests under sanitizers, in their own build folder
# make CUDA=1     also kernels for NVIDIA GPUs, in build/cuda; needs nvcc 12.0 or later. Other builds lack these
#                 kernels and say so
# make test-cuda-build   compiles those kernels and reads the machine code; needs nvcc, no GPU
# make test-cuda-emulated   runs their sources as C++ on the CPU; make test runs fewer cases of both
# make test-gpu   checks and times them on the GPUs found; prints `skipped` without one
# make test-bare  make demo, make test and more in a fresh Debian in build/bare; needs root and debootstrap
# make torture    fails every call to the system and the allocator of every command; make test runs some
# make install PREFIX=/usr/local, make uninstall PREFIX=/usr/local

CC      ?= gcc
AR      ?= ar
PREFIX  ?= /usr/local
LIBDIR  ?= lib
SAN     ?=
CUDA    ?=
COVERAGE ?=
BUILD   ?= build/$(if $(SAN),san-$(subst $(comma),-,$(SAN)),$(if $(CUDA),cuda$(CUDA:1=),$(if $(COVERAGE),coverage,release)))
comma   := ,

VERSION := $(shell sed -n 's/^.define NIB_VERSION "\(.*\)"/\1/p' include/nibble.h)
# Changes when a program that was linked with the library would no longer run; independent of the version.
ABI     := 1
HEADERS := include/nibble.h include/nibble_tools.h
# opencl-c-headers (CL/cl.h) has no .pc file; the library itself is loaded at run time.
PKGS    := oniguruma libutf8proc libxxhash
# Empty while the packages are not installed yet: tools/setup installs them before anything is compiled.
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
PROGRAM_LIBS := $(shell pkg-config --libs libmicrohttpd libedit 2>/dev/null) # the library needs neither
CMOCKA     := -lcmocka

WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes
STRICT  := -Wconversion
# Sanitized builds are not timed, and optimizing them took half of their build time.
OPT     ?= $(if $(SAN),-O1 -g1,-O2 -g)
# All folders of the library; make arm-programs builds only the first few.
FOLDERS := base kernel kernel/cpu kernel/gpu device container checkpoint checkpoint/dialect verify quant graph plan model model/arch \
           tokenizer template constrain handle planner step session measure convert advise api train
MODULES := $(FOLDERS)
# CPPFLAGS, CFLAGS, LDFLAGS and LDLIBS are the builder's: they are added to what the project needs.
# Files and times of 64 bits on 32-bit processors; elsewhere the macros would only rename calls.
POINTER       := $(shell echo __SIZEOF_POINTER__ | $(CC) -E -P -x c - 2>/dev/null)
SYSTEM        = -D_GNU_SOURCE
OWN_CPPFLAGS  = -Iinclude $(FOLDERS:%=-Isrc/%) $(PKG_CFLAGS) $(SYSTEM) $(if $(filter 4,$(POINTER)),-D_FILE_OFFSET_BITS=64 -D_TIME_BITS=64)
ALL_CPPFLAGS  = $(OWN_CPPFLAGS) $(CPPFLAGS)
# What results and the library's symbols depend on comes last. No contraction: a fused multiply-add is written as fma. Without SSE,
# 32-bit x86 computes with excess precision.
ALL_CFLAGS    = $(HARDENED) $(OPT) $(WARN) $(CFLAGS) $(if $(filter i386 i486 i586 i686,$(MACHINE)),-msse2 -mfpmath=sse -Wno-psabi) \
                -std=c11 -ffp-contract=off -fvisibility=hidden -fPIC -pthread
ALL_LDFLAGS   = $(HARDENED_LINK) $(LDFLAGS)
ALL_LDLIBS    = $(LDLIBS) $(PKG_LIBS) -pthread -lm -ldl
UNSAFE_MATH  := $(filter -ffast-math -Ofast -funsafe-math-optimizations -fassociative-math -freciprocal-math -fno-signed-zeros \
                -ffinite-math-only -mfpmath=387,$(CFLAGS) $(OPT))
$(if $(UNSAFE_MATH),$(error $(UNSAFE_MATH) changes the results of kernels, which must be the same bits in every build; leave it out))
# Hardening as in distributions; tests/hardened checks it in the program. HARDEN=0 leaves it out, to measure its cost.
# Sanitizers have checks of their own in place of FORTIFY's, which needs optimization.
HARDEN   ?= 1
TARGET   := $(shell $(CC) -dumpmachine 2>/dev/null)
ifeq ($(HARDEN),1)
HARDENED := $(if $(SAN)$(COVERAGE)$(findstring -O0,$(OPT) $(CFLAGS)),,-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3) -fstack-protector-strong \
            $(if $(findstring linux,$(TARGET)),-fstack-clash-protection) \
            $(if $(filter x86_64-%,$(TARGET)),-fcf-protection=full) $(if $(filter aarch64-%,$(TARGET)),-mbranch-protection=standard)
HARDENED_LINK := $(if $(findstring linux,$(TARGET)),$(if $(findstring -static,$(LDFLAGS)),,-pie) \
                 -Wl$(comma)-z$(comma)relro$(comma)-z$(comma)now$(comma)-z$(comma)noexecstack)
endif
ifneq ($(SAN),)
HARDENED     += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined
HARDENED_LINK += -fsanitize=$(SAN)
endif

ifneq ($(CUDA),)
OWN_CPPFLAGS += -DNIB_WITH_CUDA
endif

# Kernels for other processors are not compiled; their rows stay in the table, marked as not built.
X86_ISA  := avx2 avx512 avx512vnni avx512bf16 amx shani
ARM_ISA  := neon dotprod i8mm
MACHINE  := $(firstword $(subst -, ,$(TARGET)))
FOREIGN  := $(if $(filter x86_64,$(MACHINE)),,$(X86_ISA)) $(if $(filter aarch64 arm64,$(MACHINE)),,$(ARM_ISA))
LIB_SRC  := $(filter-out $(FOREIGN:%=\%__%.c),$(foreach m,$(MODULES),$(wildcard src/$(m)/*.c)))
CLI_SRC  := $(wildcard src/cli/*.c src/serve/*.c)
UNIT_SRC := $(wildcard tests/unit/test_*.c)
MACHINES := $(patsubst %,machines/%.json,$(sort $(patsubst machines/%.json,%,$(wildcard machines/*.json))))
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o) $(BUILD)/made/machine_files.o
PAGE     := $(sort $(wildcard web/*.html web/*.js web/*.css web/*.svg))
CLI_OBJ  := $(CLI_SRC:%.c=$(BUILD)/%.o) $(BUILD)/made/page_files.o
UNIT_BIN := $(UNIT_SRC:tests/unit/%.c=$(BUILD)/tests/%)
COMPUTING := $(shell cat tests/unsanitized.txt)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_BIN := $(FUZZ_SRC:tests/fuzz/%.c=$(BUILD)/fuzz/%)
LIB      := $(BUILD)/libnibble.a
APPLE    := $(or $(findstring darwin,$(TARGET)),$(findstring macos,$(TARGET)))
SHARED   := $(BUILD)/$(if $(APPLE),libnibble.$(ABI).dylib,libnibble.so.$(ABI))
# the name that -lnibble looks for
DEVELOP  := $(if $(APPLE),libnibble.dylib,libnibble.so)
PROGRAM  := $(BUILD)/nibble

all: $(LIB) $(SHARED) $(if $(CLI_SRC),$(PROGRAM))

# The name of a kernel file gives its instruction set: linear_a8t_w4g__avx512vnni.c is compiled for AVX-512 VNNI.
$(BUILD)/src/kernel/cpu/%__avx2.o:       ISA = -mavx2 -mfma -mf16c -mbmi2
$(BUILD)/src/kernel/cpu/%__avx512.o:     ISA = -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mbmi2
$(BUILD)/src/kernel/cpu/%__avx512vnni.o: ISA = -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c -mbmi2
$(BUILD)/src/kernel/cpu/%__avx512bf16.o: ISA = -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma -mf16c -mbmi2
$(BUILD)/src/kernel/cpu/%__amx.o:        ISA = -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mamx-tile -mamx-int8 -mfma -mf16c -mbmi2
$(BUILD)/src/kernel/cpu/%__neon.o:       ISA = -march=armv8-a
$(BUILD)/src/kernel/cpu/%__dotprod.o:    ISA = -march=armv8.2-a+dotprod
$(BUILD)/src/kernel/cpu/%__i8mm.o:       ISA = -march=armv8.2-a+dotprod+i8mm
$(BUILD)/src/kernel/cpu/%.o: STRICT = $(KERNEL_FLAGS)
# Sanitized kernels with tiles inlined in every form would take minutes to compile. Line tables only: debug information
# on variables doubles the compile time of unrolled tiles.
$(BUILD)/src/kernel/cpu/%.o: OWN_CPPFLAGS += $(if $(SAN),-D'NIB_INLINE=static inline __attribute__((unused))')
KERNEL_OPT = $(if $(SAN),-O1,-O3)
$(BUILD)/src/kernel/cpu/%.o: OPT = $(KERNEL_OPT) -g1
# Loading and quantizing run every weight through these loops, so they are optimized for speed.
$(BUILD)/src/base/float_formats.o $(BUILD)/src/checkpoint/weight_check.o $(BUILD)/src/checkpoint/weight.o: OPT = $(if $(SAN),-O1 -g1,-O3 -g)
$(BUILD)/src/base/hash__avx512.o: ISA = -mavx512f
$(BUILD)/src/base/hash__avx512.o: STRICT =
$(BUILD)/src/base/hash__avx512.o: OPT = $(if $(SAN),-O1 -g1,-O3 -g)
$(BUILD)/src/base/sha256.o: OPT = $(if $(SAN),-O1 -g1,-O3 -g)
$(BUILD)/src/base/sha256__shani.o: ISA = -msha -msse4.1
$(BUILD)/src/base/sha256__shani.o: OPT = $(if $(SAN),-O1 -g1,-O3 -g)
# Its accumulators must stay in registers; otherwise it measures the L1 cache.
$(BUILD)/src/device/measure.o: OPT = -O3 -g

# Outside src/base and src/device, every file compiles with POSIX alone. Terminal width and anonymous maps are not in POSIX, but
# every BSD has them. Other systems hide more than that from files that ask for POSIX.
POSIX_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(filter-out src/base/% src/device/%,$(LIB_SRC) $(CLI_SRC)))
$(POSIX_OBJ): SYSTEM = $(if $(findstring linux,$(TARGET)),-D_XOPEN_SOURCE=700 -Werror=implicit-function-declaration,-D_GNU_SOURCE)
$(BUILD)/src/cli/terminal.o: SYSTEM += -D_DEFAULT_SOURCE
# It asks for an event that Linux declares beside those of POSIX; `portable` compiles it without.
$(BUILD)/src/serve/http_watch.o: SYSTEM = -D_GNU_SOURCE

# make coverage counts the branches of files that read what comes from outside: checkpoints, configs, tokenizers, templates,
# schemas, recipes, machines, training configs and states, states of sequences, requests.
ifneq ($(COVERAGE),)
PARSERS := $(wildcard $(addprefix src/,container/*.c checkpoint/*.c checkpoint/dialect/*.c base/json_*.c base/match.c \
           base/regex_guard.c base/utf8.c model/config*.c model/generation_config.c model/packed.c model/train_*.c tokenizer/*.c \
           template/*.c constrain/schema*.c device/machine*.c quant/recipe*.c quant/torchao_*.c api/api_request.c api/api_messages.c \
           api/api_tools.c api/api_reader.c serve/http_*.c serve/serve_keys.c session/session_state.c session/state_basis.c train/train_state.c))
$(PARSERS:%.c=$(BUILD)/%.o): OPT = -O0 -g1 --coverage -fprofile-update=atomic
HARDENED_LINK += --coverage
# each piece of an arena is an allocation of its own, so that tests with failing allocations reach every one
$(BUILD)/src/base/memory.o: OWN_CPPFLAGS += -DONE_PIECE_PER_BLOCK=true
$(BUILD)/src/base/sandbox.o: OWN_CPPFLAGS += -DCOUNTS_BRANCHES
endif

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(STRICT) $(ISA) -MMD -MP -c $< -o $@

# OpenCL sources are embedded in the library as bytes: prelude.cl becomes nib__text_prelude_cl.
EMBEDDED := $(wildcard src/kernel/gpu/*.cl)
LIB_OBJ  += $(EMBEDDED:%=$(BUILD)/%.o)
$(BUILD)/%.cl.c: %.cl
	@mkdir -p $(@D)
	@{ echo '#include <stddef.h>'; name=$$(basename $< | tr . _); \
	   echo "extern const unsigned char nib__text_$$name[]; extern const size_t nib__size_$$name;"; \
	   echo "const unsigned char nib__text_$$name[] = {"; od -An -v -tu1 $< | sed 's/\([0-9][0-9]*\)/\1,/g'; \
	   echo "0};"; echo "const size_t nib__size_$$name = sizeof nib__text_$$name - 1;"; } > $@
$(BUILD)/%.cl.o: $(BUILD)/%.cl.c
	$(CC) $(ALL_CFLAGS) -c $< -o $@

# CUDA programs. Each is a fat binary: machine code for each architecture, and the PTX of the first architecture
# for later GPUs.
LIB_OBJ     += $(BUILD)/cuda/programs.o
NVCC        ?= $(or $(shell command -v nvcc 2>/dev/null),/usr/local/cuda/bin/nvcc)
CUDA_FOLDER := $(BUILD)/cuda/images
CUDA_HEADERS := $(wildcard src/kernel/gpu/*.cuh) src/kernel/gpu/prelude.cl
CUDA_ALL     = $(shell $(NVCC) --list-gpu-arch | sed 's/.*_//')
CUDA_ARCHS  ?= $(filter 80 90 100,$(CUDA_ALL))
ifneq ($(CUDA),)
CUDA_ARCHS  := $(CUDA_ARCHS)
OWN_CPPFLAGS += $(CUDA_ARCHS:%=-DNIB_WITH_SM%)
endif
NVCC_FLAGS   = -std=c++17 -O3 -x cu -include $(CURDIR)/src/kernel/gpu/cuda_prelude.cuh -Isrc/kernel/gpu \
               --Werror all-warnings -diag-suppress 177 -Xptxas -v
# $1: the architecture that a program needs, if any. If it ends in a letter (90a), only its machine code is built;
# otherwise also that of later architectures, and the PTX. Those from 90 on are compiled apart, as their kernels
# may start early and wait (cuda_prelude.cuh).
CUDA_IF      = $(if $(filter-out $(CUDA_ARCHS),$(patsubst %a,%,$(filter %a,$1))),,$2)
CUDA_EARLY   = $(filter-out 80 86 87 89,$(CUDA_ARCHS))
CUDA_LATE    = $(filter 80 86 87 89,$(or $1,$(CUDA_ARCHS)))
CUDA_LIST    = '[$(subst $() ,$(comma),$(strip $1))]'
CUDA_CODE    = $(if $(filter %a,$1),-gencode arch=compute_$1$(comma)code=sm_$1,$(call CUDA_BOTH,$(call CUDA_LATE,$1),$(CUDA_EARLY)))
CUDA_BOTH    = $(if $1,-gencode arch=compute_$(firstword $1)$(comma)code=$(call CUDA_LIST,compute_$(firstword $1) $(1:%=sm_%))) \
               $(if $2,-gencode arch=compute_$(firstword $2)$(comma)code=$(call CUDA_LIST,$(if $1,,compute_$(firstword $2)) $(2:%=sm_%)))
# No contraction, so that codes and tokens equal those of the CPU.
CUDA_EXACT  := quant.cl quant_w.cl cast.cl sample.cl experts.cl
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
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -c $< -o $@

# The files of machines/ are embedded, so that the program is a single file.
$(BUILD)/made/machine_files.c: $(MACHINES) tools/embed_machines machines
	@mkdir -p $(@D)
	tools/embed_machines $(MACHINES) > $@.part
	@mv $@.part $@

# So is the web page of `nibble serve`.
$(BUILD)/made/page_files.c: $(PAGE) tools/embed_page web
	@mkdir -p $(@D)
	tools/embed_page $(PAGE) > $@.part
	@mv $@.part $@
# The program is compiled without the library's own headers.
$(BUILD)/made/page_files.o $(BUILD)/src/serve/%.o $(BUILD)/src/cli/%.o: FOLDERS = serve

$(BUILD)/made/%.o: $(BUILD)/made/%.c
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(STRICT) -MMD -MP -c $< -o $@

# ---- tests of CUDA ----

cuda-images: $(CUDA_IMAGES)
# `make test` compiles one of each source and every 120th of them, test-cuda-build all.
cuda-sample: $(shell printf '%s\n' $(sort $(CUDA_IMAGES)) | awk '{ of = $$0; sub(/.*\//, "", of); sub(/_[A-Z].*/, "", of) } !seen[of]++ || NR % 120 == 0')
cuda-programs: CUDA_GOAL ?= cuda-images
cuda-programs:
	@if command -v $(NVCC) >/dev/null; then $(MAKE) -s $(JOBS) CUDA=1 $(CUDA_GOAL); fi
test-cuda-build: cuda-programs
	@if NVCC=$(NVCC) tests/cuda/check_build --can; then tests/cuda/check_build build/cuda; fi
# The same sources as C++ on the CPU, behind the tests' own libcuda.so.1: a kernel checker, and a program with the CUDA rows,
# in which names stand for the compiled programs.
EMULATED     := $(BUILD)/emulated
EMULATED_OBJ := $(patsubst %.c,$(EMULATED)/%.o,$(wildcard src/kernel/gpu/cuda_*.c)) $(EMULATED)/programs.o
CUDA_SOURCES := $(wildcard src/kernel/gpu/*.cl src/kernel/gpu/*.cu src/kernel/gpu/*.cuh) src/kernel/gpu/cuda_programs.txt tools/cuda_programs
$(EMULATED)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) -DNIB_WITH_CUDA -DNIB_WITH_SM90 -DNIB_WITH_SM100 $(ALL_CFLAGS) $(STRICT) -MMD -MP -c $< -o $@
$(EMULATED)/programs.c $(EMULATED)/programs.h &: $(CUDA_SOURCES)
	@mkdir -p $(@D)
	@tools/cuda_programs names > $(EMULATED)/programs.c
	@tools/cuda_programs emulated > $(EMULATED)/programs.h
$(EMULATED)/programs.o: $(EMULATED)/programs.c
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -c $< -o $@
$(EMULATED)/check_kernels: $(BUILD)/tests/kernel/check_kernels.o $(EMULATED_OBJ) $(LIB)
	$(CC) $(ALL_LDFLAGS) $(filter %.o %.a,$^) -o $@ $(ALL_LDLIBS)
$(EMULATED)/libcuda.so.1: tests/cuda/emulated_cuda.cpp $(wildcard tests/cuda/*.h) $(EMULATED)/programs.h
	$(CXX) -std=c++17 -O1 -U_FORTIFY_SOURCE -fPIC -shared -Wall -Wextra -Wno-unused -Wno-unknown-pragmas -Isrc/kernel/gpu \
	    -Isrc/device -Itests/cuda -DEMULATED_PROGRAMS='"$(CURDIR)/$(EMULATED)/programs.h"' $< -o $@
$(EMULATED)/nibble: $(CLI_OBJ) $(EMULATED_OBJ) $(LIB)
	$(CC) $(ALL_LDFLAGS) -o $@ $(CLI_OBJ) $(EMULATED_OBJ) $(LIB) $(ALL_LDLIBS) $(PROGRAM_LIBS)
cuda-emulated: $(EMULATED)/check_kernels $(EMULATED)/nibble $(EMULATED)/libcuda.so.1
test-cuda-emulated: cuda-emulated
	LD_LIBRARY_PATH=$(EMULATED) $(EMULATED)/check_kernels --row __sm
	for sm in 90 100; do EMULATED_CUDA_SM=$$sm LD_LIBRARY_PATH=$(EMULATED) $(EMULATED)/check_kernels --row __sm$$sm || exit 1; done
# On the GPUs found: checks every row and whole models, then times the products against a copy and cuBLAS.
test-gpu:
	@if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then echo "skipped: test-gpu: no CUDA device"; \
	elif ! command -v $(NVCC) >/dev/null; then echo "skipped: test-gpu: no nvcc"; else \
	    $(MAKE) -s $(JOBS) CUDA=1 all test-programs && build/cuda/tests/check_kernels --row __sm && \
	    NIBBLE_TEST_DEVICE=cuda tests/run --units build/cuda && \
	    NIBBLE=$(CURDIR)/build/cuda/nibble tests/cli/run gpu && build/cuda/tests/check_kernels --bench-gpu; fi

$(LIB): $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

# Exports the functions of the headers and nothing else.
$(BUILD)/symbols.map: tools/version_script tools/symbols.txt
	tools/version_script > $@.part
	@mv $@.part $@
# Mach-O has neither versions of symbols nor an option for undefined ones, which are errors there. clang leaves sanitizers undefined.
SHARED_LDFLAGS = $(filter-out -pie -static,$(ALL_LDFLAGS)) $(if $(APPLE),-dynamiclib -install_name @rpath/$(@F),-shared -Wl,-soname,$(@F) \
                 -Wl,--version-script=$(BUILD)/symbols.map -Wl,-Bsymbolic $(if $(SAN),,-Wl,--no-undefined))
# The library of a Python wheel finds the libraries that it needs beside itself.
WHEEL_LIB := $(BUILD)/wheel/$(notdir $(SHARED))
$(WHEEL_LIB): private ALL_LDFLAGS += -Wl,-rpath,'$$ORIGIN' -Wl,--strip-debug
$(SHARED) $(WHEEL_LIB): $(LIB_OBJ) $(BUILD)/symbols.map
	@mkdir -p $(@D)
	$(CC) $(SHARED_LDFLAGS) -o $@ $(LIB_OBJ) $(ALL_LDLIBS)
	@ln -sf $(@F) $(@D)/$(DEVELOP)
# Prints its path and those of the libraries that it needs.
wheel-library: $(WHEEL_LIB)
	@echo $(WHEEL_LIB)
	@for name in $$(readelf -dW $(WHEEL_LIB) | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do $(CC) -print-file-name=$$name; done
# The program with the shared library: the headers are all that it needs.
$(BUILD)/nibble-shared: $(CLI_OBJ) $(SHARED)
	$(CC) $(ALL_LDFLAGS) -o $@ $(CLI_OBJ) $(SHARED) $(ALL_LDLIBS) $(PROGRAM_LIBS)

$(PROGRAM): $(CLI_OBJ) $(LIB)
	$(CC) $(ALL_LDFLAGS) -o $@ $(CLI_OBJ) $(LIB) $(ALL_LDLIBS) $(PROGRAM_LIBS)

# A test replaces the functions that it lists with WRAPPED (tests/wrapped.h).
WRAPS = $(shell awk -F', *' '/^WRAPPED/ { print "-Wl,--wrap=" $$2 }' $<)
# Those that compute much are optimized; others take longer to compile than to run. Without the debug information of the library: gdb
# names its functions, and under sanitizers all have lines.
$(UNIT_BIN): private OPT = $(if $(filter $(@F:test_%=%),$(COMPUTING)),-O1,-O0 -U_FORTIFY_SOURCE) -g1
$(UNIT_BIN): private ALL_LDFLAGS += $(if $(SAN)$(COVERAGE)$(APPLE),,-Wl,--strip-debug)
$(BUILD)/tests/%: tests/unit/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) -Itests $(ALL_CFLAGS) -MMD -MP $(ALL_LDFLAGS) $(filter %.c %.o,$^) -o $@ $(LIB) $(ALL_LDLIBS) $(CMOCKA) $(WRAPS)

# The two of HTTP have the server's files and a service of their own, so the library is linked last.
SERVE_OBJ := $(patsubst src/%.c,$(BUILD)/src/%.o,$(wildcard src/serve/*.c)) $(BUILD)/made/page_files.o
OF_SERVE  := $(BUILD)/fuzz/fuzz_http $(BUILD)/fuzz-http $(BUILD)/tests/test_serve
$(OF_SERVE): $(SERVE_OBJ)
$(OF_SERVE): private OWN_CPPFLAGS += -Isrc/serve
$(OF_SERVE): private ALL_LDLIBS += $(PROGRAM_LIBS)

$(BUILD)/fuzz/%: tests/fuzz/%.c tests/fuzz/regress_main.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -MF $@.d $(ALL_LDFLAGS) $(filter %.c %.o,$^) -o $@ $(LIB) $(ALL_LDLIBS)

$(BUILD)/fuzz-%: tests/fuzz/fuzz_%.c $(LIB)
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -MF $@.d $(ALL_LDFLAGS) -fsanitize=fuzzer $(filter %.c %.o,$^) -o $@ $(LIB) $(ALL_LDLIBS)

# Programs that the scripts in tools/oracle talk to.
$(BUILD)/oracle/%: tools/oracle/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -MF $@.d $(ALL_LDFLAGS) $< -o $@ $(LIB) $(ALL_LDLIBS)

# Preloaded, to fail calls of the program.
FAIL_CALLS := $(BUILD)/torture/fail_calls.so
$(FAIL_CALLS): tests/torture/fail_calls.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -D_GNU_SOURCE -O1 -g1 -fPIC -shared -Wall -Wextra $< -o $@ -ldl

KERNEL_CHECK := $(BUILD)/tests/check_kernels
$(BUILD)/tests/kernel/%.o: STRICT =
$(KERNEL_CHECK): $(BUILD)/tests/kernel/check_kernels.o $(LIB)
	@mkdir -p $(@D)
	$(CC) $(ALL_LDFLAGS) $(filter %.o %.a,$^) -o $@ $(ALL_LDLIBS)

unit: $(UNIT_BIN)

# Programs for measuring: build/release/tools/random_checkpoint CONFIG_DIR OUT_DIR
# tests/run keeps the measurements of this machine with build/release/tools/keep_machine.
tools: $(addprefix $(BUILD)/tools/,random_checkpoint keep_machine)
$(BUILD)/tools/%: tools/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(STRICT) -MMD -MP $(ALL_LDFLAGS) $< -o $@ $(LIB) $(ALL_LDLIBS)

# ---- other systems ----

# The macOS parts of base and device are compiled against stand-ins for its headers.
READ = @mkdir -p $(@D); $(CC) $(ALL_CPPFLAGS) $1 $(ALL_CFLAGS) -fsyntax-only -Werror=implicit-function-declaration -MMD -MP -MF $@.d -MT $@ $< && touch $@
$(BUILD)/portable/%.ok: SYSTEM = -D_XOPEN_SOURCE=700
$(BUILD)/portable/%.ok: %.c
	$(call READ,-Isrc/serve)
APPLE_SRC := $(filter src/base/% src/device/%,$(LIB_SRC))
$(BUILD)/apple/%.ok: %.c tests/portable/apple.h
	$(call READ,-U__linux__ -Itests/portable/apple -Itests/portable/frameworks -include tests/portable/apple.h)
apple: $(APPLE_SRC:%.c=$(BUILD)/apple/%.ok)
portable: $(POSIX_OBJ) $(BUILD)/portable/src/serve/http_watch.ok apple portable-refused
	@if command -v aarch64-linux-gnu-gcc >/dev/null; then $(MAKE) -s apple BUILD=build/aarch64 CC=aarch64-linux-gnu-gcc \
	    PKG_CFLAGS="-DXXH_INLINE_ALL -Itests/arm"; fi
# Whole builds with their unit tests, where this machine can run them. What is not installed is skipped with the reason.
# docs/how-tested.md has the results.
WHOLE := $(addprefix portable-,clang musl i386 macos refused)
$(WHOLE):
	@tests/portable/run $(@:portable-%=%)
portable-all: portable $(WHOLE)

# ---- everyday targets ----

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

# Under sanitizers without those that compute much and read little from outside, unless NIBBLE_TEST_ALL is set.
UNSANITIZED   := $(if $(SAN),$(if $(NIBBLE_TEST_ALL),,$(COMPUTING)))
test-programs: $(filter-out $(UNSANITIZED:%=$(BUILD)/tests/test_%),$(UNIT_BIN)) $(FUZZ_BIN) \
               $(if $(SAN),,$(KERNEL_CHECK) $(BUILD)/tests/matrix tools $(BUILD)/oracle/logits_of $(FAIL_CALLS) $(BUILD)/nibble-shared)

# Runs one after the other and stops at the first failure.
test-unit: $(UNIT_BIN)
	@for t in $(UNIT_BIN); do echo "== $${t##*/}"; $$t || exit 1; done
test-fuzz: $(FUZZ_BIN)
	@for t in $(FUZZ_BIN); do n=$${t##*/fuzz_}; echo "== fuzz_$$n"; $$t tests/fuzz/corpus/$$n || exit 1; done
check-kernels: $(KERNEL_CHECK)
	$(KERNEL_CHECK)

# The kernel checker and the kernel tests for Arm. They are linked without the libraries that kernels do not need, because
# a machine has those for its own architecture only. Without a cross compiler nothing is built, and tests/arm/run says so.
ARM_TESTS := check_kernels $(addprefix test_,linear_int linear_float quant_rows cast train_rows float_formats portable_math machine)
arm-programs:
	@if command -v aarch64-linux-gnu-gcc >/dev/null; then $(MAKE) -s $(JOBS) $(ARM_TESTS:%=build/aarch64/tests/%) BUILD=build/aarch64 \
	    SAN= KERNEL_OPT=-O1 CC=aarch64-linux-gnu-gcc AR=aarch64-linux-gnu-ar MODULES='base kernel kernel/cpu kernel/gpu device' LDFLAGS=-static \
	    PKG_CFLAGS='-DXXH_INLINE_ALL -Itests/arm -DEMULATED' PKG_LIBS= CMOCKA=; fi
test-neon: arm-programs
	@NIBBLE_TEST_ALL=1 tests/arm/run build/aarch64
test-sanitized:
	@NIBBLE_TEST_ALL=1 $(MAKE) -s $(JOBS) test-programs SAN=address,undefined
	@NIBBLE_TEST_ALL=1 tests/run --sanitized $(BUILD) build/san-address-undefined

lint: all
	tools/lint $(BUILD)

# Formats all sources by .clang-format, with clang-format 14 (Debian 12).
format:
	git ls-files '*.c' '*.h' '*.cpp' | xargs clang-format -i

# Pages that the program prints; `make lint` compares them.
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
	tools/python_api > python/nibble/_api.py

bench: all
	$(PROGRAM) bench --kernels

# The scripts of tests/cli that ask `sampled` or `full`.
SAMPLED_CLI = $(shell grep -lE 'sampled [0-9]|(if|while|!) full;|full (\|\||&&)|NIBBLE_TEST_ALL' tests/cli/*.sh | sed 's|.*/||; s/\.sh$$//')
# Everything that `make test` samples: every case of every row on the devices here, for Arm and under sanitizers; every CUDA
# program; training on and measuring a device; every family with every scheme, cache, machine and kind of training. Half an hour
# to an hour and a half. CELLS='WORD...': only cells whose names have all the words.
matrix: $(if $(CELLS),,all test-programs check-kernels test-cuda-build test-cuda-emulated test-neon test-sanitized) $(BUILD)/tests/matrix
	$(if $(CELLS),,NIBBLE_TEST_ALL=1 tests/run --units $(BUILD))
	$(if $(CELLS),,NIBBLE_TEST_ALL=1 tests/cli/run $(SAMPLED_CLI))
	XDG_CACHE_HOME=$(CURDIR)/$(BUILD)/test-cache $(BUILD)/tests/matrix $(CELLS)
# These need Python packages from PyPI (tools/golden/requirements.txt); the documentation says when they last ran.
golden:
	tools/golden/run
oracle: all
	tools/oracle/run $(PROGRAM)
# LLAMA_QUANTIZE: the path of llama.cpp's program
judge-models: all
	tools/judge_models $(PROGRAM) --llama-quantize "$(LLAMA_QUANTIZE)"
audit: all
	tools/audit/run $(PROGRAM)
# One-line changes that hide a substitution, each built in a copy of the tree: the audit must find them.
audit-mutants: all $(BUILD)/oracle/logits_of
	tools/audit/mutants $(BUILD) --out $(BUILD)/mutants.md
# N one-line changes (default 400) of parsers, access checks, the planner and the ledger: the tests nearest to each must find 95 %.
# Half an hour on two cores; an interrupted run continues.
mutate: all test-programs
	@NIBBLE_TEST_ALL=1 $(MAKE) -s $(JOBS) test-programs SAN=address,undefined
	tools/mutate/run $(BUILD) --sanitized build/san-address-undefined --count $(or $(N),400) --out $(BUILD)/mutate.md
# A fresh Debian with git, make and a clone of HEAD; about half an hour.
test-bare:
	tests/bare/run
# The tests that behave differently without test data; .ci/run adds them to a run with data.
test-sample: all test-programs
	@tests/run --sample $(BUILD)
# Every failing call of tests/torture, half an hour of two processors, after every power cut.
torture: torture-power $(FAIL_CALLS)
	tests/torture/run $(BUILD) --jobs $(shell nproc 2>/dev/null || echo 2)
# Every state that a disk may show after a power cut while a command writes: thousands, in a quarter of an hour.
torture-power: all tools
	tests/torture/power_cut $(BUILD)
# Half an hour with twice as many clients as `nibble serve` has slots; MINUTES=N for less.
soak: all
	NIBBLE=$(CURDIR)/$(PROGRAM) tests/serve/soak
# Each fuzz target (FUZZ='NAME...', default all) under libFuzzer for MINUTES=N (default 5), one row each; needs clang. GROW=1: adds
# what reached more to tests/fuzz/corpus, minimized. Kernels are not sanitized: only `state` runs some, and clang would take
# half an hour to compile them.
fuzz:
	@command -v clang >/dev/null || { echo "make fuzz needs clang, which has libFuzzer: install Debian's clang"; exit 1; }
	@$(MAKE) -s $(JOBS) fuzz-programs CC=clang SAN=fuzzer-no-link,address,undefined BUILD=build/libfuzzer KERNEL_FLAGS='-fno-sanitize=all'
	tests/fuzz/run build/libfuzzer $(FUZZ)
fuzz-programs: $(FUZZ_SRC:tests/fuzz/fuzz_%.c=$(BUILD)/fuzz-%)
# Lines and branches of the parsers that unit tests, corpora and command-line tests of bad input reach, in a build of its own.
coverage:
	@$(MAKE) -s $(JOBS) all test-programs COVERAGE=1
	@tests/coverage build/coverage --uncovered
# The page of `nibble serve` in Chromium (tests/page/requirements.txt); page-screenshots makes those of the documentation.
test-page: all
	tests/page/run $(BUILD)
page-screenshots: all
	tests/page/run $(BUILD) --screenshots docs/images
# The Python package, installed from a wheel (python/tests/requirements.txt).
test-python: all
	python/tests/run $(BUILD)

# ---- installing ----

# Always written again: PREFIX and LIBDIR may have changed. nibble-static.pc and nibble::static link the archive.
PRIVATE_LIBS := -pthread -lm -ldl
ARCHIVE := $(if $(APPLE),$${libdir}/libnibble.a,-L$${libdir} -l:libnibble.a)
PC := $(BUILD)/nibble.pc $(BUILD)/nibble-static.pc
PC_FIRST := 'prefix=$(PREFIX)' 'libdir=$${prefix}/$(LIBDIR)' 'includedir=$${prefix}/include' '' 'Name: nibble' \
            'Description: quantize, check, run, serve and train low-bit language models' 'Version: $(VERSION)' 'Cflags: -I$${includedir}'
$(BUILD)/nibble.pc: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' $(PC_FIRST) 'Requires.private: $(PKGS)' 'Libs: -L$${libdir} -lnibble' 'Libs.private: $(PRIVATE_LIBS)' > $@
$(BUILD)/nibble-static.pc: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' $(PC_FIRST) 'Requires: $(PKGS)' 'Libs: $(ARCHIVE) $(PRIVATE_LIBS)' > $@
CMAKE := $(BUILD)/nibble-config.cmake $(BUILD)/nibble-config-version.cmake
# @UP@: from LIBDIR to PREFIX
$(CMAKE): $(BUILD)/%.cmake: tools/%.cmake.in FORCE
	@mkdir -p $(@D)
	@sed 's|@VERSION@|$(VERSION)|; s|@SHARED@|$(notdir $(SHARED))|; s|@LIBS@|$(strip $(PKG_LIBS)) $(PRIVATE_LIBS)|; s|@UP@|$(subst $() ,/,$(patsubst %,..,$(subst /, ,$(LIBDIR))))|' $< > $@

MANUALS := $(addprefix $(BUILD)/man/nibble,.1 $(addsuffix .1,$(addprefix -,info plan advise quantize convert generate chat serve eval verify bench \
           tune train plot devices kernels models recipes formats explain manual completion)))
$(BUILD)/man/nibble.1: $(PROGRAM)
	@mkdir -p $(@D)
	$(PROGRAM) manual > $@
$(BUILD)/man/nibble-%.1: $(PROGRAM)
	@mkdir -p $(@D)
	$(PROGRAM) manual $* > $@

install: all $(PC) $(CMAKE) $(MANUALS)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/$(LIBDIR)/cmake/nibble $(DESTDIR)$(PREFIX)/include \
	    $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
	    $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	install -m 755 $(PROGRAM) $(DESTDIR)$(PREFIX)/bin/nibble
	install -m 644 $(LIB) $(DESTDIR)$(PREFIX)/$(LIBDIR)/libnibble.a
	install -m 755 $(SHARED) $(DESTDIR)$(PREFIX)/$(LIBDIR)/$(notdir $(SHARED))
	ln -sf $(notdir $(SHARED)) $(DESTDIR)$(PREFIX)/$(LIBDIR)/$(DEVELOP)
	install -m 644 $(HEADERS) $(DESTDIR)$(PREFIX)/include
	install -m 644 $(PC) $(DESTDIR)$(PREFIX)/$(LIBDIR)/pkgconfig
	install -m 644 $(CMAKE) $(DESTDIR)$(PREFIX)/$(LIBDIR)/cmake/nibble
	install -m 644 $(MANUALS) $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/nibble
	install -m 644 tools/nibble.service $(DESTDIR)$(PREFIX)/share/nibble/nibble.service
	$(PROGRAM) completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/nibble
	$(PROGRAM) completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_nibble
	$(PROGRAM) completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/nibble.fish

# Removes what `make install` installed, and the folders it made if they are empty now.
INSTALLED := bin/nibble $(addprefix $(LIBDIR)/,libnibble.a $(DEVELOP) $(notdir $(SHARED)) $(PC:$(BUILD)/%=pkgconfig/%) $(CMAKE:$(BUILD)/%=cmake/nibble/%)) \
             $(HEADERS) share/nibble/nibble.service \
             $(MANUALS:$(BUILD)/man/%=share/man/man1/%) share/bash-completion/completions/nibble \
             share/zsh/site-functions/_nibble share/fish/vendor_completions.d/nibble.fish
uninstall:
	rm -f $(INSTALLED:%=$(DESTDIR)$(PREFIX)/%)
	@cd $(DESTDIR)$(PREFIX) && for folder in $(LIBDIR)/pkgconfig $(LIBDIR)/cmake/nibble $(LIBDIR)/cmake $(if $(findstring /,$(LIBDIR)),$(LIBDIR)) share/nibble share/man/man1 share/bash-completion/completions \
	    share/bash-completion share/zsh/site-functions share/zsh share/fish/vendor_completions.d share/fish; do \
	    [ ! -d $$folder ] || rmdir --ignore-fail-on-non-empty $$folder; done

clean:
	rm -rf build

-include $(shell find $(BUILD) -type f -name '*.d' 2>/dev/null)

.PHONY: all unit matrix apple portable portable-all $(WHOLE) tools demo test setup setup-test test-programs test-unit test-fuzz check-kernels arm-programs test-neon test-sanitized lint docs \
        bench golden oracle judge-models audit audit-mutants mutate torture torture-power soak fuzz fuzz-programs coverage test-bare test-sample test-page page-screenshots test-python wheel-library cuda-images cuda-sample cuda-programs cuda-emulated test-cuda-build test-cuda-emulated test-gpu install uninstall clean FORCE
