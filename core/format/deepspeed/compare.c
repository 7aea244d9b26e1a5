/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Are the values that ranks hold equal? What a framework says is the mean over its ranks
 * (parameter_to_average_patterns: norms, biases) mostly is the same on all of them. Only of
 * what is small enough to be read while the index is made.
 */
#include <errno.h>
#include <string.h>

#include "core/format/deepspeed/emit.h"

enum {
	CHUNK = 16 << 10,
	MAX_TENSOR = 16 << 20, /* bytes of a tensor */
	MAX_ALL = 512 << 20,   /* of all tensors together */
};

bool dcp_ds_may_compare(struct dcp_ds *ds, uint64_t bytes, size_t ranks)
{
	uint64_t all = bytes * ranks;

	if (bytes > MAX_TENSOR || all > MAX_ALL - ds->compared)
		return false;
	ds->compared += all;
	return true;
}

/* The elements of one rank, read in order. */
struct stream {
	const struct dcp_ds *ds;
	const struct dcp_ds_run *run;
	size_t n;
	uint64_t at; /* bytes of the first run that were read */
	struct dcp_input in;
	bool open;
};

static void close_stream(struct stream *s)
{
	if (s->open)
		dcp_input_close(&s->in);
	s->open = false;
}

/* Bytes that can be read at once, at most @most; 0: there are no more, or no file. */
static size_t ready(struct stream *s, uint32_t size, size_t most)
{
	const char *name;

	while (s->n && s->at == s->run->n * size) {
		close_stream(s);
		s->run++;
		s->n--;
		s->at = 0;
	}
	if (!s->n || s->run->file >= s->ds->names.n / sizeof(name))
		return 0;
	if (!s->open) {
		memcpy(&name, s->ds->names.p + s->run->file * sizeof(name), sizeof(name));
		if (!name || dcp_dir_input(s->ds->in->dir, name, &s->in, NULL) < 0)
			return 0;
		s->open = true;
	}
	return (size_t)DCP_MIN(s->run->n * size - s->at, most);
}

static bool take(struct stream *s, char *to, size_t n)
{
	if (dcp_source_read(&s->in.src, s->run->off + s->at, to, n) < 0)
		return false;
	s->at += n;
	return true;
}

/* Do two ranks hold the same @bytes? Ends may lie in runs of different lengths. */
static bool same_streams(struct stream *a, struct stream *b, uint32_t size, uint64_t bytes)
{
	char left[CHUNK], right[CHUNK];

	while (bytes) {
		size_t n = ready(a, size, (size_t)DCP_MIN(bytes, CHUNK));

		n = n ? ready(b, size, n) : 0;
		if (n == 0 || a->run->swap != b->run->swap || !take(a, left, n) ||
		    !take(b, right, n) || memcmp(left, right, n) != 0)
			return false;
		bytes -= n;
	}
	return true;
}

static int runs_of(struct dcp_ds_emitter *t, const struct dcp_ds_shared *s, size_t k,
		   struct dcp_buf *runs, struct stream *out, uint8_t *dtype)
{
	struct dcp_err why;
	int rc;

	dcp_buf_reset(runs);
	rc = dcp_ds_runs(t->ds, s->part[k], s->param[k], t->state, runs, dtype, &why);
	*out = (struct stream){ .ds = t->ds,
				.run = (const struct dcp_ds_run *)(const void *)runs->p,
				.n = runs->n / sizeof(struct dcp_ds_run) };
	return rc;
}

static int same_as_first(struct dcp_ds_emitter *t, const struct dcp_ds_shared *s, size_t k)
{
	dcp_auto_buf struct dcp_buf left = DCP_BUF_INIT, right = DCP_BUF_INIT;
	struct stream a, b;
	uint8_t da = 0, db = 0;
	uint32_t size;
	bool same;
	int rc = runs_of(t, s, 0, &left, &a, &da);

	if (rc == 0)
		return 1; /* common to all elements: of the first rank anyway */
	if (rc == 1)
		rc = runs_of(t, s, k, &right, &b, &db);
	if (rc != 1 || da != db || s->param[0]->numel != s->param[k]->numel)
		return rc == -ENOMEM ? rc : 0;
	size = dcp_dtype_info((enum dcp_dtype)da)->size;
	same = same_streams(&a, &b, size, s->param[0]->numel * size);
	close_stream(&a);
	close_stream(&b);
	return same;
}

int dcp_ds_all_same(struct dcp_ds_emitter *t, const struct dcp_ds_shared *s)
{
	int rc = 1;

	if (!dcp_ds_may_compare(t->ds, s->param[0]->numel * 8, s->n))
		return 0;
	for (size_t k = 1; rc == 1 && k < s->n; k++)
		rc = same_as_first(t, s, k);
	return rc;
}
