/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/model/tensor.h"
#include "core/origin/origin.h"
#include "core/parse/safetensors/safetensors.h"

#define BAD "tests/bad/safetensors"
#define GOLDEN "tests/golden/dcp-hf/ckpt/"
#define MEMORY ((size_t)64 << 20)

/* A file with this header and @data zero bytes. */
static void t_file(struct dcp_buf *b, const char *header, size_t data)
{
	uint8_t word[8];

	dcp_buf_reset(b);
	dcp_store_le64(word, strlen(header));
	dcp_buf_add(b, word, 8);
	dcp_buf_str(b, header);
	memset(dcp_buf_grow(b, data), 0, data);
}

static int read_path(const char *path, struct dcp_arena *a, struct dcp_safetensors *st,
		     struct dcp_err *err)
{
	dcp_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct dcp_source src;

	if (fd < 0)
		fail_msg("%s: %s", path, strerror(errno));
	assert_int_equal(dcp_source_fd(fd, &src), 0);
	return dcp_safetensors_read(&src, a, st, err);
}

/* clang-format off */
static const struct {
	const char *file;
	int code;
	const char *says;
} bad[] = {
	{ "empty-file", -EBADMSG, "file of 0 bytes has no room for a header length" },
	{ "seven-bytes", -EBADMSG, "file of 7 bytes has no room" },
	{ "header-empty", -EBADMSG, "header of 0 bytes does not start with '{'" },
	{ "header-too-long", -E2BIG, "header length 100000001 is over the format's limit of 100000000" },
	{ "header-longest-number", -E2BIG, "header length 18446744073709551615 is over" },
	{ "header-past-end", -EBADMSG, "header length 64 runs past the end of a file of 13 bytes" },
	{ "header-not-json", -EBADMSG, "header byte 13: JSON has byte 0x7d at 5, expected a value" },
	{ "header-array", -EBADMSG, "does not start with '{'" },
	{ "header-space-first", -EBADMSG, "does not start with '{'" },
	{ "header-text-behind", -EBADMSG, "expected nothing after the object" },
	{ "header-two-objects", -EBADMSG, "expected nothing after the object" },
	{ "header-comma-last", -EBADMSG, "expected a name in quotes" },
	{ "header-comma-first", -EBADMSG, "expected a name in quotes" },
	{ "header-no-comma", -EBADMSG, "JSON has byte 0x22 at 18, expected ',' or '}'" },
	{ "header-open", -EBADMSG, "JSON ends at byte 53, expected ',' or '}'" },
	{ "header-deep", -EBADMSG, "nested more than 64 levels deep" },
	{ "name-not-utf8", -EBADMSG, "header byte " },
	{ "name-open", -EBADMSG, "JSON ends at byte 3, expected ':'" },
	{ "name-number", -EBADMSG, "expected a name in quotes" },
	{ "name-twice", -EBADMSG, "tensor \"a\": named twice, with data at " },
	{ "name-twice-escaped", -EBADMSG, "tensor \"a\": named twice" },
	{ "metadata-twice", -EBADMSG, "__metadata__ is there twice" },
	{ "metadata-escaped", -EBADMSG, "__metadata__ is spelled with escapes" },
	{ "metadata-name-twice", -EBADMSG, "__metadata__ has the name \"a\" twice" },
	{ "metadata-number", -EBADMSG, "__metadata__ \"step\": its value is not a string" },
	{ "metadata-nested", -EBADMSG, "__metadata__ \"step\": its value is not a string" },
	{ "metadata-string", -EBADMSG, "__metadata__ is not an object" },
	{ "metadata-open", -EBADMSG, "JSON ends at byte" },
	{ "entry-number", -EBADMSG, "tensor \"a\": its entry is not an object" },
	{ "entry-null", -EBADMSG, "tensor \"a\": its entry is not an object" },
	{ "entry-too-long", -E2BIG, "tensor \"a\": its entry has 65594 bytes, more than 65536" },
	{ "entry-name-twice", -EBADMSG, "duplicate" },
	{ "dtype-missing", -EBADMSG, "tensor \"a\": its dtype is not a string" },
	{ "dtype-number", -EBADMSG, "tensor \"a\": its dtype is not a string" },
	{ "shape-missing", -EBADMSG, "tensor \"a\": its shape is not an array" },
	{ "shape-string", -EBADMSG, "tensor \"a\": its shape is not an array" },
	{ "shape-negative", -EBADMSG, "tensor \"a\": dimension 0 of its shape is not a count" },
	{ "shape-fraction", -EBADMSG, "tensor \"a\": dimension 0 of its shape is not a count" },
	{ "shape-huge", -EBADMSG, "too big integer" },
	{ "shape-overflow", -EBADMSG, "tensor \"a\": the product of its shape does not fit in 64 bits" },
	{ "shape-bytes-overflow", -EBADMSG, "tensor \"a\": its size in bytes does not fit in 64 bits" },
	{ "shape-65-dimensions", -E2BIG, "tensor \"a\": 65 dimensions, more than 64" },
	{ "offsets-missing", -EBADMSG, "tensor \"a\": its data_offsets are not two byte counts" },
	{ "offsets-one", -EBADMSG, "tensor \"a\": its data_offsets are not two byte counts" },
	{ "offsets-three", -EBADMSG, "tensor \"a\": its data_offsets are not two byte counts" },
	{ "offsets-negative", -EBADMSG, "tensor \"a\": its data_offsets are not two byte counts" },
	{ "offsets-huge", -EBADMSG, "tensor \"a\": header byte" },
	{ "offsets-reversed", -EBADMSG, "tensor \"a\": data_offsets [8, 0) are reversed" },
	{ "offsets-past-end", -ENODATA, "tensor \"a\": data_offsets [0, 8) end past the data section, which has 7 bytes" },
	{ "offsets-far-past-end", -EBADMSG, "9223372036854775807) are beyond any file" },
	{ "size-short", -EBADMSG, "tensor \"a\": 8 bytes of data, its shape of F32 needs 12" },
	{ "size-long", -EBADMSG, "tensor \"a\": 8 bytes of data, its shape of F32 needs 4" },
	{ "size-for-zero-elements", -EBADMSG, "tensor \"a\": 8 bytes of data, its shape of F32 needs 0" },
	{ "f4-half-a-byte", -EBADMSG, "tensor \"a\": 3 values of 4 bits are not a whole number of bytes" },
	{ "f4-counts-bytes", -EBADMSG, "tensor \"a\": 8 bytes of data, its shape of F4 needs 4" },
	{ "f6-not-whole-bytes", -EBADMSG, "tensor \"a\": 3 values of 6 bits are not a whole number of bytes" },
	{ "git-lfs", -ENOTSUP, "a Git LFS pointer" },
	{ "torch-save", -ENOTSUP, "a zip archive" },
	{ "zeros", -ENOTSUP, "zeros" },
	{ "f6-size", -EBADMSG, "tensor \"a\": 4 bytes of data, its shape of F6_E3M2 needs 3" },
	{ "unknown-type-zero-elements", -EBADMSG, "tensor \"a\": 8 bytes of data for 0 elements of unknown type Q7" },
	{ "unknown-type-no-bytes", -EBADMSG, "tensor \"a\": 0 bytes of data for 8 elements of unknown type Q7" },
	{ "hole-first", -EBADMSG, "tensor \"a\": its data starts at 4, a hole of as many bytes" },
	{ "hole-between", -EBADMSG, "tensor \"b\": its data starts at 12, a hole of 4 bytes: \"a\" ends at 8" },
	{ "hole-last", -EBADMSG, "the tensors end at 8, but the data section has 11 bytes" },
	{ "hole-no-tensors", -EBADMSG, "the tensors end at 0, but the data section has 1 byte" },
	{ "overlap", -EBADMSG, "tensor \"b\": its data starts at 4, an overlap of 4 bytes: \"a\" ends at 8" },
	{ "overlap-same", -EBADMSG, "tensor \"b\": its data starts at 0, an overlap of 8 bytes: \"a\" ends at 8" },
	{ "overlap-empty-inside", -EBADMSG, "tensor \"b\": its data starts at 4, an overlap of 4 bytes: \"a\" ends at 8" },
};
/* clang-format on */

