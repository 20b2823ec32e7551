/* SPDX-License-Identifier: Apache-2.0
 *
 * Machines: every fact and rate has a date and source; names of instruction sets mask those of this
 * machine; measured rates are sane, and their cache is read, ignored if damaged, and replaced.
 */
#include "failing.h"
#include "file.h"
#include "machine.h"
#include "pool.h"
#include "skipping.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "machines.h"

static bool has_line(const nib_machine *m, nib_fact fact, int rate)
{
    for (size_t i = 0; i < m->source_count; i++)
        if (m->sources[i].fact == fact && (fact != NIB_FACT_COUNT || m->sources[i].rate == rate))
            return true;
    return false;
}

static void every_fact_has_a_source(void **state)
{
    (void)state;
    for (size_t i = 0; i < machines.count; i++) {
        const nib_machine *m = &machines.items[i];
        for (int f = 0; f < NIB_FACT_COUNT; f++)
            if (m->facts.fact[f] != 0 && !has_line(m, (nib_fact)f, 0))
                fail_msg("%s: no source for %s", m->name, nib__fact_info[f].key);
        for (int rate = 0; rate < NIB_RATE_COUNT; rate++)
            if (rate != NIB_RATE_LAUNCH && nib__machine_rate(m, rate) > 0 &&
                !has_line(m, NIB_FACT_COUNT, rate))
                fail_msg("%s: no source for rate %s", m->name, nib__rate_names[rate]);
        assert_true(has_line(m, NIB_FACT_COUNT, NIB_RATE_BYTES));
        /* every machine states the facts that int4 needs, whether present or absent */
        assert_true(has_line(m, NIB_FACT_DOT4, 0) && has_line(m, NIB_FACT_DOT8, 0));
        assert_true(has_line(m, NIB_FACT_MATRIX_UNIT, 0));
        assert_true(m->bytes_per_s > 1e9 && m->memory > 0 && !m->here && !m->measured);
        for (size_t s = 0; s < m->source_count; s++) {
            const nib_source *source = m->sources[s].source;
            assert_true(strlen(source->date) == 10 && strlen(source->title) > 6);
            assert_true(source->address == NULL || strncmp(source->address, "https://", 8) == 0);
        }
        assert_ptr_equal(nib__machines_find(&machines, m->name), m);
        assert_true(i == 0 || strcmp(machines.items[i - 1].name, m->name) < 0);
    }
    assert_null(nib__machines_find(&machines, "no-such-machine"));
}

static const nib_machine *known(const char *name)
{
    const nib_machine *m = nib__machines_find(&machines, name);
    if (m == NULL)
        fail_msg("%s is not known", name);
    return m;
}

static void known_machines_exist(void **state)
{
    (void)state;
    static const char *const names[] = {
        "mi210",     "mi300x",    "apple-m1", "apple-m2",   "apple-m3",      "apple-m4",
        "a100",      "h100",      "h200",     "b200",       "rtx4090",       "intel-arc",
        "graviton3", "graviton4", "xeon-spr", "epyc-turin", "raspberry-pi-5"};
    for (size_t i = 0; i < COUNT(names); i++)
        assert_non_null(known(names[i]));
    assert_int_equal(known("mi210")->facts.fact[NIB_FACT_DOT4], 1);
    assert_int_equal(known("h200")->facts.fact[NIB_FACT_DOT4], 0);
    assert_int_equal(known("a100")->facts.fact[NIB_FACT_FP8_UNIT], 0);
    assert_ptr_equal(known("apple-m2")->host, known("apple-m2-cpu"));
    assert_null(known("apple-m2-cpu")->host);
}

static void names_mask_instruction_sets(void **state)
{
    (void)state;
    const int64_t here = nib__cpu_isa();
    int64_t isa = -1;
    nib_err err = {NIB_OK, ""};
    assert_int_equal(nib__cpu_isa_mask(&isa, NULL, &err), NIB_OK);
    assert_int_equal(isa, here);
    assert_int_equal(nib__cpu_isa_mask(&isa, "ref", &err), NIB_OK);
    assert_int_equal(isa, 0);
    assert_string_equal(nib__cpu_isa_name(0), "ref");
    assert_int_equal(nib__cpu_isa_mask(&isa, "avx9000", &err), NIB_USAGE);
    assert_int_equal(nib__cpu_isa_mask(&isa, nib__cpu_isa_name(here), &err), NIB_OK);
    assert_int_equal(isa, here);
    const char *lacking = (here & NIB_ISA_NEON) != 0 ? "avx2" : "neon";
    assert_int_equal(nib__cpu_isa_mask(&isa, lacking, &err), NIB_NOT_AS_ASKED);
    if ((here & NIB_ISA_AVX512VNNI) != 0) {
        assert_int_equal(nib__cpu_isa_mask(&isa, "avx512", &err), NIB_OK);
        assert_int_equal(isa, NIB_ISA_AVX2 | NIB_ISA_AVX512);
    }
}

