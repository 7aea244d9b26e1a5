/* SPDX-License-Identifier: Apache-2.0 */
/* writer: a file of a checkpoint that is to be written, as runs of bytes: tensors, text, fill. */
#include <errno.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/sort.h"
#include "core/write/write.h"

uint64_t dcp_write_part_bytes(const struct dcp_write_tensor *t,
			      const struct dcp_write_part *part)
{
	uint64_t n = t->itemsize;

	for (uint32_t d = 0; d < part->ndim; d++)
		n *= part->shape[d];
	return n;
}

bool dcp_write_is_whole(const struct dcp_write_tensor *t, const struct dcp_write_part *part)
{
	return part->lo && part->ndim == t->ndim &&
	       !memcmp(part->shape, t->shape, t->ndim * sizeof(*t->shape));
}

uint32_t dcp_write_sets(const struct dcp_write_set *set)
{
	return set->arrays ? set->ranks : 1;
}

size_t dcp_write_part_of(const struct dcp_write_set *set, size_t tensor, uint32_t rank)
{
	const struct dcp_write_tensor *t = &set->tensors[tensor];
	size_t i;

	if (!set->arrays)
		return 0;
	DCP_BISECT(i, 0, t->nparts, t->parts[i].rank < rank);
	return i < t->nparts && t->parts[i].rank == rank ? i : SIZE_MAX;
}

const char *dcp_write_key(const struct dcp_write_set *set, size_t item)
{
	return item < set->ntensors ? set->tensors[item].key
				    : set->objects[item - set->ntensors].key;
}

/* Count @n bytes if nothing failed yet. Places are signed 64 bits in every file system. */
static bool go_on(struct dcp_writer *w, uint64_t n)
{
	if (w->rc == 0 && (dcp_ckd_add(&w->at, w->at, n) || w->at > INT64_MAX))
		w->rc = -EFBIG;
	return w->rc == 0;
}

void dcp_writer_file(struct dcp_writer *w, const char *name, bool last)
{
	w->at = 0;
	if (w->rc == 0)
		w->rc = w->sink->file(w->sink->ctx, name, last);
}

void dcp_writer_bytes(struct dcp_writer *w, const void *p, size_t n)
{
	if (n && go_on(w, n))
		w->rc = w->sink->bytes(w->sink->ctx, p, n);
}

void dcp_writer_fill(struct dcp_writer *w, char c, size_t n)
{
	char same[4096];

	memset(same, c, DCP_MIN(n, sizeof(same)));
	for (; n; n -= DCP_MIN(n, sizeof(same)))
		dcp_writer_bytes(w, same, DCP_MIN(n, sizeof(same)));
}

static size_t add_run(struct dcp_writer *w, const struct dcp_write_run *run)
{
	if (go_on(w, run->length))
		w->rc = w->sink->data(w->sink->ctx, run);
	return w->runs++;
}

size_t dcp_writer_slice(struct dcp_writer *w, size_t tensor, size_t part, uint64_t off,
			uint64_t n)
{
	return add_run(
		w, &(struct dcp_write_run){
			   .tensor = tensor, .part = part, .off = off, .n = n, .length = n });
}

size_t dcp_writer_part(struct dcp_writer *w, size_t tensor, size_t part)
{
	const struct dcp_write_tensor *t = &w->set->tensors[tensor];

	return dcp_writer_slice(w, tensor, part, 0, dcp_write_part_bytes(t, &t->parts[part]));
}

static size_t write_extra(struct dcp_writer *w, size_t extra)
{
	return dcp_writer_slice(w, w->set->ntensors + extra, 0, 0,
				w->set->extras[extra].nbytes);
}

int dcp_writer_measure(const struct dcp_writer *w, size_t tensor, size_t part, uint64_t off,
		       uint64_t n, struct dcp_buf *lengths, uint64_t *total,
		       struct dcp_err *err)
{
	*total = 0;
	if (!w->set->high)
		return -ENOTSUP;
	for (uint64_t done = 0, one; done < n; done += one) {
		uint64_t length;
		int rc;

		one = DCP_MIN(n - done, (uint64_t)DCP_WRITE_TEXT);
		rc = w->set->high(w->set->ctx, tensor, part, off + done, (size_t)one, &length,
				  err);
		if (rc < 0)
			return rc;
		length += one;
		*total += length;
		dcp_buf_add(lengths, &length, sizeof(length));
	}
	return dcp_buf_error(lengths);
}

void dcp_writer_text(struct dcp_writer *w, size_t tensor, size_t part, uint64_t off, uint64_t n,
		     const struct dcp_buf *lengths)
{
	const uint64_t *length = DCP_ITEMS(*lengths, uint64_t);

	for (uint64_t done = 0, one; done < n; done += one) {
		one = DCP_MIN(n - done, (uint64_t)DCP_WRITE_TEXT);
		add_run(w, &(struct dcp_write_run){ .tensor = tensor,
						    .part = part,
						    .off = off + done,
						    .n = one,
						    .length = *length++,
						    .text = true });
	}
}

void dcp_writer_crc32(struct dcp_writer *w, uint32_t crc, size_t run)
{
	if (go_on(w, 4))
		w->rc = w->sink->crc32(w->sink->ctx, crc, run);
}

void dcp_writer_extras(struct dcp_writer *w)
{
	for (size_t i = 0; i < w->set->nextras; i++) {
		dcp_writer_file(w, w->set->extras[i].name, false);
		write_extra(w, i);
	}
}

int dcp_write_plan(const struct dcp_write_format *f, const struct dcp_write_set *set,
		   const struct dcp_write_opts *opts, const struct dcp_write_sink *sink,
		   struct dcp_err *err)
{
	struct dcp_writer w = { .sink = sink, .set = set };
	int rc;

	if (opts->name && set->arrays)
		return dcp_fail(
			err, -EINVAL,
			"%s is the name of a file, and %u ranks have a directory of them",
			opts->name, set->ranks);
	rc = f->plan(set, opts, &w, err);
	return dcp_err_say(err, rc < 0 ? rc : w.rc);
}
