/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays pickled by two generations of numpy in all protocols, and damaged ones by hand.
 *
 * covers: numpy
 */
#include <jansson.h>
#include <unistd.h>

#include "core/origin/origin.h"
#include "core/parse/numpy/numpy.h"
#include "core/parse/parse.h"
#include "tests/unit/t/parse/pickle.h"

static struct dcp_pickle *parse(const struct dcp_source *src)
{
	struct dcp_pickle_opts opts = { .far_bytes = DCP_NDARRAY_FAR_BYTES,
					.far_text = DCP_NDARRAY_FAR_TEXT };
	struct dcp_pickle *p;
	struct dcp_err err = { 0 };

	if (dcp_pickle_read(src, &opts, &p, NULL, &err) < 0)
		fail_msg("%s", err.msg);
	return p;
}

/* ---- what numpy wrote ---- */

/* The payload as the file has it, or decoded. */
static char *payload(const struct dcp_source *src, const struct dcp_ndarray *a, size_t n)
{
	struct dcp_source text = dcp_source_window(src, a->off, a->nbytes);
	struct dcp_err err = { 0 };
	char *p = malloc(n + 1);
	FILE *f = tmpfile();

	if (a->filter == DCP_FILTER_NONE) {
		assert_int_equal(a->nbytes, n);
		assert_int_equal(dcp_source_read(src, a->off, p, n), 0);
	} else {
		if (dcp_latin1_decode_fd(&text, fileno(f), n, &err) < 0)
			fail_msg("%s", err.msg);
		assert_int_equal(pread(fileno(f), p, n, 0), n);
	}
	fclose(f);
	return p;
}

/* One element after another, by the strides. */
static void check_values(const struct dcp_source *src, const struct dcp_ndarray *a,
			 const char *hex)
{
	size_t n = strlen(hex) / 2, k = 0;
	uint64_t i[DCP_MAX_NDIM] = { 0 };
	char *stored = payload(src, a, n);
	uint32_t d;

	do {
		uint64_t at = 0;
		char e[16];

		if (k == n)
			break; /* empty */
		for (d = 0; d < a->ndim; d++)
			at += i[d] * a->stride[d];
		assert_true((at + 1) * a->itemsize <= n);
		memcpy(e, stored + at * a->itemsize, a->itemsize);
		if (a->swap)
			dcp_swap(dcp_dtype_swap_unit(a->dtype, a->itemsize), e, a->itemsize);
		for (uint32_t b = 0; b < a->itemsize; b++, k++) {
			unsigned byte;

			assert_int_equal(sscanf(hex + 2 * k, "%2x", &byte), 1);
			assert_int_equal((uint8_t)e[b], byte);
		}
		for (d = a->ndim; d-- > 0 && ++i[d] == a->shape[d];)
			i[d] = 0;
	} while (d != UINT32_MAX);
	assert_int_equal(k, n);
	free(stored);
}

static void check_array(const struct dcp_source *src, struct dcp_pv v, json_t *want)
{
	const char *dtype = json_string_value(json_object_get(want, "dtype"));
	json_t *shape = json_object_get(want, "shape");
	struct dcp_ndarray a;
	struct dcp_err err = { 0 };
	uint64_t step = 1;

	assert_true(dcp_ndarray_is(v));
	if (dcp_ndarray_read(v, &a, &err) != 1)
		fail_msg("%s", err.msg);
	assert_string_equal(dcp_dtype_info(a.dtype)->npy + 1, dtype);
	assert_int_equal(a.ndim, json_array_size(shape));
	for (uint32_t d = a.ndim; d-- > 0; step *= a.shape[d]) {
		assert_int_equal(a.shape[d], json_integer_value(json_array_get(shape, d)));
		if (a.row_major && a.shape[d] > 1)
			assert_int_equal(a.stride[d], step);
	}
	check_values(src, &a, json_string_value(json_object_get(want, "hex")));
}