static void bad_files_are_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(bad); i++) {
		struct dcp_safetensors st = { .n = 77 };
		struct dcp_err err = { 0 };
		struct dcp_arena a;
		char path[200];

		t_case(bad[i].file);
		dcp_arena_init(&a, MEMORY);
		snprintf(path, sizeof(path), BAD "/%s.safetensors", bad[i].file);
		assert_int_equal(read_path(path, &a, &st, &err), bad[i].code);
		t_assert_says(&err, bad[i].says);
		assert_int_equal(err.code, bad[i].code);
		assert_int_equal(st.n, bad[i].code == -ENODATA ? 1 : 77);
		assert_int_equal(read_path(path, &a, &st, NULL), bad[i].code);
		dcp_arena_finish(&a);
	}
}

static void every_bad_file_has_a_row(void **state)
{
	DIR *d = opendir(BAD);
	struct dirent *e;

	(void)state;
	assert_non_null(d);
	while ((e = readdir(d)) != NULL) {
		size_t n = strcspn(e->d_name, "."), i = 0;

		if (e->d_name[0] == '.')
			continue;
		while (i < DCP_LEN(bad) &&
		       (strlen(bad[i].file) != n || strncmp(bad[i].file, e->d_name, n) != 0))
			i++;
		if (i == DCP_LEN(bad))
			fail_msg("no row for %s", e->d_name);
	}
	closedir(d);
}

