/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/dcp/dcp_int.h"

#include <errno.h>

#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/origin/archive/inflate.h"

/* SLACK: bytes forgiven to small files. RATIO: decoded bytes that count as much as a stored
 * one. */
enum { SLACK = 1 << 20, RATIO = 64 };

void dcp_titem_files_init(struct dcp_titem_files *f, const struct dcp_dir *dir)
{
	*f = (struct dcp_titem_files){ .dir = dir };
}

static void dcp_titem_files_finish(struct dcp_titem_files *f)
{
	for (int i = 0; i < DCP_TITEM_SLOTS; i++)
		if (f->slot[i].number)
			dcp_input_close(&f->slot[i].input);
	dcp_buf_finish(&f->claimed);
	*f = (struct dcp_titem_files){ 0 };
}

static int get_file(struct dcp_titem_files *f, uint32_t number, const char *name,
		    struct dcp_source *out, struct dcp_err *err)
{
	int i = (int)(number % DCP_TITEM_SLOTS), rc;
	struct dcp_input input;

	if (f->slot[i].number != 1 + (uint64_t)number) {
		if (!f->dir)
			return dcp_fail(err, -ENOENT, "%s: no directory to look in", name);
		rc = dcp_dir_input(f->dir, name, &input, err);
		if (rc < 0)
			return rc;
		if (f->slot[i].number)
			dcp_input_close(&f->slot[i].input);
		f->slot[i].number = 1 + (uint64_t)number;
		f->slot[i].input = input;
	}
	*out = f->slot[i].input.src;
	return 0;
}

/*
 * Items of one file do not overlap, so together they are no longer than it; a few are looked at
 * twice. Metadata where a million keys share one item would keep us busy for hours.
 */
static int claim(struct dcp_titem_files *f, uint32_t number, const char *name, uint64_t nbytes,
		 uint64_t size, struct dcp_err *err)
{
	uint64_t *claimed = dcp_buf_at(&f->claimed, number, sizeof(*claimed));

	if (!claimed)
		return dcp_fail(err, -ENOMEM, "out of memory");
	if (*claimed / 4 > size + SLACK)
		return dcp_fail(
			err, -E2BIG,
			"%s: its bytes are claimed by too many keys, more than four times "
			"over",
			name);
	*claimed += nbytes;
	return 0;
}

int dcp_titem_open(struct dcp_titem_files *f, uint32_t number, const char *name, uint64_t off,
		   uint64_t nbytes, enum dcp_filter filter, uint64_t limit,
		   struct dcp_titem *out, struct dcp_err *err)
{
	int rc;

	*out = (struct dcp_titem){ 0 };
	rc = get_file(f, number, name, &out->file, err);
	if (rc < 0)
		return rc;
	if (!dcp_range_ok(off, nbytes, out->file.size))
		return dcp_fail_at(
			err, -EBADMSG, off,
			"%s: item of %llu bytes at %llu ends past the end of the file, "
			"which has %llu",
			name, (unsigned long long)nbytes, (unsigned long long)off,
			(unsigned long long)out->file.size);
	rc = claim(f, number, name, nbytes, out->file.size, err);
	if (rc < 0)
		return rc;
	out->window = dcp_source_window(&out->file, off, nbytes);
	out->src = out->window;
	if (filter == DCP_FILTER_NONE)
		return 0;
	rc = dcp_inflate_zstd(&out->window, &out->decoded, limit, err);
	DCP_ITEMS(f->claimed, uint64_t)[number] += (rc < 0 ? limit : out->decoded.n) / RATIO;
	if (rc < 0)
		return dcp_err_where(err, rc, "%s at byte %llu", name, (unsigned long long)off);
	out->src = dcp_source_mem(out->decoded.p, out->decoded.n);
	return 0;
}

void dcp_titem_finish(struct dcp_titem *item)
{
	dcp_buf_finish(&item->decoded);
}

/*
 * emitter: what emits the keys of a checkpoint: numbers of files, and its end.
 */

int dcp_tdcp_file_number(struct dcp_tdcp_emitter *w, uint32_t file, uint32_t *number)
{
	uint32_t *known = dcp_buf_at(&w->emitted, file, sizeof(*known));
	int rc = known ? 0 : -ENOMEM;

	if (known && *known)
		*number = *known - 1;
	else if (known)
		rc = dcp_emit_file(w->sink, dcp_intern_text(&w->m->files, file), number);
	if (rc == 0)
		*known = *number + 1;
	return rc;
}

void dcp_tdcp_emitter_finish(struct dcp_tdcp_emitter *w)
{
	dcp_titem_files_finish(&w->files);
	dcp_buf_finish(&w->emitted);
	dcp_buf_finish(&w->path_text);
	dcp_buf_finish(&w->path_ptrs);
	dcp_buf_finish(&w->containers);
	dcp_buf_finish(&w->dims);
	dcp_buf_finish(&w->places);
	dcp_join_finish(&w->join);
	dcp_buf_finish(&w->blocks);
}
