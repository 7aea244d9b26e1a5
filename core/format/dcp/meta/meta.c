/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/dcp/meta/meta.h"

#include <errno.h>
#include <stdlib.h>

#include "core/base/err.h"
#include "core/base/sort.h"

int dcp_tmeta_init(struct dcp_tmeta *m)
{
	*m = (struct dcp_tmeta){ .guess = DCP_INTERN_NONE, .last_file = DCP_INTERN_NONE };
	dcp_buf_add(&m->entries, "", 1);
	dcp_buf_add(&m->records, "", 1);
	dcp_buf_add(&m->paths, "", 1);
	if (!dcp_buf_error(&m->entries) && !dcp_buf_error(&m->records) &&
	    !dcp_buf_error(&m->paths))
		return 0;
	dcp_tmeta_finish(m);
	return -ENOMEM;
}

void dcp_tmeta_finish(struct dcp_tmeta *m)
{
	dcp_intern_finish(&m->names);
	dcp_intern_finish(&m->files);
	dcp_intern_finish(&m->dtypes);
	dcp_intern_finish(&m->errors);
	dcp_intern_finish(&m->containers);
	dcp_buf_finish(&m->entries);
	dcp_buf_finish(&m->records);
	dcp_buf_finish(&m->paths);
	dcp_buf_finish(&m->ends);
	dcp_buf_finish(&m->scratch);
	free(m->keys);
	free(m->by_key);
	*m = (struct dcp_tmeta){ 0 };
}

static struct dcp_cur cursor_at(const struct dcp_buf *b, size_t at)
{
	return dcp_cur(b->p + at, b->n - at);
}

struct dcp_tmeta_entry dcp_tmeta_entry(const struct dcp_tmeta *m, uint32_t at)
{
	struct dcp_tmeta_entry e = { .c = cursor_at(&m->entries, at) };

	e.kind = (enum dcp_tmeta_kind)dcp_cur_varint(&e.c);
	e.rank_file = (uint32_t)dcp_cur_varint(&e.c);
	e.before = (uint32_t)dcp_cur_varint(&e.c);
	return e;
}

/* Which of the files that were read does the record at @at come from? */
static uint32_t rank_file_of(const struct dcp_tmeta *m, uint32_t at)
{
	const uint64_t *end = DCP_ITEMS(m->ends, uint64_t);
	uint32_t i;

	DCP_BISECT(i, 0, m->nread, end[i] <= at);
	return i;
}

struct dcp_tmeta_record dcp_tmeta_record(const struct dcp_tmeta *m, uint32_t i,
					 uint64_t dims[DCP_MAX_NDIM])
{
	struct dcp_cur c = cursor_at(&m->records, m->by_key[i]);
	struct dcp_tmeta_record r = { .rank_file = rank_file_of(m, m->by_key[i]) };

	dcp_cur_varint(&c); /* the key */
	r.ndim = (uint32_t)dcp_cur_varint(&c) - 1;
	if (r.ndim != DCP_TMETA_NO_OFFSETS)
		for (uint32_t k = 0; k < r.ndim; k++)
			dims[k] = dcp_cur_varint(&c);
	r.filter = (uint32_t)dcp_cur_varint(&c);
	r.file = (uint32_t)dcp_cur_varint(&c);
	r.off = dcp_cur_varint(&c);
	r.nbytes = dcp_cur_varint(&c);
	return r;
}

bool dcp_tmeta_shape(const struct dcp_tmeta *m, uint32_t number, uint64_t dims[DCP_MAX_NDIM],
		     uint32_t *ndim)
{
	struct dcp_cur c = cursor_at(&m->paths, m->keys[number].shape);

	if (!m->keys[number].shape)
		return false;
	*ndim = (uint32_t)dcp_cur_varint(&c);
	for (uint32_t k = 0; k < *ndim; k++)
		dims[k] = dcp_cur_varint(&c);
	return true;
}

const char *dcp_tmeta_error(const struct dcp_tmeta *m, uint32_t filter)
{
	return dcp_intern_text(&m->errors, filter - 2);
}

/* The key of the record at @c, which is left at the next record. */
static uint32_t skip_record(struct dcp_cur *c)
{
	uint32_t key = (uint32_t)dcp_cur_varint(c);
	uint64_t fields = dcp_cur_varint(c) + 4;

	if (fields > 4)
		fields--;
	while (fields-- > 0)
		dcp_cur_varint(c);
	return key;
}

/* A counting sort. Slot k + 2 counts the records of key k; summed up, slot k + 1 says where
 * they start, and when they all are placed, where those of key k + 1 do. */
int dcp_tmeta_join(struct dcp_tmeta *m, struct dcp_err *err)
{
	struct dcp_cur c = cursor_at(&m->records, 1);
	struct dcp_tmeta_key *keys = m->keys;
	uint32_t n = m->names.n;

	m->by_key = malloc((size_t)(m->nrecords + 1) * sizeof(*m->by_key));
	if (!m->by_key)
		return dcp_fail(err, -ENOMEM, "out of memory for %llu chunks",
				(unsigned long long)m->nrecords);
	if (!n)
		return 0;
	while (dcp_cur_left(&c) > 0) {
		uint32_t key = skip_record(&c);

		keys[key + 2].first++;
		m->norphans += keys[key].entry == 0;
	}
	for (uint32_t k = 2; k < n + 2; k++)
		keys[k].first += keys[k - 1].first;
	c = cursor_at(&m->records, 1);
	while (dcp_cur_left(&c) > 0) {
		uint32_t at = (uint32_t)((const char *)c.p - m->records.p);

		m->by_key[keys[skip_record(&c) + 1].first++] = at;
	}
	return 0;
}

/* Put the components at @start of the ends in @ptrs' place: offsets become pointers. */
static size_t point_at(struct dcp_buf *text, struct dcp_buf *ptrs, size_t n,
		       const char *const **out)
{
	const char **p;

	if (dcp_buf_error(text) || dcp_buf_error(ptrs))
		return 0;
	p = (const char **)(void *)ptrs->p;
	for (size_t i = 0; i < n; i++)
		p[i] = text->p + (uintptr_t)p[i];
	*out = p;
	return n;
}

static void add_component(struct dcp_buf *text, struct dcp_buf *ptrs, const void *s, size_t n)
{
	uintptr_t at = text->n;

	dcp_buf_add(ptrs, &at, sizeof(at));
	dcp_buf_add(text, s, n);
	dcp_buf_add(text, "", 1);
}

size_t dcp_tmeta_path(const struct dcp_tmeta *m, uint32_t number, struct dcp_buf *text,
		      struct dcp_buf *ptrs, const char *const **out)
{
	const char *key = dcp_intern_text(&m->names, number);
	struct dcp_cur c = cursor_at(&m->paths, m->keys[number].path);
	uint64_t n, joined;

	dcp_buf_reset(text);
	dcp_buf_reset(ptrs);
	if (!m->keys[number].path) {
		add_component(text, ptrs, key, m->names.entry[number].len);
		return point_at(text, ptrs, 1, out);
	}
	joined = dcp_cur_varint(&c);
	n = joined ? joined - 1 : dcp_cur_varint(&c);
	for (uint64_t i = 0; i < n; i++) {
		size_t len = (size_t)dcp_cur_varint(&c);

		add_component(text, ptrs, joined ? (const void *)key : dcp_cur_take(&c, len),
			      len);
		if (joined)
			key += len + 1;
	}
	return point_at(text, ptrs, (size_t)n, out);
}