/* clang-format off */
static const struct {
	const char *what, *dtype, *shape;
	uint64_t bytes;
	enum dcp_dtype want;
	uint32_t itemsize, ndim;
	uint64_t dims[3];
} entries[] = {
	{ "F64", "F64", "[2,3]", 48, DCP_DTYPE_F64, 8, 2, { 2, 3 } },
	{ "F32 without dimensions", "F32", "[]", 4, DCP_DTYPE_F32, 4, 0, { 0 } },
	{ "F16", "F16", "[3]", 6, DCP_DTYPE_F16, 2, 1, { 3 } },
	{ "BF16, no elements", "BF16", "[4,0,9]", 0, DCP_DTYPE_BF16, 2, 3, { 4, 0, 9 } },
	{ "no elements of a huge shape", "F64", "[9223372036854775807,0,9223372036854775807]", 0,
	  DCP_DTYPE_F64, 8, 3, { INT64_MAX, 0, INT64_MAX } },
	{ "F8_E4M3", "F8_E4M3", "[3]", 3, DCP_DTYPE_F8_E4M3, 1, 1, { 3 } },
	{ "F8_E5M2", "F8_E5M2", "[3]", 3, DCP_DTYPE_F8_E5M2, 1, 1, { 3 } },
	{ "F8_E4M3FNUZ", "F8_E4M3FNUZ", "[3]", 3, DCP_DTYPE_F8_E4M3FNUZ, 1, 1, { 3 } },
	{ "F8_E5M2FNUZ", "F8_E5M2FNUZ", "[3]", 3, DCP_DTYPE_F8_E5M2FNUZ, 1, 1, { 3 } },
	{ "F8_E8M0", "F8_E8M0", "[3]", 3, DCP_DTYPE_F8_E8M0, 1, 1, { 3 } },
	{ "F4, last dimension halved", "F4", "[3,8]", 12, DCP_DTYPE_F4, 1, 2, { 3, 4 } },
	{ "F4, no elements", "F4", "[3,0]", 0, DCP_DTYPE_F4, 1, 2, { 3, 0 } },
	{ "F4 with odd rows is one", "F4", "[2,3]", 3, DCP_DTYPE_F4, 1, 1, { 3 } },
	{ "F6_E2M3, last dimension quartered", "F6_E2M3", "[2,4]", 6, DCP_DTYPE_F6_E2M3, 3, 2, { 2, 1 } },
	{ "F6_E3M2", "F6_E3M2", "[8]", 6, DCP_DTYPE_F6_E3M2, 3, 1, { 2 } },
	{ "F6 with odd rows is one", "F6_E3M2", "[2,6]", 9, DCP_DTYPE_F6_E3M2, 3, 1, { 3 } },
	{ "F6, no elements", "F6_E2M3", "[0,3]", 0, DCP_DTYPE_F6_E2M3, 3, 1, { 0 } },
	{ "I64", "I64", "[1]", 8, DCP_DTYPE_I64, 8, 1, { 1 } },
	{ "I32", "I32", "[1]", 4, DCP_DTYPE_I32, 4, 1, { 1 } },
	{ "I16", "I16", "[1]", 2, DCP_DTYPE_I16, 2, 1, { 1 } },
	{ "I8", "I8", "[1]", 1, DCP_DTYPE_I8, 1, 1, { 1 } },
	{ "U64", "U64", "[1]", 8, DCP_DTYPE_U64, 8, 1, { 1 } },
	{ "U32", "U32", "[1]", 4, DCP_DTYPE_U32, 4, 1, { 1 } },
	{ "U16", "U16", "[1]", 2, DCP_DTYPE_U16, 2, 1, { 1 } },
	{ "U8", "U8", "[1]", 1, DCP_DTYPE_U8, 1, 1, { 1 } },
	{ "BOOL", "BOOL", "[5]", 5, DCP_DTYPE_BOOL, 1, 1, { 5 } },
	{ "C64", "C64", "[2]", 16, DCP_DTYPE_C64, 8, 1, { 2 } },
	{ "unknown, three bytes each", "Q24", "[2,5]", 30, DCP_DTYPE_OTHER, 3, 2, { 2, 5 } },
	{ "unknown, one and a half each", "Q12", "[2,5]", 15, DCP_DTYPE_OTHER, 1, 1, { 15 } },
	{ "unknown, no elements", "Q12", "[2,0]", 0, DCP_DTYPE_OTHER, 1, 2, { 2, 0 } },
};
/* clang-format on */

