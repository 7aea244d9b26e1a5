/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole files of every codec: what comes out, and that damage is noticed.
 * covers: inflate
 */
#include "tests/unit/t.h"

#include <sys/mman.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/origin/archive/archive.h"
#include "core/origin/origin.h"
#include "tests/unit/t/model/pack.h"

static const enum dcp_codec all[] = { DCP_CODEC_GZIP, DCP_CODEC_BZIP2, DCP_CODEC_XZ,
				      DCP_CODEC_LZMA, DCP_CODEC_ZSTD,  DCP_CODEC_LZ4 };

/* Text that compresses, but not to nothing. */
static char *content(size_t n)
{
	char *p = malloc(n + 1);
	uint32_t x = 1;

	assert_non_null(p);
	for (size_t i = 0; i < n; i++) {
		x = x * 1664525u + 1013904223u;
		p[i] = (char)(x >> 28 < 12 && i ? p[i - 1] : (char)(x >> 24));
	}
	return p;
}

/* 0 and what came out in @got (freed by the caller), or the code. */
static int decode(const struct dcp_buf *b, enum dcp_codec codec, uint64_t limit, char **got,
		  uint64_t *n, struct dcp_err *err)
{
	dcp_auto_fd int fd = memfd_create("test", MFD_CLOEXEC);
	struct dcp_source src = dcp_source_mem(b->p, b->n);
	int rc = dcp_inflate_fd(&src, codec, fd, limit, NULL, n, err);

	*got = NULL;
	if (rc < 0)
		return rc;
	*got = malloc(*n + 1);
	assert_int_equal(pread(fd, *got, *n + 1, 0), *n);
	return 0;
}

static void every_codec_is_decoded(void **state)
{
	static const size_t sizes[] = { 0, 1, 100, 65536, 1 << 20 };

	(void)state;
	for (size_t c = 0; c < DCP_LEN(all); c++)
		for (size_t i = 0; i < DCP_LEN(sizes); i++) {
			dcp_auto_free char *want = content(sizes[i]), *got = NULL;
			dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
			struct dcp_err err = { 0 };
			struct dcp_source src;
			enum dcp_codec codec;
			uint64_t n = 99;

			if (sizes[i] == 0 && all[c] == DCP_CODEC_LZ4)
				continue; /* its writer cannot */
			print_message("           %s, %zu bytes\n", dcp_codec_name(all[c]),
				      sizes[i]);
			t_pack(&b, all[c], want, sizes[i]);
			src = dcp_source_mem(b.p, b.n);
			assert_int_equal(dcp_inflate_codec(&src, &codec), 0);
			assert_int_equal(codec, all[c]);
			if (decode(&b, all[c], sizes[i], &got, &n, &err) < 0)
				fail_msg("%s", err.msg);
			assert_int_equal(n, sizes[i]);
			assert_memory_equal(got, want, n);
			if (sizes[i] == 0)
				continue;
			dcp_free_ptr(&got);
			assert_int_equal(decode(&b, all[c], n - 1, &got, &n, &err), -E2BIG);
			t_assert_says(&err, "decodes to more than");
		}
}

static void cut_and_flipped_streams_are_refused(void **state)
{
	enum { N = 600 };
	dcp_auto_free char *want = content(N);

	(void)state;
	for (size_t c = 0; c < DCP_LEN(all); c++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		size_t whole, harmless = 0;

		t_case(dcp_codec_name(all[c]));
		t_pack(&b, all[c], want, N);
		whole = b.n;
		for (b.n = 0; b.n < whole; b.n += T_SLOW) {
			dcp_auto_free char *got = NULL;
			struct dcp_err err = { 0 };
			uint64_t n;
			int rc = decode(&b, all[c], 1 << 20, &got, &n, &err);

			/* what ends a stream may be cut when all that it says is known */
			if (rc == 0 && (n != N || memcmp(got, want, N) != 0))
				fail_msg("cut at %zu of %zu: %llu bytes", b.n, whole,
					 (unsigned long long)n);
			if (rc < 0 && (rc != -EBADMSG || !err.msg[0]))
				fail_msg("cut at %zu: %d %s", b.n, rc, err.msg);
		}
		b.n = whole;
		for (size_t at = 0; at < whole; at += T_SLOW) {
			dcp_auto_free char *got = NULL;
			struct dcp_err err = { 0 };
			uint64_t n;
			int rc;

			b.p[at] ^= 0x10;
			rc = decode(&b, all[c], 1 << 20, &got, &n, &err);
			b.p[at] ^= 0x10;
			/* those two have no checksum here: any bytes may come out */
			if (rc == 0 && all[c] != DCP_CODEC_LZMA && all[c] != DCP_CODEC_ZSTD &&
			    (n != N || memcmp(got, want, N) != 0))
				fail_msg("byte %zu of %zu: other bytes came out", at, whole);
			harmless += rc == 0;
		}
		print_message("           %zu bytes, %zu flips changed nothing\n", whole,
			      harmless);
	}
}

static void members_behind_gzip_are_refused(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_err err = { 0 };
	char *got;
	uint64_t n;

	(void)state;
	t_pack(&b, DCP_CODEC_GZIP, "alpha", 5);
	t_pack(&b, DCP_CODEC_GZIP, "beta", 4);
	assert_int_equal(decode(&b, DCP_CODEC_GZIP, 100, &got, &n, &err), -EBADMSG);
	t_assert_says(&err, "its end says 4 (of several members in a row only one is read)");
}

static void other_files_have_no_codec(void **state)
{
	static const char *const texts[] = { "", "P", "PK\3\4 and more", "\x80\x02}q\0.",
					     "BZ" };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(texts); i++) {
		struct dcp_source src = dcp_source_mem(texts[i], strlen(texts[i]));
		enum dcp_codec codec = DCP_CODEC_XZ;

		assert_int_equal(dcp_inflate_codec(&src, &codec), 0);
		assert_int_equal(codec, DCP_CODEC_NONE);
	}
}

static void note(void *ctx, uint64_t taken)
{
	uint64_t *last = ctx;

	assert_true(taken > *last);
	*last = taken;
}

static void decoding_reports_progress(void **state)
{
	dcp_auto_free char *want = content(1 << 20);
	dcp_auto_fd int fd = memfd_create("test", MFD_CLOEXEC);
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	uint64_t last = 0, n;
	struct dcp_inflate_watch watch = { note, &last };
	struct dcp_source src;

	(void)state;
	t_pack(&b, DCP_CODEC_XZ, want, 1 << 20);
	src = dcp_source_mem(b.p, b.n);
	assert_int_equal(dcp_inflate_fd(&src, DCP_CODEC_XZ, fd, 1 << 20, &watch, &n, NULL), 0);
	assert_int_equal(last, b.n);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_codec_is_decoded),
		cmocka_unit_test(cut_and_flipped_streams_are_refused),
		cmocka_unit_test(members_behind_gzip_are_refused),
		cmocka_unit_test(other_files_have_no_codec),
		cmocka_unit_test(decoding_reports_progress),
	};

	return cmocka_run_group_tests_name("inflate_codecs", tests, NULL, NULL);
}