static void numpys_own_pickles_are_read(void **state)
{
	static const char *const tags[] = { "1.24", "2" };

	(void)state;
	for (size_t i = 0; i < 12; i++) {
		int protocol = (int)(i % 6);
		char path[64];
		json_t *want, *one;
		const char *name;
		size_t n;
		char *file;
		struct dcp_source src;
		struct dcp_pickle *p;

		snprintf(path, sizeof(path), "tests/golden/ndpickle/%s.json", tags[i / 6]);
		want = json_load_file(path, 0, NULL);
		assert_non_null(want);
		snprintf(path, sizeof(path), "tests/golden/ndpickle/%s-p%d.pkl", tags[i / 6],
			 protocol);
		file = t_slurp(path, &n);
		src = dcp_source_mem(file, n);
		p = parse(&src);
		json_object_foreach(want, name, one)
		{
			const struct dcp_pv *v = dcp_pv_get(dcp_pickle_root(p), name);
			struct dcp_ndarray a;

			print_message("           %s %s\n", path, name);
			assert_non_null(v);
			/* escapes are no place in a file; text without any is one */
			if (protocol == 0 && dcp_ndarray_read(*v, &a, NULL) == -ENOTSUP)
				continue;
			check_array(&src, *v, one);
		}
		dcp_pickle_free(p);
		free(file);
		json_decref(want);
	}
}

/* ---- by hand ---- */

#define DT(code) "cnumpy\ndtype\n(V" code "\nI00\nI01\ntR"
#define DT_STATE(code, order) DT(code) "(I3\nV" order "\nNNNI-1\nI-1\nI0\ntb"
#define MAKE "cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntC\x01"
#define ARRAY(shape, dtype, order, data) MAKE "btR(I1\n" shape dtype order data "tb."
#define BUFFER "cnumpy.core.numeric\n_frombuffer\n("
#define ENCODED(op) "c_codecs\nencode\n(" op "Vlatin1\ntR"
#define FOUR "C\x04wxyz"
#define ONES "I1\nI1\nI1\nI1\nI1\nI1\nI1\nI1\nI1\nI1\nI1\nI1\nI1\nI1\nI1\nI1\n"
#define ROW(what, bytes, says)                                                                 \
	{                                                                                      \
		what, bytes, sizeof(bytes) - 1, says                                           \
	}