static void every_type_of_entry_is_read(void **state)
{
	dcp_auto_buf struct dcp_buf file = DCP_BUF_INIT;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(entries); i++) {
		struct dcp_safetensors st;
		struct dcp_err err = { 0 };
		struct dcp_source src;
		struct dcp_arena a;
		uint64_t volume;
		char header[300];

		t_case(entries[i].what);
		dcp_arena_init(&a, MEMORY);
		snprintf(header, sizeof(header),
			 "{\"t\":{\"extra\":[],\"dtype\":\"%s\",\"shape\":%s,"
			 "\"data_offsets\":[0,%" PRIu64 "]}}  ",
			 entries[i].dtype, entries[i].shape, entries[i].bytes);
		t_file(&file, header, entries[i].bytes);
		src = dcp_source_mem(file.p, file.n);
		if (dcp_safetensors_read(&src, &a, &st, &err))
			fail_msg("%s", err.msg);
		assert_int_equal(st.n, 1);
		assert_int_equal(st.entries[0].dtype, entries[i].want);
		assert_string_equal(st.entries[0].dtype_name, entries[i].dtype);
		assert_int_equal(st.entries[0].itemsize, entries[i].itemsize);
		assert_int_equal(st.entries[0].ndim, entries[i].ndim);
		assert_memory_equal(st.entries[0].shape, entries[i].dims, 8 * entries[i].ndim);
		assert_int_equal(st.entries[0].off, 8 + strlen(header));
		assert_int_equal(st.entries[0].nbytes, entries[i].bytes);
		assert_true(dcp_shape_volume(st.entries[0].shape, st.entries[0].ndim, &volume));
		assert_int_equal(volume * st.entries[0].itemsize, entries[i].bytes);
		dcp_arena_finish(&a);
	}
}

static void files_without_tensors_are_read(void **state)
{
	static const char *const headers[] = { "{}", "{ }", "{}   ", "{\"__metadata__\":{}}",
					       "{\"__metadata__\":null}" };
	dcp_auto_buf struct dcp_buf file = DCP_BUF_INIT;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(headers); i++) {
		struct dcp_safetensors st = { .n = 5 };
		struct dcp_source src;
		struct dcp_arena a;

		t_case(headers[i]);
		dcp_arena_init(&a, MEMORY);
		t_file(&file, headers[i], 0);
		src = dcp_source_mem(file.p, file.n);
		assert_int_equal(dcp_safetensors_read(&src, &a, &st, NULL), 0);
		assert_int_equal(st.n, 0);
		assert_null(dcp_safetensors_meta(&st, "format"));
		dcp_arena_finish(&a);
	}
}

static void entries_are_ordered_by_offset(void **state)
{
	static const char header[] =
		"{\"z\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
		"\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[2,5]},"
		"\"__metadata__\":{\"fr\\u00f6m\":\"\",\"format\":\"p\\\"t\","
		"\"n\\u0000l\":\"\\u0000\\u0000\"},"
		"\"em\\u0000ty\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}";
	dcp_auto_buf struct dcp_buf file = DCP_BUF_INIT;
	struct dcp_safetensors st;
	struct dcp_source src;
	struct dcp_arena a;

	(void)state;
	dcp_arena_init(&a, MEMORY);
	t_file(&file, header, 5);
	src = dcp_source_mem(file.p, file.n);
	assert_int_equal(dcp_safetensors_read(&src, &a, &st, NULL), 0);
	assert_int_equal(st.n, 3);
	assert_string_equal(st.entries[0].name, "z");
	assert_string_equal(st.entries[1].name, "em\xc0\x80ty");
	assert_string_equal(st.entries[2].name, "a");
	assert_int_equal(st.nmeta, 3);
	assert_string_equal(dcp_safetensors_meta(&st, "n\xc0\x80l"), "\xc0\x80\xc0\x80");
	assert_string_equal(dcp_safetensors_meta(&st, "format"), "p\"t");
	assert_string_equal(dcp_safetensors_meta(&st, "fr\xc3\xb6m"), "");
	assert_null(dcp_safetensors_meta(&st, "none"));
	dcp_arena_finish(&a);
}

