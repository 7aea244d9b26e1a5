/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames are written here block by block: raw blocks and runs need no compressor.
 *
 * covers: archive
 */
#include "tests/unit/t.h"

#include <unistd.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/origin/archive/archive.h"
#include "core/origin/origin.h"
#include "tests/unit/t/parse/source.h"

/* RFC 8878: magic, descriptor without content size or checksum, window of 1 MiB. */
static void frame(struct dcp_buf *b)
{
	dcp_buf_add(b, "\x28\xb5\x2f\xfd\x00\x50", 6);
}

static void block(struct dcp_buf *b, unsigned type, bool last, size_t size, const void *p,
		  size_t n)
{
	uint32_t head = (uint32_t)last | type << 1 | (uint32_t)size << 3;

	dcp_buf_add(b, &head, 3);
	dcp_buf_add(b, p, n);
}

static void raw_frame(struct dcp_buf *b, const char *text)
{
	frame(b);
	block(b, 0, true, strlen(text), text, strlen(text));
}

static void empty_frame(struct dcp_buf *b)
{
	frame(b);
	block(b, 0, true, 0, "", 0);
}

/* 128 KiB of zeros in four bytes. */
static void bomb(struct dcp_buf *b, unsigned blocks)
{
	frame(b);
	for (unsigned i = 0; i < blocks; i++)
		block(b, 1, i + 1 == blocks, 1 << 17, "", 1);
}

static int decode(const struct dcp_buf *b, struct dcp_buf *out, uint64_t limit,
		  struct dcp_err *err)
{
	struct dcp_source src = dcp_source_mem(b->p, b->n);

	return dcp_inflate_zstd(&src, out, limit, err);
}

