/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/write.h"

#include "core/base/bytes.h"
#include "core/base/hash.h"
#include "tests/unit/t.h"

unsigned char t_write_byte(size_t tensor, size_t part, uint64_t i)
{
	return (unsigned char)(1 + tensor * 31 + part * 7 + i);
}

static struct dcp_buf *bytes_of_last(struct t_write *w)
{
	assert_true(w->nfiles > 0);
	return &w->file[w->nfiles - 1].bytes;
}

static int on_file(void *ctx, const char *name, bool last)
{
	struct t_write *w = ctx;

	assert_true(w->nfiles < T_WRITE_MAX);
	snprintf(w->file[w->nfiles].name, sizeof(w->file[0].name), "%s", name);
	w->file[w->nfiles++].last = last;
	return 0;
}

static int on_bytes(void *ctx, const void *p, size_t n)
{
	return dcp_buf_add(bytes_of_last(ctx), p, n);
}

static int on_data(void *ctx, const struct dcp_write_run *run)
{
	struct t_write *w = ctx;
	uint64_t n = run->length;
	unsigned char *p = dcp_buf_grow(bytes_of_last(w), n), *end = p;

	if (!p)
		return -ENOMEM;
	for (uint64_t i = run->off; i < run->off + run->n; i++) {
		unsigned char byte = t_write_byte(run->tensor, run->part, i);

		if (run->text && byte >= 0x80) {
			*end++ = 0xc0 | byte >> 6;
			byte = 0x80 | (byte & 0x3f);
		}
		*end++ = byte;
	}
	assert_int_equal(end - p, n);
	assert_true(w->nruns < DCP_LEN(w->crc));
	w->length[w->nruns] = n;
	w->crc[w->nruns++] = dcp_crc32(0, n ? (const void *)p : "", n);
	return 0;
}

int t_write_high(void *ctx, size_t tensor, size_t part, uint64_t off, size_t n, uint64_t *count,
		 struct dcp_err *err)
{
	(void)ctx, (void)err;
	*count = 0;
	for (uint64_t i = off; i < off + n; i++)
		*count += t_write_byte(tensor, part, i) >= 0x80;
	return 0;
}

static int on_crc32(void *ctx, uint32_t crc, size_t run)
{
	struct t_write *w = ctx;

	assert_true(w->ncrcs < DCP_LEN(w->patch));
	w->patch[w->ncrcs].file = w->nfiles - 1;
	w->patch[w->ncrcs].run = run;
	w->patch[w->ncrcs].before = crc;
	w->patch[w->ncrcs++].off = bytes_of_last(w)->n;
	return on_bytes(ctx, "\0\0\0", 4);
}

int t_write_run(struct t_write *w, const struct dcp_write_format *f,
		const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		struct dcp_err *err)
{
	const struct dcp_write_sink sink = { on_file, on_bytes, on_data, on_crc32, w };
	int rc;

	memset(w, 0, sizeof(*w));
	w->set = set;
	rc = dcp_write_plan(f, set, opts, &sink, err);
	for (size_t i = 0; i < w->ncrcs; i++)
		dcp_store_le32(w->file[w->patch[i].file].bytes.p + w->patch[i].off,
			       dcp_crc32_join(w->patch[i].before, w->crc[w->patch[i].run],
					      w->length[w->patch[i].run]));
	return rc;
}

void t_write_finish(struct t_write *w)
{
	for (size_t i = 0; i < w->nfiles; i++)
		dcp_buf_finish(&w->file[i].bytes);
}

const struct t_written *t_write_file(const struct t_write *w, const char *name)
{
	for (size_t i = 0; i < w->nfiles; i++)
		if (strcmp(w->file[i].name, name) == 0)
			return &w->file[i];
	fail_msg("no file %s", name);
	return NULL;
}