/* What torch wrote on three ranks and on one. */
/* clang-format off */
static const struct {
	const char *file, *name, *dtype;
	size_t n;      /* tensors in the file */
	size_t i;      /* which one */
	uint32_t ndim;
	uint64_t shape[5];
	uint64_t off, nbytes; /* in the data section */
} golden[] = {
	{ GOLDEN "5-one-file/model-00001-of-00001.safetensors", "conv", "F64", 6, 0, 5, { 2, 3, 2, 1, 5 }, 0, 480 },
	{ GOLDEN "5-one-file/model-00001-of-00001.safetensors", "lm_head.weight", "BF16", 6, 3, 2, { 19, 6 }, 744, 228 },
	{ GOLDEN "5-one-file/model-00001-of-00001.safetensors", "model.layers.0.bias", "F16", 6, 5, 1, { 2 }, 1200, 4 },
	{ GOLDEN "1-sharded/shard-00002-model-00001-of-00001.safetensors", "model.layers.0.q.weight", "F32", 6, 1, 2, { 6, 4 }, 192, 96 },
	{ GOLDEN "3-consolidated/model-00001-of-00003.safetensors", "model.embed.weight", "BF16", 1, 0, 2, { 19, 6 }, 0, 228 },
};
/* clang-format on */

static void golden_files_are_read(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(golden); i++) {
		const struct dcp_safetensors_entry *e;
		struct dcp_err err = { 0 };
		struct dcp_safetensors st;
		struct dcp_arena a;

		t_case(golden[i].file);
		dcp_arena_init(&a, MEMORY);
		if (read_path(golden[i].file, &a, &st, &err))
			fail_msg("%s", err.msg);
		assert_int_equal(st.n, golden[i].n);
		e = &st.entries[golden[i].i];
		assert_string_equal(e->name, golden[i].name);
		assert_string_equal(e->dtype_name, golden[i].dtype);
		assert_int_equal(e->ndim, golden[i].ndim);
		assert_memory_equal(e->shape, golden[i].shape, 8 * e->ndim);
		assert_int_equal(e->off - st.entries[0].off, golden[i].off);
		assert_int_equal(e->nbytes, golden[i].nbytes);
		dcp_arena_finish(&a);
	}
}

static size_t slurp(const char *path, uint8_t *p, size_t cap)
{
	dcp_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, p, cap);

	assert_true(n > 0 && (size_t)n < cap);
	return (size_t)n;
}

/* What is behind the header may be cut; its entries are where they were. */
static void cut_headers_are_refused(void **state)
{
	uint8_t file[8192];
	size_t n = slurp(golden[0].file, file, sizeof(file)),
	       head = 8 + file[0] + 256u * file[1];
	struct dcp_source all = dcp_source_mem(file, n);
	struct dcp_safetensors whole;
	struct dcp_arena keep;

	(void)state;
	dcp_arena_init(&keep, MEMORY);
	assert_int_equal(dcp_safetensors_read(&all, &keep, &whole, NULL), 0);
	for (size_t i = 0; i <= n; i++) {
		struct dcp_safetensors st = { .n = 0 };
		uint8_t *exact = malloc(i ? i : 1);
		struct dcp_source src = dcp_source_mem(exact, i);
		struct dcp_err err = { 0 };
		struct dcp_arena a;

		memcpy(exact, file, i);
		dcp_arena_init(&a, MEMORY);
		assert_int_equal(dcp_safetensors_read(&src, &a, &st, &err), i < head ? -EBADMSG
									    : i < n  ? -ENODATA
										     : 0);
		assert_true(i == n || err.msg[0]);
		assert_int_equal(st.n, i < head ? 0 : whole.n);
		for (size_t k = 0; k < st.n; k++) {
			assert_string_equal(st.entries[k].name, whole.entries[k].name);
			assert_int_equal(st.entries[k].off, whole.entries[k].off);
		}
		dcp_arena_finish(&a);
		free(exact);
	}
	dcp_arena_finish(&keep);
}

