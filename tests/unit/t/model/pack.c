/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/model/pack.h"

#include <archive.h>
#include <archive_entry.h>

#include "tests/unit/t.h"

static la_ssize_t take_bytes(struct archive *a, void *ctx, const void *p, size_t n)
{
	(void)a;
	dcp_buf_add(ctx, p, n);
	return (la_ssize_t)n;
}

void t_pack(struct dcp_buf *out, enum dcp_codec codec, const void *p, size_t n)
{
	static const int filters[DCP_CODEC_COUNT] = {
		[DCP_CODEC_NONE] = ARCHIVE_FILTER_NONE,
		[DCP_CODEC_GZIP] = ARCHIVE_FILTER_GZIP,
		[DCP_CODEC_BZIP2] = ARCHIVE_FILTER_BZIP2,
		[DCP_CODEC_XZ] = ARCHIVE_FILTER_XZ,
		[DCP_CODEC_LZMA] = ARCHIVE_FILTER_LZMA,
		[DCP_CODEC_ZSTD] = ARCHIVE_FILTER_ZSTD,
		[DCP_CODEC_LZ4] = ARCHIVE_FILTER_LZ4,
	};
	struct archive *a = archive_write_new();
	struct archive_entry *e = archive_entry_new();

	archive_write_set_format_raw(a);
	archive_write_set_bytes_in_last_block(a, 1);
	assert_int_equal(archive_write_add_filter(a, filters[codec]), ARCHIVE_OK);
	if (codec == DCP_CODEC_GZIP)
		archive_write_set_filter_option(a, "gzip", "timestamp", NULL);
	assert_int_equal(archive_write_open(a, out, NULL, take_bytes, NULL), ARCHIVE_OK);
	archive_entry_set_filetype(e, AE_IFREG);
	archive_entry_set_pathname(e, "data");
	assert_int_equal(archive_write_header(a, e), ARCHIVE_OK);
	if (n)
		assert_int_equal(archive_write_data(a, p, n), n);
	assert_int_equal(archive_write_close(a), ARCHIVE_OK);
	archive_entry_free(e);
	archive_write_free(a);
	assert_int_equal(dcp_buf_error(out), 0);
}