static void bad_arrays_are_refused(void **state)
{
	static const struct {
		const char *what, *bytes;
		size_t n;
		const char *says;
	} rows[] = {
		ROW("no state", MAKE "btR.", "without its state"),
		ROW("a state of three", MAKE "btR(I1\nI2\nI3\ntb.", "without its state"),
		ROW("a shape of text", ARRAY("Vx\n", DT_STATE("f4", "<"), "I00\n", FOUR),
		    "without a shape"),
		ROW("a negative length", ARRAY("(I-1\nt", DT_STATE("f4", "<"), "I00\n", FOUR),
		    "is not a length"),
		ROW("a length that overflows",
		    ARRAY("(I9223372036854775807\nI9223372036854775807\nt", DT_STATE("f4", "<"),
			  "I00\n", FOUR),
		    "overflows"),
		ROW("more bytes than a file has",
		    ARRAY("(I4611686018427387904\nt", DT_STATE("i2", "<"), "I00\n", FOUR),
		    "overflows"),
		ROW("65 dimensions",
		    ARRAY("(" ONES ONES ONES ONES "I1\nt", DT_STATE("i1", "|"), "I00\n", FOUR),
		    "array of 65 dimensions"),
		ROW("zeros that hide an overflow",
		    ARRAY("(I9223372036854775807\nI9223372036854775807\nI0\nt",
			  DT_STATE("f4", "<"), "I00\n", "C\x00"),
		    "overflows"),
		ROW("too few bytes", ARRAY("(I2\nt", DT_STATE("f4", "<"), "I00\n", FOUR),
		    "needs 8 bytes, its payload has 4"),
		ROW("too many bytes", ARRAY("(I3\nt", DT_STATE("i1", "|"), "I00\n", FOUR),
		    "needs 3 bytes, its payload has 4"),
		ROW("too much text",
		    ARRAY("(I1\nt", DT_STATE("i1", "|"), "I00\n", ENCODED(FOUR)),
		    "needs 1 byte, its payload has 4"),
		ROW("no bytes at all", ARRAY("(I1\nt", DT_STATE("i1", "|"), "I00\n", "N"),
		    "without bytes"),
		ROW("bytes() of something",
		    ARRAY("(I1\nt", DT_STATE("i1", "|"), "I00\n", "c__builtin__\nbytes\n(tR"),
		    "without bytes"),
		ROW("another encoding",
		    ARRAY("(I4\nt", DT_STATE("i1", "|"), "I00\n",
			  "c_codecs\nencode\n(Vabcd\nVrot13\ntR"),
		    "without bytes"),
		ROW("escapes",
		    ARRAY("(I4\nt", DT_STATE("i1", "|"), "I00\n", ENCODED("V\\u0041bcd\n")),
		    "escapes"),
		ROW("objects", ARRAY("(I1\nt", DT_STATE("O8", "|"), "I00\n", "(lNa"),
		    "dtype O8"),
		ROW("a list for bytes", ARRAY("(I1\nt", DT_STATE("f4", "<"), "I00\n", "(lNa"),
		    "Python objects"),
		ROW("text", ARRAY("(I1\nt", DT_STATE("U1", "<"), "I00\n", FOUR), "dtype U1"),
		ROW("a class as dtype",
		    ARRAY("(I1\nt", "cnumpy\ndtype\n(cos\nsystem\nI00\nI01\ntR", "I00\n", FOUR),
		    "outside numpy"),
		ROW("a str as dtype", ARRAY("(I1\nt", "Vf4\n", "I00\n", FOUR),
		    "without a numpy.dtype"),
		ROW("a byte order of two", ARRAY("(I1\nt", DT_STATE("f4", "<>"), "I00\n", FOUR),
		    "damaged state"),
		ROW("records",
		    ARRAY("(I1\nt", DT("f4") "(I3\nV<\nN(Va\nt(dI-1\nI-1\nI0\ntb", "I00\n",
			  FOUR),
		    "records"),
		ROW("an order that is no truth value",
		    ARRAY("(I1\nt", DT_STATE("f4", "<"), "I2\n", FOUR), "truth value"),
		ROW("a buffer of order Z", BUFFER FOUR DT("f4") "(I1\ntVZ\ntR.",
		    "no known order"),
		ROW("a buffer of order K without axes", BUFFER FOUR DT("f4") "(I1\ntVK\ntR.",
		    "no known order"),
		ROW("axes that are no permutation",
		    BUFFER FOUR DT("i1") "(I2\nI2\ntVK\n(I0\nI0\nttR.", "not a permutation"),
		ROW("an axis too many", BUFFER FOUR DT("i1") "(I2\nI2\ntVK\n(I0\nI1\nI2\nttR.",
		    "3 axes"),
		ROW("an axis that does not exist",
		    BUFFER FOUR DT("i1") "(I2\nI2\ntVK\n(I0\nI2\nttR.", "not a permutation"),
		ROW("a scalar of one argument",
		    "cnumpy.core.multiarray\nscalar\n(" DT("f4") "tR.", "without its dtype"),
		ROW("a masked array", "cnumpy.ma.core\n_mareconstruct\n(tR.", "masked"),
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_source src = dcp_source_mem(rows[i].bytes, rows[i].n);
		struct dcp_pickle *p = parse(&src);
		struct dcp_err err = { 0 };
		struct dcp_ndarray a;
		int r;

		t_case(rows[i].what);
		r = dcp_ndarray_read(dcp_pickle_root(p), &a, &err);
		assert_true(r == -EBADMSG || r == -ENOTSUP);
		assert_int_equal(err.code, r);
		t_assert_says(&err, rows[i].says);
		dcp_pickle_free(p);
	}
}