static void any_memory_limit_is_an_answer(void **state)
{
	uint8_t file[8192];
	size_t n = slurp(golden[0].file, file, sizeof(file)), limit = 0;
	struct dcp_source src = dcp_source_mem(file, n);
	int code;

	(void)state;
	do {
		struct dcp_safetensors st;
		struct dcp_err err = { 0 };
		struct dcp_arena a;

		dcp_arena_init(&a, limit);
		code = dcp_safetensors_read(&src, &a, &st, &err);
		assert_true(code == 0 || (code == -ENOMEM && err.code == -ENOMEM));
		dcp_arena_finish(&a);
		limit += 16;
	} while (code && limit < 10000);
	assert_int_equal(code, 0);
}

static int failing_read(const struct dcp_source *src, uint64_t off, void *buf, size_t n)
{
	if (off >= src->base)
		return -EIO;
	memcpy(buf, (const char *)src->mem + off, n);
	return 0;
}

static void read_errors_are_passed_on(void **state)
{
	dcp_auto_buf struct dcp_buf file = DCP_BUF_INIT;

	(void)state;
	t_file(&file, "{}", 0);
	for (uint64_t from = 0; from <= 8; from += 8) {
		struct dcp_source src = {
			.read = failing_read, .size = file.n, .mem = file.p, .base = from
		};
		struct dcp_safetensors st;
		struct dcp_err err = { 0 };
		struct dcp_arena a;

		dcp_arena_init(&a, MEMORY);
		assert_int_equal(dcp_safetensors_read(&src, &a, &st, &err), -EIO);
		t_assert_says(&err, "header");
		assert_int_equal(err.off, from);
		dcp_arena_finish(&a);
	}
}

/* Quadratic checks would take minutes here. Entries are written in a scrambled order. */
static void many_entries_are_checked_fast(void **state)
{
	enum { N = 100000 };
	dcp_auto_buf struct dcp_buf header = DCP_BUF_INIT, file = DCP_BUF_INIT;
	struct dcp_safetensors st;
	struct dcp_err err = { 0 };
	struct dcp_source src;
	struct dcp_arena a;

	(void)state;
	for (unsigned i = 0; i < N; i++) {
		unsigned k = (unsigned)((uint64_t)i * 7919 % N);

		dcp_buf_printf(
			&header,
			"%c\"model.layers.%u.mlp.experts.%u.weight\":{\"dtype\":\"BF16\","
			"\"shape\":[2,2],\"data_offsets\":[%u,%u]}",
			i ? ',' : '{', k, k, 8 * k, 8 * k + 8);
	}
	dcp_buf_str(&header, "}");
	t_file(&file, header.p, 8ul * N);
	src = dcp_source_mem(file.p, file.n);
	dcp_arena_init(&a, MEMORY);
	if (dcp_safetensors_read(&src, &a, &st, &err))
		fail_msg("%s", err.msg);
	assert_int_equal(st.n, N);
	for (size_t i = 0; i < N; i++)
		assert_int_equal(st.entries[i].off - st.entries[0].off, 8 * i);
	dcp_arena_finish(&a);
}

/* clang-format off */
static const struct {
	const char *what, *name;
	enum dcp_dtype dtype;
	uint32_t ndim;
	uint64_t shape[2], nbytes;
	uint32_t align;
	const char *want; /* the JSON, without padding */
} written[] = {
	{ "matrix", "a.b", DCP_DTYPE_BF16, 2, { 2, 3 }, 12, 8,
	  "{\"__metadata__\":{\"format\":\"pt\"},\"a.b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]}}" },
	{ "scalar", "s", DCP_DTYPE_F64, 0, { 0 }, 8, 8,
	  "{\"__metadata__\":{\"format\":\"pt\"},\"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}" },
	{ "nothing in it", "e", DCP_DTYPE_F32, 2, { 0, 3 }, 0, 64,
	  "{\"__metadata__\":{\"format\":\"pt\"},\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]}}" },
	{ "F4 counts values", "q", DCP_DTYPE_F4, 2, { 3, 4 }, 12, 4096,
	  "{\"__metadata__\":{\"format\":\"pt\"},\"q\":{\"dtype\":\"F4\",\"shape\":[3,8],\"data_offsets\":[0,12]}}" },
	{ "F4 without dimensions is a pair", "q", DCP_DTYPE_F4, 0, { 0 }, 1, 512,
	  "{\"__metadata__\":{\"format\":\"pt\"},\"q\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}" },
	{ "F6 counts values", "q", DCP_DTYPE_F6_E3M2, 2, { 3, 2 }, 18, 8,
	  "{\"__metadata__\":{\"format\":\"pt\"},\"q\":{\"dtype\":\"F6_E3M2\",\"shape\":[3,8],\"data_offsets\":[0,18]}}" },
	{ "quotes and newlines in the name", "a\"\n", DCP_DTYPE_I8, 1, { 1 }, 1, 8,
	  "{\"__metadata__\":{\"format\":\"pt\"},\"a\\\"\\n\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}" },
};
/* clang-format on */