static void every_frame_is_inflated(void **state)
{
	static const struct {
		const char *what, *frames, *want;
	} cases[] = {
		{ "one frame", "a", "alpha" },
		{ "two frames in a row", "ab", "alphabeta" },
		{ "an empty last frame, as pyzstd ends", "abe", "alphabeta" },
		{ "an empty frame between", "aeb", "alphabeta" },
		{ "nothing but an empty frame", "e", "" },
		{ "a skippable frame in front", "sa", "alpha" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT, out = DCP_BUF_INIT;
		struct dcp_err err = { 0 };

		t_case(cases[i].what);
		for (const char *f = cases[i].frames; *f; f++) {
			if (*f == 'a')
				raw_frame(&b, "alpha");
			else if (*f == 'b')
				raw_frame(&b, "beta");
			else if (*f == 'e')
				empty_frame(&b);
			else
				dcp_buf_add(&b, "\x50\x2a\x4d\x18\x02\0\0\0hi", 10);
		}
		dcp_buf_str(&out, "kept ");
		if (decode(&b, &out, 1 << 20, &err) != 0)
			fail_msg("%s", err.msg);
		assert_int_equal(out.n, 5 + strlen(cases[i].want));
		assert_string_equal(out.p + 5, cases[i].want);
	}
}

static void bad_streams_are_refused(void **state)
{
	enum { CUT, CUT_LATE, GARBAGE_BEHIND, NOT_ZSTD, PLAIN_ZIP, EMPTY, BAD_BLOCK, TOO_LONG };
	static const struct {
		const char *what;
		int how, code;
		const char *says;
	} cases[] = {
		{ "cut in the middle", CUT, -EBADMSG, "damaged zstd stream" },
		{ "cut after megabytes", CUT_LATE, -EBADMSG, "damaged zstd stream" },
		{ "bytes behind the last frame", GARBAGE_BEHIND, -EBADMSG, "damaged zstd" },
		{ "something else", NOT_ZSTD, -EBADMSG, "expected 28 b5 2f fd" },
		{ "a stored torch.save stream", PLAIN_ZIP, -EBADMSG,
		  "starts with 50 4b 03 04" },
		{ "no bytes", EMPTY, -EBADMSG, "0 bytes are not a zstd stream" },
		{ "a reserved block type", BAD_BLOCK, -EBADMSG, "damaged zstd stream" },
		{ "a bomb", TOO_LONG, -E2BIG, "more than 1048576 bytes" },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT, out = DCP_BUF_INIT;
		struct dcp_err err = { 0 };

		t_case(cases[i].what);
		raw_frame(&b, "alpha");
		switch (cases[i].how) {
		case CUT:
			raw_frame(&b, "beta");
			b.n -= 2;
			break;
		case CUT_LATE:
			dcp_buf_reset(&b);
			bomb(&b, 7);
			b.n--;
			break;
		case GARBAGE_BEHIND:
			dcp_buf_str(&b, "what is this");
			break;
		case NOT_ZSTD:
			dcp_buf_reset(&b);
			dcp_buf_str(&b, "alpha beta");
			break;
		case PLAIN_ZIP:
			dcp_buf_reset(&b);
			dcp_buf_str(&b, "PK\3\4 and so on");
			break;
		case EMPTY:
			dcp_buf_reset(&b);
			break;
		case BAD_BLOCK:
			frame(&b);
			block(&b, 3, true, 4, "beta", 4);
			break;
		default:
			bomb(&b, 9);
			break;
		}
		assert_int_equal(decode(&b, &out, 1 << 20, &err), cases[i].code);
		assert_int_equal(err.code, cases[i].code);
		t_assert_says(&err, cases[i].says);
	}
}

/* Every prefix of a stream that ends inside a frame is refused. */
static void every_cut_is_refused(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	size_t n, boundary;

	(void)state;
	raw_frame(&b, "alpha");
	boundary = b.n;
	raw_frame(&b, "beta");
	n = b.n;
	for (b.n = 0; b.n < n; b.n++) {
		dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;

		assert_int_equal(decode(&b, &out, 100, NULL), b.n == boundary ? 0 : -EBADMSG);
	}
}

static void limit_is_inclusive(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT, out = DCP_BUF_INIT;

	(void)state;
	bomb(&b, 8);
	assert_int_equal(decode(&b, &out, 1 << 20, NULL), 0);
	assert_int_equal(out.n, 1 << 20);
	assert_int_equal(decode(&b, &out, (1 << 20) - 1, NULL), -E2BIG);
}

/* "alpha alpha alpha\n" and what can happen to it: zlib's own bytes, without its frame. */
static void bare_deflate_is_inflated(void **state)
{
	static const char packed[] = "\x4b\xcc\x29\xc8\x48\x54\x48\x44\x90\x5c\x00";
	static const char text[] = "alpha alpha alpha\n";
	char path[] = "/tmp/dcpfs-inflate-XXXXXX", got[32] = { 0 };
	dcp_auto_fd int fd = mkstemp(path);
	struct dcp_err err = { 0 };
	uint64_t n = 99;
	size_t some = 99;

	(void)state;
	assert_true(fd >= 0);
	unlink(path);
	for (size_t cut = 0; cut <= sizeof(packed); cut++) {
		struct dcp_source src = dcp_source_mem(packed, cut);
		int want = cut == sizeof(packed) - 1 ? 0 : -EBADMSG;

		assert_int_equal(ftruncate(fd, 0) | (int)lseek(fd, 0, SEEK_SET), 0);
		assert_int_equal(
			dcp_inflate_fd(&src, DCP_CODEC_DEFLATE, fd, 100, NULL, &n, &err), want);
		if (want)
			t_assert_says(&err, "deflate");
		else
			assert_int_equal(n, strlen(text));
		assert_true(want || pread(fd, got, sizeof(got), 0) == (ssize_t)strlen(text));
		assert_true(want || memcmp(got, text, strlen(text)) == 0);
		if (want)
			continue;
		assert_int_equal(
			dcp_inflate_fd(&src, DCP_CODEC_DEFLATE, fd, 17, NULL, &n, NULL),
			-E2BIG);
		assert_int_equal(dcp_inflate_head(&src, DCP_CODEC_DEFLATE, got, 7, &some, &err),
				 0);
		assert_int_equal(some, 7);
		assert_memory_equal(got, "alpha a", 7);
		assert_int_equal(
			dcp_inflate_head(&src, DCP_CODEC_DEFLATE, got, 32, &some, &err), 0);
		assert_int_equal(some, strlen(text));
	}
}

static void frames_are_inflated_into_files(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	char path[] = "/tmp/dcpfs-inflate-XXXXXX", got[16] = { 0 };
	dcp_auto_fd int fd = mkstemp(path);
	struct dcp_source src;
	struct dcp_err err = { 0 };
	uint64_t n = 99;

	(void)state;
	assert_true(fd >= 0);
	unlink(path);
	raw_frame(&b, "alpha");
	raw_frame(&b, "beta");
	src = dcp_source_mem(b.p, b.n);
	assert_int_equal(dcp_inflate_fd(&src, DCP_CODEC_ZSTD, fd, 100, NULL, &n, &err), 0);
	assert_int_equal(n, 9);
	assert_int_equal(pread(fd, got, sizeof(got), 0), 9);
	assert_string_equal(got, "alphabeta");
	assert_int_equal(dcp_inflate_fd(&src, DCP_CODEC_ZSTD, fd, 6, NULL, &n, &err), -E2BIG);
	assert_true(n <= 6);
	assert_int_equal(dcp_inflate_fd(&src, DCP_CODEC_ZSTD, -1, 100, NULL, &n, &err), -EBADF);
	t_assert_says(&err, "writing decoded bytes");
}

static void failing_reads_are_passed_on(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT, out = DCP_BUF_INIT;
	struct dcp_source mem;
	struct t_source faulty;
	struct dcp_err err = { 0 };

	(void)state;
	raw_frame(&b, "alpha");
	mem = dcp_source_mem(b.p, b.n);
	for (unsigned at = 1; at <= 2; at++) {
		t_source_init(&faulty, &mem);
		faulty.fail_at = at;
		assert_int_equal(dcp_inflate_zstd(&faulty.base, &out, 100, &err), -EIO);
		t_assert_says(&err, "cannot be read");
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_frame_is_inflated),
		cmocka_unit_test(bad_streams_are_refused),
		cmocka_unit_test(every_cut_is_refused),
		cmocka_unit_test(limit_is_inclusive),
		cmocka_unit_test(bare_deflate_is_inflated),
		cmocka_unit_test(frames_are_inflated_into_files),
		cmocka_unit_test(failing_reads_are_passed_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