/* Calls of others, and names that only look alike. */
static void other_calls_are_no_arrays(void **state)
{
	static const char *const rows[] = {
		"N.",
		"cnumpy.core.multiarray\n_reconstruct\n.",
		"cos\nsystem\n(Vtouch x\ntR.",
		"cnumpyx.core.multiarray\nscalar\n(tR.",
		"cnumpy.core.multiarray\nscalars\n(tR.",
		"(I1\nI2\nt.",
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcp_source src = dcp_source_mem(rows[i], strlen(rows[i]));
		struct dcp_pickle *p = parse(&src);
		struct dcp_ndarray a;

		t_case(rows[i]);
		assert_false(dcp_ndarray_is(dcp_pickle_root(p)));
		assert_int_equal(dcp_ndarray_read(dcp_pickle_root(p), &a, NULL), 0);
		dcp_pickle_free(p);
	}
}

/* Python 2 wrote payloads as str, which lie there as they are. */
static void pickles_of_python2_are_read(void **state)
{
	static const char bytes[] =
		ARRAY("(I2\nI1\nt", DT_STATE("i2", ">"), "I01\n", "U\x04\xff\x80yz");
	struct dcp_source src = dcp_source_mem(bytes, sizeof(bytes) - 1);
	struct dcp_pickle *p = parse(&src);
	struct dcp_ndarray a;

	(void)state;
	assert_int_equal(dcp_ndarray_read(dcp_pickle_root(p), &a, NULL), 1);
	assert_int_equal(a.filter, DCP_FILTER_NONE);
	assert_memory_equal(bytes + a.off, "\xff\x80yz", 4);
	assert_true(a.swap && a.row_major);
	assert_int_equal(a.nbytes, 4);
	dcp_pickle_free(p);
}

/* numpy >= 2.3 keeps the order of axes in memory: shape (2, 3, 4) made by transposing (4, 2,
 * 3).
 */
static void orders_of_axes_are_read(void **state)
{
	static const char head[] = BUFFER "B\x18\0\0\0";
	static const char tail[] = DT("i1") "(I4\nI2\nI3\ntVK\n(I1\nI2\nI0\nttR.";
	char bytes[256];
	size_t n = sizeof(head) - 1;
	struct dcp_source src;
	struct dcp_pickle *p;
	struct dcp_ndarray a;

	(void)state;
	memcpy(bytes, head, n);
	for (int i = 0; i < 24; i++)
		bytes[n++] = (char)i;
	memcpy(bytes + n, tail, sizeof(tail) - 1);
	src = dcp_source_mem(bytes, n + sizeof(tail) - 1);
	p = parse(&src);
	assert_int_equal(dcp_ndarray_read(dcp_pickle_root(p), &a, NULL), 1);
	assert_int_equal(a.ndim, 3);
	assert_memory_equal(a.shape, ((uint64_t[]){ 2, 3, 4 }), sizeof(uint64_t) * 3);
	assert_memory_equal(a.stride, ((uint64_t[]){ 3, 1, 6 }), sizeof(uint64_t) * 3);
	assert_false(a.row_major);
	dcp_pickle_free(p);
}

/* A numpy dtype that another package registered. */
static void extension_dtypes_are_read(void **state)
{
	static const char bytes[] = ARRAY(
		"(I2\nt", "cnumpy\ndtype\n(cml_dtypes\nbfloat16\nI00\nI01\ntR", "I00\n", FOUR);
	struct dcp_source src = dcp_source_mem(bytes, sizeof(bytes) - 1);
	struct dcp_pickle *p = parse(&src);
	struct dcp_ndarray a;

	(void)state;
	assert_int_equal(dcp_ndarray_read(dcp_pickle_root(p), &a, NULL), 1);
	assert_int_equal(a.dtype, DCP_DTYPE_BF16);
	dcp_pickle_free(p);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numpys_own_pickles_are_read),
		cmocka_unit_test(bad_arrays_are_refused),
		cmocka_unit_test(other_calls_are_no_arrays),
		cmocka_unit_test(pickles_of_python2_are_read),
		cmocka_unit_test(orders_of_axes_are_read),
		cmocka_unit_test(extension_dtypes_are_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
