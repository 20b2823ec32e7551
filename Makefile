# SPDX-License-Identifier: Apache-2.0
#
# make            the library and the program, in build/
# make demo       install what is missing, build, quantize the shipped model, plan, generate, evaluate
# make test       install what is missing, build, run every test; last line: N passed, N failed
# make lint       style, layers and formatting
# make SAN=address,undefined test-unit      the same tests under sanitizers, in their own build folder
# make install PREFIX=/usr/local

CC      ?= gcc
AR      ?= ar
PREFIX  ?= /usr/local
SAN     ?=
BUILD   ?= build/$(if $(SAN),san-$(subst $(comma),-,$(SAN)),release)
comma   := ,

VERSION := $(shell sed -n 's/^.define NIB_VERSION "\(.*\)"/\1/p' include/nibble.h)
PKGS    := oniguruma libutf8proc libxxhash
# Empty while the packages are not installed yet: tools/setup installs them before anything is compiled.
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null)

WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes
STRICT  := -Wconversion
OPT     ?= -O2 -g
MODULES := base kernel kernel/cpu device checkpoint quant plan model text run
CPPFLAGS += -Iinclude -Isrc/base -Isrc/kernel -Isrc/device -Isrc/checkpoint -Isrc/quant -Isrc/plan -Isrc/model \
            -Isrc/text -Isrc/run $(PKG_CFLAGS) -D_GNU_SOURCE
# No contraction: where a fused multiply-add is meant, the source says fma.
CFLAGS  += -std=c11 $(OPT) -ffp-contract=off -fvisibility=hidden -fPIC -pthread $(WARN)
LDLIBS  += $(PKG_LIBS) -pthread -lm -ldl
ifneq ($(SAN),)
CFLAGS  += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined
LDFLAGS += -fsanitize=$(SAN)
endif

LIB_SRC  := $(foreach m,$(MODULES),$(wildcard src/$(m)/*.c))
CLI_SRC  := $(wildcard src/cli/*.c)
UNIT_SRC := $(wildcard tests/unit/test_*.c)
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o)
CLI_OBJ  := $(CLI_SRC:%.c=$(BUILD)/%.o)
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
$(BUILD)/src/kernel/cpu/%.o: STRICT =
$(BUILD)/src/kernel/cpu/%.o: OPT = -O3 -g

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(STRICT) $(ISA) -MMD -MP -c $< -o $@

$(LIB): $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(PROGRAM): $(CLI_OBJ) $(LIB)
	$(CC) $(LDFLAGS) -o $@ $(CLI_OBJ) $(LIB) $(LDLIBS)

$(BUILD)/tests/%: tests/unit/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) -Itests $(CFLAGS) -MMD -MP $(LDFLAGS) $< -o $@ $(LIB) $(LDLIBS) -lcmocka

$(BUILD)/fuzz/%: tests/fuzz/%.c tests/fuzz/regress_main.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -MF $@.d $(LDFLAGS) $(filter %.c,$^) -o $@ $(LIB) $(LDLIBS)

unit: $(UNIT_BIN)

# Runs one unit test after the other; each is a cmocka program.
test-unit: $(UNIT_BIN)
	@for t in $(UNIT_BIN); do echo "== $${t##*/}"; $$t || exit 1; done

# Each fuzz target over its corpus, cut and changed in fixed ways: no fuzzer is needed.
test-fuzz: $(FUZZ_BIN)
	@for t in $(FUZZ_BIN); do n=$${t##*/fuzz_}; echo "== fuzz_$$n"; $$t tests/fuzz/corpus/$$n || exit 1; done

clean:
	rm -rf build

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

.PHONY: all unit test-unit test-fuzz clean