static void written_headers_are_read_back(void **state)
{
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;

	(void)state;
	for (size_t i = 0; i < DCP_LEN(written); i++) {
		size_t n = strlen(written[i].want), data;
		struct dcp_safetensors st;
		struct dcp_err err = { 0 };
		struct dcp_source src;
		struct dcp_arena a;

		t_case(written[i].what);
		dcp_arena_init(&a, MEMORY);
		dcp_buf_reset(&out);
		assert_int_equal(dcp_safetensors_header(&out, written[i].name, written[i].dtype,
							written[i].ndim, written[i].shape,
							written[i].nbytes, written[i].align,
							NULL),
				 0);
		data = out.n;
		assert_int_equal(data % written[i].align, 0);
		assert_true(data - 8 - n < written[i].align);
		assert_memory_equal(out.p + 8, written[i].want, n);
		memset(dcp_buf_grow(&out, written[i].nbytes), 7, written[i].nbytes);
		src = dcp_source_mem(out.p, out.n);
		if (dcp_safetensors_read(&src, &a, &st, &err))
			fail_msg("%s", err.msg);
		assert_int_equal(st.n, 1);
		assert_string_equal(st.entries[0].name, written[i].name);
		assert_int_equal(st.entries[0].dtype, written[i].dtype);
		assert_int_equal(st.entries[0].off, data);
		assert_int_equal(st.entries[0].nbytes, written[i].nbytes);
		if (written[i].ndim)
			assert_memory_equal(st.entries[0].shape, written[i].shape,
					    8 * written[i].ndim);
		assert_string_equal(dcp_safetensors_meta(&st, "format"), "pt");
		dcp_arena_finish(&a);
	}
}

static void unnameable_tensors_are_refused(void **state)
{
	static const char *const names[] = { "__metadata__", "a\xff", "\xed\xa0\x80", "\xc0",
					     "\xe6\x97" };
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
	uint64_t one = 1;

	(void)state;
	assert_int_equal(
		dcp_safetensors_header(&out, "a", DCP_DTYPE_OTHER, 1, &one, 1, 8, NULL),
		-ENOTSUP);
	assert_int_equal(
		dcp_safetensors_header(&out, "a", DCP_DTYPE_C128, 1, &one, 16, 8, NULL),
		-ENOTSUP);
	for (size_t i = 0; i < DCP_LEN(names); i++)
		assert_int_equal(dcp_safetensors_header(&out, names[i], DCP_DTYPE_U8, 1, &one,
							1, 8, NULL),
				 -ENOTSUP);
	assert_int_equal(out.n, 0);
	assert_true(dcp_safetensors_can_name("a NUL \xc0\x80, \xc3\xbc and \xf0\x9f\xa7\xa0"));
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_files_are_refused),
		cmocka_unit_test(every_bad_file_has_a_row),
		cmocka_unit_test(every_type_of_entry_is_read),
		cmocka_unit_test(files_without_tensors_are_read),
		cmocka_unit_test(entries_are_ordered_by_offset),
		cmocka_unit_test(golden_files_are_read),
		cmocka_unit_test(cut_headers_are_refused),
		cmocka_unit_test(any_memory_limit_is_an_answer),
		cmocka_unit_test(read_errors_are_passed_on),
		cmocka_unit_test(many_entries_are_checked_fast),
		cmocka_unit_test(written_headers_are_read_back),
		cmocka_unit_test(unnameable_tensors_are_refused),
	};
	return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