static void this_machine_has_cautious_rates(void **state)
{
    (void)state;
    nib_machine m;
    nib__machine_here(&m, nib__cpu_isa(), 3);
    assert_true(m.here && !m.measured && m.threads == 3);
    assert_true(strlen(m.cpu) > 0);
    assert_int_equal(m.facts.fact[NIB_FACT_DEVICE], NIB_DEVICE_CPU);
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        assert_true(m.rate[unit] > 0);
    assert_true(m.bytes_per_s > 0 && m.launch_s > 0);
}

/* Rates of this machine are described as measured, disturbed or cautious; without memory the text
 * fails. */
static void this_machine_is_described(void **state)
{
    (void)state;
    static const char *const rates[] = {"cautious rates", "measured rates", "measured rates",
                                        "measured kernels"},
                             *const titles[] = {"not measured", "and measured here",
                                                "rates are too low", "and measured here"};
    nib_machine m, gpu = *known("h100");
    nib__machine_here(&m, nib__cpu_isa(), 3);
    for (int i = 0; i < 4; i++) {
        m.measured = i > 0;
        m.disturbed = i == 2;
        m.product_count = i == 3;
        snprintf(m.measured_on, sizeof m.measured_on, "2026-01-02");
        assert_string_equal(nib__machine_rates(&m), rates[i]);
        for (int form = NIB_FORM_TEXT; form <= NIB_FORM_JSON; form++) {
            bool failed = true;
            for (int left = -1; left <= 0 || failed; left++) {
                failing f = {left, 0};
                const nib_allocator a = failing_allocator(&f);
                nib_text text;
                nib__text_init(&text, &a);
                nib__device_render((nib_form)form, &m, &text);
                failed = text.failed;
                if (!failed) {
                    assert_non_null(strstr(text.at, titles[i]));
                    assert_true((strstr(text.at, "2026-01-02") != NULL) == m.measured);
                }
                nib__text_free(&text);
                assert_int_equal(f.live, 0);
            }
        }
    }
    for (int here = 0; here < 2; here++) { /* a file does not name this machine as a host */
        nib_text text;
        gpu.host = here ? &m : known("graviton3");
        nib__text_init(&text, &allocator);
        nib__machine_write(&gpu, &text);
        assert_true((strstr(text.at, "\"host\"") == NULL) == here);
        nib__text_free(&text);
    }
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void measuring_is_cached(void **state)
{
    (void)state;
    char dir[] = "/tmp/nib-machine-XXXXXX", path[64], text[512];
    nib_machine first, second;
    nib_pool *pool;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/machine.json", dir);
    assert_int_equal(nib__pool_open(&pool, 1, &allocator, NULL), NIB_OK);
    /* a damaged file is ignored */
    write_text(path, "{\"schema\":1,\"machines\":[{\"cpu\":\"x\",\"isa\":");
    nib__machine_here(&first, nib__cpu_isa(), 1);
    assert_int_equal(nib__machine_measure(&first, pool, path, &allocator, NULL), NIB_OK);
    assert_true(first.measured && strlen(first.measured_on) == 10);
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        assert_true(first.rate[unit] > 1e6);
    assert_true(first.bytes_per_s > 1e7);
    /* rates measured on a quiet machine are reused; a busy machine is measured again */
    nib__machine_here(&second, nib__cpu_isa(), 1);
    if (!first.disturbed || sparse(2) == 1)
        assert_int_equal(nib__machine_measure(&second, pool, path, &allocator, NULL), NIB_OK);
    if (!first.disturbed)
        assert_memory_equal(first.rate, second.rate, sizeof first.rate);
    /* an entry for this CPU, isa and number of threads is used unchanged */
    snprintf(
        text, sizeof text,
        "{\"schema\":3,\"other\":[{}],\"machines\":[{\"name\":\"%s\",\"driver\":\"\",\"isa\":0,"
        "\"threads\":1,\"new\":2,\"measured\":\"2026-01-02\",\"bytes_per_s\":5e9,"
        "\"launch_s\":1e-6,\"rates\":[1e9,2e9,3e9,4e9,5e9,6e9,7e9]}]}",
        first.cpu);
    write_text(path, text);
    nib__machine_here(&second, 0, 1);
    assert_int_equal(nib__machine_measure(&second, pool, path, &allocator, NULL), NIB_OK);
    assert_string_equal(second.measured_on, "2026-01-02");
    assert_true(second.bytes_per_s == 5e9 && second.rate[NIB_UNIT_I8] == 3e9 && !second.disturbed);
    /* another isa counts as another machine and does not replace this entry */
    nib__machine_here(&first, nib__cpu_isa(), 1);
    assert_int_equal(nib__machine_measure(&first, pool, path, &allocator, NULL), NIB_OK);
    nib__machine_here(&second, 0, 1);
    assert_int_equal(nib__machine_measure(&second, pool, path, &allocator, NULL), NIB_OK);
    assert_string_equal(second.measured_on, "2026-01-02");
    /* an unwritable folder is not an error */
    if (sparse(2) == 1)
        assert_int_equal(
            nib__machine_measure(&first, pool, "/nowhere/at/all.json", &allocator, NULL), NIB_OK);
    nib__pool_close(pool);
    assert_int_equal(nib__path_remove(dir, NULL), NIB_OK);
}

/* A device with every value that the cache stores. */
static void make_device(nib_machine *m)
{
    *m = (nib_machine){.name = "gpu", .title = "a device \"X\"", .here = true};
    m->bytes_per_s = 100e9, m->cache_bytes = 1 << 20, m->cache_bytes_per_s = 300e9;
    m->launch_s = 4e-6, m->copy_s = 9e-6, m->copy_bytes_per_s = 12e9;
    for (int unit = 0; unit < NIB_UNIT_COUNT; unit++)
        m->rate[unit] = 1e12 + unit;
    m->product_count = 1;
    m->products[0] = (nib_measured){
        .code = NIB_CODE_I4, .act = NIB_ACT_I8_TOKEN, .memory_s = 5e-12, .weight_bytes = 0.5625};
    for (int i = 0; i < NIB_POINTS; i++)
        m->products[0].at[i] = (nib_point){.row = nib__kernel_find("linear_a8t_w4g_f32__ref"),
                                           .size_count = i == 1 ? NIB_SIZES : 1,
                                           .outputs = {256, 1024, 4096, 16384},
                                           .k_s = {1e-9, 3e-9, 1e-8, 4e-8 * (i + 1)},
                                           .quant_s = i * 1e-10};
    snprintf(m->measured_on, sizeof m->measured_on, "2026-01-02");
}

static void replace_word(const char *path, const char *from, const char *to)
{
    char *text, *at;
    size_t size;
    assert_int_equal(nib__file_read(&text, &size, path, 1 << 20, &allocator, NULL), NIB_OK);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_non_null(at = strstr(text, from));
    fprintf(f, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fclose(f);
    nib__release(&allocator, text);
}

static void keep_there(const nib_machine *m, const char *path)
{
    nib_err err;
    if (nib__measured_keep(m, "1.2", path, &allocator, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void rates_are_described(void **state)
{
    (void)state;
    nib_machine m;
    make_device(&m);
    m.here = false;
    assert_string_equal(nib__machine_rates(&m), "published rates");
    m.here = true;
    assert_string_equal(nib__machine_rates(&m), "measured kernels");
    m.product_count = 0;
    assert_string_equal(nib__machine_rates(&m), "cautious rates");
    m.measured = true;
    assert_string_equal(nib__machine_rates(&m), "measured rates");
}

static void measurements_are_kept(void **state)
{
    (void)state;
    char dir[] = "/tmp/nib-measured-XXXXXX", path[64];
    nib_machine kept, other, found = {.title = "a device \"X\""};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/machine.json", dir);
    make_device(&kept);
    assert_false(nib__measured_find(&found, "1.2", path, &allocator));
    keep_there(&kept, path);
    other = kept;
    other.title = "another";
    keep_there(&other, path);
    /* another driver or device counts as another machine */
    assert_false(nib__measured_find(&found, "1.3", path, &allocator));
    assert_false(found.measured);
    assert_true(nib__measured_find(&found, "1.2", path, &allocator));
    assert_true(found.measured && found.bytes_per_s == 100e9 && found.cache_bytes == 1 << 20);
    assert_true(found.cache_bytes_per_s == 300e9 && found.launch_s == 4e-6);
    assert_true(found.copy_s == 9e-6 && found.copy_bytes_per_s == 12e9 && !found.disturbed);
    assert_memory_equal(found.rate, kept.rate, sizeof kept.rate);
    assert_string_equal(found.measured_on, "2026-01-02");
    assert_int_equal(found.product_count, 1);
    const nib_measured *p = &found.products[0], *wanted = &kept.products[0];
    assert_true(p->code == NIB_CODE_I4 && p->act == NIB_ACT_I8_TOKEN);
    assert_true(p->memory_s == wanted->memory_s && p->weight_bytes == wanted->weight_bytes);
    for (int i = 0; i < NIB_POINTS; i++) {
        const nib_point *a = &p->at[i], *b = &wanted->at[i];
        assert_true(a->row == b->row && a->quant_s == b->quant_s);
        assert_int_equal(a->size_count, b->size_count);
        assert_memory_equal(a->outputs, b->outputs, (size_t)b->size_count * sizeof *b->outputs);
        assert_memory_equal(a->k_s, b->k_s, (size_t)b->size_count * sizeof *b->k_s);
    }
    /* a new measurement replaces the old one */
    kept.launch_s = 5e-6, kept.disturbed = true;
    keep_there(&kept, path);
    assert_true(nib__measured_find(&found, "1.2", path, &allocator));
    assert_true(found.launch_s == 5e-6 && found.disturbed);
    assert_true(nib__measured_find(&other, "1.2", path, &allocator));
    /* a kernel that no longer exists drops its product; another version drops all products */
    replace_word(path, "linear_a8t_w4g_f32__ref", "linear_that_was__ref");
    assert_true(nib__measured_find(&found, "1.2", path, &allocator));
    assert_true(found.product_count == 0 && found.launch_s == 5e-6);
    keep_there(&kept, path);
    replace_word(path, NIB_VERSION, "0.0.0");
    assert_true(nib__measured_find(&found, "1.2", path, &allocator));
    assert_true(found.product_count == 0 && found.bytes_per_s == 100e9);
    /* more sizes than times */
    keep_there(&kept, path);
    replace_word(path, "\"outputs\": [", "\"outputs\": [1,");
    assert_true(nib__measured_find(&found, "1.2", path, &allocator));
    assert_int_equal(found.product_count, 0);
    /* impossible rates and files of another schema are ignored */
    replace_word(path, "\"launch_s\": ", "\"launch_s\": -");
    assert_false(nib__measured_find(&found, "1.2", path, &allocator));
    keep_there(&kept, path);
    replace_word(path, "\"schema\": 3", "\"schema\": 2");
    assert_false(nib__measured_find(&found, "1.2", path, &allocator));
    keep_there(&kept, path);
    assert_true(nib__measured_find(&found, "1.2", path, &allocator));
    replace_word(path, "\"cache_bytes_per_s\"", "\"speed\""); /* cache without a rate */
    assert_false(nib__measured_find(&found, "1.2", path, &allocator));
    assert_int_equal(nib__path_remove(dir, NULL), NIB_OK);
    assert_int_equal(nib__measured_keep(&kept, "1.2", path, &allocator, NULL), NIB_IO);
    assert_int_equal(nib__measured_keep(&kept, "1.2", "/dev/full", &allocator, NULL), NIB_EXISTS);
}

/* The maximum number of machines, each with the most products and digits. */
static void many_machines_are_kept(void **state)
{
    (void)state;
    enum { MACHINES = 32 };
    char dir[] = "/tmp/nib-measured-XXXXXX", path[64], titles[MACHINES][96];
    nib_machine m;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/machine.json", dir);
    for (int i = 0; i < MACHINES; i++) {
        make_device(&m);
        snprintf(titles[i], sizeof titles[i], "%090d", i);
        m.title = titles[i];
        for (m.product_count = 0; m.product_count < NIB_MEASURED_MAX; m.product_count++) {
            m.products[m.product_count] = m.products[0];
            for (int j = 0; j < NIB_POINTS; j++) {
                nib_point *point = &m.products[m.product_count].at[j];
                point->row = nib__kernel_find("linear_dw_e4m3t_e4m3c_f32__ocl_gfx90a");
                point->size_count = NIB_SIZES;
                for (int size = 0; size < NIB_SIZES; size++)
                    point->k_s[size] = 1.2345678901234567e-10 * (size + 1.0);
            }
        }
        keep_there(&m, path);
    }
    for (int i = 0; i < MACHINES; i++) {
        nib_machine found = {.title = titles[i]};
        assert_true(nib__measured_find(&found, "1.2", path, &allocator));
        assert_int_equal(found.product_count, NIB_MEASURED_MAX);
    }
    assert_int_equal(nib__path_remove(dir, NULL), NIB_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fact_has_a_source),
        cmocka_unit_test(known_machines_exist),
        cmocka_unit_test(names_mask_instruction_sets),
        cmocka_unit_test(this_machine_has_cautious_rates),
        cmocka_unit_test(this_machine_is_described),
        cmocka_unit_test(measuring_is_cached),
        cmocka_unit_test(measurements_are_kept),
        cmocka_unit_test(many_machines_are_kept),
        cmocka_unit_test(rates_are_described),
    };
    return RUN_WITH_MACHINES(tests);
}
