/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/dcp/dcp_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/torch/torch.h"
#include "core/origin/origin.h"
#include "core/parse/pickle/pickle.h"

int dcp_dcp_meta_init(struct dcp_dcp_meta *m)
{
	*m = (struct dcp_dcp_meta){ .guess = DCP_INTERN_NONE, .last_file = DCP_INTERN_NONE };
	dcp_buf_add(&m->entries, "", 1);
	dcp_buf_add(&m->records, "", 1);
	dcp_buf_add(&m->paths, "", 1);
	if (!dcp_buf_error(&m->entries) && !dcp_buf_error(&m->records) &&
	    !dcp_buf_error(&m->paths))
		return 0;
	dcp_dcp_meta_finish(m);
	return -ENOMEM;
}

void dcp_dcp_meta_finish(struct dcp_dcp_meta *m)
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
	*m = (struct dcp_dcp_meta){ 0 };
}

static struct dcp_cur cursor_at(const struct dcp_buf *b, size_t at)
{
	return dcp_cur(b->p + at, b->n - at);
}

struct dcp_dcp_meta_entry dcp_dcp_meta_entry(const struct dcp_dcp_meta *m, uint32_t at)
{
	struct dcp_dcp_meta_entry e = { .c = cursor_at(&m->entries, at) };

	e.kind = (enum dcp_dcp_meta_kind)dcp_cur_varint(&e.c);
	e.rank_file = (uint32_t)dcp_cur_varint(&e.c);
	e.before = (uint32_t)dcp_cur_varint(&e.c);
	return e;
}

/* The number of the file that holds the record at @at. */
static uint32_t rank_file_of(const struct dcp_dcp_meta *m, uint32_t at)
{
	const uint64_t *end = DCP_ITEMS(m->ends, uint64_t);
	uint32_t i;

	DCP_BISECT(i, 0, m->nread, end[i] <= at);
	return i;
}

struct dcp_dcp_meta_record dcp_dcp_meta_record(const struct dcp_dcp_meta *m, uint32_t i,
					       uint64_t dims[DCP_MAX_NDIM])
{
	struct dcp_cur c = cursor_at(&m->records, m->by_key[i]);
	struct dcp_dcp_meta_record r = { .rank_file = rank_file_of(m, m->by_key[i]) };

	dcp_cur_varint(&c); /* the key */
	r.ndim = (uint32_t)dcp_cur_varint(&c) - 1;
	if (r.ndim != DCP_DCP_META_NO_OFFSETS)
		for (uint32_t k = 0; k < r.ndim; k++)
			dims[k] = dcp_cur_varint(&c);
	r.filter = (uint32_t)dcp_cur_varint(&c);
	r.file = (uint32_t)dcp_cur_varint(&c);
	r.off = dcp_cur_varint(&c);
	r.nbytes = dcp_cur_varint(&c);
	return r;
}

bool dcp_dcp_meta_shape(const struct dcp_dcp_meta *m, uint32_t number,
			uint64_t dims[DCP_MAX_NDIM], uint32_t *ndim)
{
	struct dcp_cur c = cursor_at(&m->paths, m->keys[number].shape);

	if (!m->keys[number].shape)
		return false;
	*ndim = (uint32_t)dcp_cur_varint(&c);
	for (uint32_t k = 0; k < *ndim; k++)
		dims[k] = dcp_cur_varint(&c);
	return true;
}

const char *dcp_dcp_meta_error(const struct dcp_dcp_meta *m, uint32_t filter)
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

/* A counting sort. At first slot k + 2 counts the records of key k. After the sums, slot k + 1 is
 * where they start; after all are placed, it is where they end. */
int dcp_dcp_meta_join(struct dcp_dcp_meta *m, struct dcp_err *err)
{
	struct dcp_cur c = cursor_at(&m->records, 1);
	struct dcp_dcp_meta_key *keys = m->keys;
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

/* Turn the @n offsets in @ptrs into pointers to the text. */
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

size_t dcp_dcp_meta_path(const struct dcp_dcp_meta *m, uint32_t number, struct dcp_buf *text,
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

/* Places have 32 bits: enough for some 10^8 chunks, a hundred times what torch itself can read. */
#define MAX_BYTES UINT32_MAX
#define MAX_ERRORS 4096 /* different messages; all others share a general message */

/*
 * Values of a pickle are shared: two bytes may stand for a list of a million chunks or a name of a
 * megabyte, so a small file could cause days of work. Each value is therefore paid from a budget of
 * two units for each byte of the file. A number costs one unit, sixteen bytes of text cost one. An
 * honest file has some twenty bytes for each chunk and a hundred for each key, and stays below.
 */
enum { PER_BYTE = 2, TEXT = 16, SPARE = 1 << 20 };
enum { MAX_CONTAINERS = 1 << 16, MAX_DEPTH = 16, MAX_LINE = 1024 };

void dcp_dcp_meta_begin(struct dcp_dcp_meta *m, uint64_t size)
{
	/* A longer file is sparse. */
	m->budget = DCP_MIN(size, (uint64_t)1 << 32) * PER_BYTE + SPARE;
}

/* Returns false, and takes nothing, if @cost is more than what is left. */
static bool pay_cost(struct dcp_dcp_meta *m, uint64_t cost)
{
	bool can = cost <= m->budget;

	m->budget -= can ? cost : 0;
	return can;
}

static int fail_too_dear(struct dcp_err *err)
{
	return dcp_fail(err, -E2BIG,
			"its parts are referenced so often that they would expand to many "
			"times its size");
}

static int check_size(const struct dcp_buf *b, struct dcp_err *err)
{
	if (dcp_buf_error(b))
		return dcp_fail(err, -ENOMEM, "out of memory for metadata");
	if (b->n > MAX_BYTES)
		return dcp_fail(err, -E2BIG, "more than %u bytes of chunk descriptions",
				MAX_BYTES);
	return 0;
}

/* The number of the key in m->scratch; its slot is made. */
static int find_key_number(struct dcp_dcp_meta *m, const void *s, size_t n, uint32_t *number,
			   struct dcp_err *err)
{
	int rc = dcp_intern_add(&m->names, s, n, m->guess, number);

	if (rc < 0)
		return dcp_fail(err, rc, "%u keys are too many", m->names.n);
	m->guess = *number + 1;
	if (m->names.n + 2 > m->cap) {
		uint32_t cap = m->cap ? m->cap * 2 : 64;
		struct dcp_dcp_meta_key *keys = realloc(m->keys, (size_t)cap * sizeof(*keys));

		if (!keys)
			return dcp_fail(err, -ENOMEM, "out of memory for keys");
		memset(keys + m->cap, 0, (size_t)(cap - m->cap) * sizeof(*keys));
		m->keys = keys;
		m->cap = cap;
	}
	return 0;
}

static int number_of(struct dcp_dcp_meta *m, struct dcp_pv v, uint32_t *number,
		     struct dcp_err *err)
{
	if (v.type == DCP_PV_STR && !pay_cost(m, v.node->n / TEXT))
		return fail_too_dear(err);
	if (v.type == DCP_PV_STR && !memchr(v.node->data, '\0', v.node->n))
		return find_key_number(m, v.node->data, v.node->n, number, err);
	dcp_buf_reset(&m->scratch);
	if (!dcp_torch_field_component(&m->scratch, v)) {
		char type[128];

		dcp_buf_printf(&m->scratch, "(key %u is %s)", m->names.n,
			       dcp_torch_field_type(v, type, sizeof(type)));
	}
	if (dcp_buf_error(&m->scratch))
		return dcp_fail(err, -ENOMEM, "out of memory for keys");
	return find_key_number(m, m->scratch.p, m->scratch.n, number, err);
}

/* ---- state_dict_metadata ---- */

struct tensor_head {
	uint32_t dtype, dname, ndim;
	uint64_t shape[DCP_MAX_NDIM];
};

static void put_head(struct dcp_dcp_meta *m, const struct tensor_head *h)
{
	dcp_buf_varint(&m->entries, h->dtype);
	dcp_buf_varint(&m->entries, h->dname);
	dcp_buf_varint(&m->entries, h->ndim);
	for (uint32_t k = 0; k < h->ndim; k++)
		dcp_buf_varint(&m->entries, h->shape[k]);
}

static int put_chunk(struct dcp_dcp_meta *m, struct dcp_pv v, uint32_t ndim,
		     struct dcp_err *err)
{
	uint64_t dims[DCP_MAX_NDIM];
	const char *const field[2] = { "offsets", "sizes" };
	char type[128];

	if (dcp_torch_field_class(v) != DCP_TORCH_FIELD_CHUNK)
		return dcp_fail(err, -EBADMSG, "chunk is %s, expected ChunkStorageMetadata",
				dcp_torch_field_type(v, type, sizeof(type)));
	for (int i = 0; i < 2; i++) {
		const struct dcp_pv *d = dcp_pv_get(v, field[i]);
		uint32_t n;
		int rc;

		if (!d)
			return dcp_fail(err, -EBADMSG, "chunk without %s", field[i]);
		rc = dcp_torch_field_dims(*d, field[i], dims, &n, err);
		if (rc < 0)
			return rc;
		if (n != ndim)
			return dcp_fail(err, -EBADMSG,
					"chunk %s have %u dimension%s, the tensor %u", field[i],
					n, dcp_s(n), ndim);
		for (uint32_t k = 0; k < n; k++)
			dcp_buf_varint(&m->entries, dims[k]);
	}
	return 0;
}

static int read_head(struct dcp_dcp_meta *m, struct dcp_pv v, struct tensor_head *h,
		     struct dcp_err *err)
{
	const struct dcp_pv *properties = dcp_pv_get(v, "properties");
	const struct dcp_pv *size = dcp_pv_get(v, "size");
	const char *dtype;
	uint32_t ndim;
	int rc;

	if (!properties || !size)
		return dcp_fail(err, -EBADMSG, "TensorStorageMetadata without %s",
				properties ? "size" : "properties");
	rc = dcp_torch_field_dims(*size, "size", h->shape, &ndim, err);
	if (rc < 0)
		return rc;
	h->ndim = ndim;
	rc = dcp_torch_field_dtype(*properties, &dtype, err);
	if (rc < 0)
		return rc;
	rc = dcp_intern_add(&m->dtypes, dtype, strlen(dtype), h->dname, &h->dname);
	if (rc < 0)
		return dcp_fail(err, rc, "out of memory for dtypes");
	h->dtype = dcp_dtype_from_torch(dtype, strlen(dtype));
	return 0;
}

/* Append a tensor's entry after its header. A fault becomes the error of the entry. */
static int put_tensor(struct dcp_dcp_meta *m, struct dcp_pv v)
{
	struct tensor_head h = { 0 };
	struct dcp_err why = { 0 };
	const struct dcp_pv *chunks = dcp_pv_get(v, "chunks"), *chunk;
	size_t start = m->entries.n, n = 0;
	int rc = read_head(m, v, &h, &why);

	if (rc == 0 && (!chunks || chunks->type != DCP_PV_LIST))
		rc = dcp_fail(&why, -EBADMSG, "TensorStorageMetadata without a list of chunks");
	put_head(m, &h);
	if (rc == 0) {
		dcp_buf_varint(&m->entries, 0); /* no error */
		chunk = dcp_pv_items(*chunks, &n);
		if (!pay_cost(m, 2 * (uint64_t)n * (1 + h.ndim)))
			rc = fail_too_dear(&why);
		dcp_buf_varint(&m->entries, n);
		for (size_t i = 0; i < n && rc == 0; i++)
			rc = put_chunk(m, chunk[i], h.ndim, &why);
	}
	if (rc < 0) {
		m->entries.n = start;
		put_head(m, &h);
		dcp_buf_varint(&m->entries, strlen(why.msg));
		dcp_buf_str(&m->entries, why.msg);
		dcp_buf_varint(&m->entries, 0); /* no chunks */
	}
	return rc == -ENOMEM ? rc : 0;
}

static int put_unknown(struct dcp_dcp_meta *m, struct dcp_pv v)
{
	struct tensor_head h = { 0 };
	char type[128], text[256];
	int n = snprintf(text, sizeof(text),
			 "metadata is %s, expected TensorStorageMetadata or "
			 "BytesStorageMetadata",
			 dcp_torch_field_type(v, type, sizeof(type)));

	put_head(m, &h);
	n = DCP_MIN(n, (int)sizeof(text) - 1);
	dcp_buf_varint(&m->entries, (uint64_t)n);
	dcp_buf_add(&m->entries, text, (size_t)n);
	dcp_buf_varint(&m->entries, 0);
	return 0;
}

int dcp_dcp_meta_add_entry(void *meta, struct dcp_pv key, struct dcp_pv v, struct dcp_err *err)
{
	struct dcp_dcp_meta *m = meta;
	enum dcp_torch_field_class class = dcp_torch_field_class(v);
	uint32_t number, at = (uint32_t)m->entries.n, before;
	int rc = number_of(m, key, &number, err);

	if (rc < 0)
		return rc;
	if (class == DCP_TORCH_FIELD_SHARDED_1_12)
		return dcp_fail(err, -ENOTSUP,
				"written by torch 1.12 (ShardedTensorStorageMetadata), whose "
				"format no later torch reads: load it there and save it again "
				"with torch 1.13 or later");
	before = m->keys[number].entry;
	/* The same key twice in one file: the later one counts, as in a dict. */
	while (before && dcp_dcp_meta_entry(m, before).rank_file == m->nread)
		before = dcp_dcp_meta_entry(m, before).before;
	dcp_buf_varint(&m->entries, class == DCP_TORCH_FIELD_BYTES ? DCP_DCP_META_BYTES
								   : DCP_DCP_META_TENSOR);
	dcp_buf_varint(&m->entries, m->nread);
	dcp_buf_varint(&m->entries, before);
	if (class == DCP_TORCH_FIELD_TENSOR)
		rc = put_tensor(m, v);
	else if (class != DCP_TORCH_FIELD_BYTES)
		rc = put_unknown(m, v);
	m->keys[number].entry = at;
	return rc < 0 ? dcp_fail(err, rc, "out of memory for metadata")
		      : check_size(&m->entries, err);
}

/* ---- storage_data ---- */

/* The filter field of a record that cannot be used: 2 and the number of the message. */
static int find_error_number(struct dcp_dcp_meta *m, const char *msg, uint64_t *filter)
{
	uint32_t number;
	int rc;

	if (m->errors.n >= MAX_ERRORS && !dcp_intern_has(&m->errors, msg))
		msg = "damaged storage info";
	rc = dcp_intern_str(&m->errors, msg, &number);
	*filter = 2 + (uint64_t)number;
	return rc;
}

/* Read the offsets in a MetadataIndex; they are absent or None for a byte item. */
static int put_offsets(struct dcp_dcp_meta *m, struct dcp_pv index, struct dcp_err *err)
{
	const struct dcp_pv *offset = dcp_pv_get(index, "offset");
	uint64_t dims[DCP_MAX_NDIM];
	uint32_t ndim;
	int rc;

	if (!offset || offset->type == DCP_PV_NONE) {
		dcp_buf_varint(&m->records, 0);
		return 0;
	}
	rc = dcp_torch_field_dims(*offset, "offset", dims, &ndim, err);
	if (rc < 0)
		return rc;
	dcp_buf_varint(&m->records, 1 + (uint64_t)ndim);
	for (uint32_t k = 0; k < ndim; k++)
		dcp_buf_varint(&m->records, dims[k]);
	return 0;
}

int dcp_dcp_meta_add_record(void *meta, struct dcp_pv index, struct dcp_pv v,
			    struct dcp_err *err)
{
	struct dcp_dcp_meta *m = meta;
	struct dcp_torch_field_info info = { 0 };
	const struct dcp_pv *fqn = dcp_pv_get(index, "fqn");
	struct dcp_err why = { 0 };
	size_t start = m->records.n;
	uint64_t filter;
	uint32_t key, file = 0;
	int rc;

	/* An index without a name or place belongs to no chunk; its chunk shows as missing. */
	if (dcp_torch_field_class(index) != DCP_TORCH_FIELD_INDEX || !fqn) {
		m->norphans++;
		return 0;
	}
	rc = number_of(m, *fqn, &key, err);
	if (rc < 0)
		return rc;
	rc = dcp_torch_field_info(v, &info, &why);
	filter = info.filter;
	if (rc < 0)
		rc = find_error_number(m, why.msg, &filter);
	else if (!pay_cost(m, info.path_len / TEXT))
		return fail_too_dear(err);
	else
		rc = dcp_intern_add(&m->files, info.path, info.path_len, m->last_file, &file);
	if (rc < 0)
		return dcp_fail(err, rc, "out of memory for storage_data");
	m->last_file = file;
	dcp_buf_varint(&m->records, key);
	if (put_offsets(m, index, &why) < 0) {
		m->records.n = start;
		m->norphans++;
		return check_size(&m->records, err);
	}
	dcp_buf_varint(&m->records, filter);
	dcp_buf_varint(&m->records, file);
	dcp_buf_varint(&m->records, info.off);
	dcp_buf_varint(&m->records, info.nbytes);
	m->nrecords++;
	return check_size(&m->records, err);
}

/* ---- planner_data ---- */

static bool pay_path(struct dcp_dcp_meta *m, const struct dcp_pv *item, size_t n)
{
	uint64_t cost = n;

	for (size_t i = 0; i < n && cost <= m->budget; i++)
		cost += item[i].type == DCP_PV_STR ? item[i].node->n / TEXT : 0;
	return pay_cost(m, cost);
}

/* Note, in a line as struct dcp_walk has them, whether the container at @item[0..n) is a mapping or
 * a list: @item[n] is a key or an index in it. */
static int add_container(struct dcp_dcp_meta *m, const struct dcp_pv *item, size_t n)
{
	struct dcp_buf *b = &m->scratch;
	const struct dcp_pv *key = &item[n];
	bool list = key->type == DCP_PV_INT;

	if (m->containers.text.n > MAX_CONTAINERS ||
	    !(list || (key->type == DCP_PV_STR && key->node->n && key->node->data[0] >= '0' &&
		       key->node->data[0] <= '9')))
		return 0;
	dcp_buf_reset(b);
	dcp_buf_str(b, list ? "list" : "dict");
	for (size_t i = 0; i < n && b->n <= MAX_LINE; i++) {
		size_t at = b->n + 1;

		dcp_buf_str(b, "\t");
		if (!dcp_torch_field_component(b, item[i]) ||
		    (b->n > at && (memchr(b->p + at, '\t', b->n - at) ||
				   memchr(b->p + at, '\n', b->n - at))))
			return 0;
	}
	if (dcp_buf_error(b))
		return -ENOMEM;
	if (b->n > MAX_LINE)
		return 0;
	return dcp_intern_add(&m->containers, b->p, b->n, m->containers.n - 1, NULL);
}

/* Scratch receives both forms, one after the other; the short form is kept if it is valid. */
int dcp_dcp_meta_add_path(void *meta, struct dcp_pv key, struct dcp_pv v, struct dcp_err *err)
{
	struct dcp_dcp_meta *m = meta;
	const struct dcp_pv *item;
	size_t n, name = 0;
	uint32_t number, at = (uint32_t)m->paths.n;
	const char *text;
	bool joined = true;
	int rc = number_of(m, key, &number, err);

	if (rc < 0 || (v.type != DCP_PV_TUPLE && v.type != DCP_PV_LIST))
		return rc;
	item = dcp_pv_items(v, &n);
	if (n == 0 || (n == 1 && item[0].type == DCP_PV_STR && key.type == DCP_PV_STR &&
		       item[0].node->n == key.node->n &&
		       memcmp(item[0].node->data, key.node->data, key.node->n) == 0))
		return 0; /* the path is the key itself, or is empty */
	if (!pay_path(m, item, n))
		return fail_too_dear(err);
	for (size_t i = 1; i < DCP_MIN(n, (size_t)MAX_DEPTH) && rc >= 0; i++)
		rc = add_container(m, item, i);
	if (rc < 0)
		return dcp_fail(err, rc, "out of memory for planner_data");
	text = dcp_intern_text(&m->names, number);
	dcp_buf_varint(&m->paths, 1 + (uint64_t)n);
	for (size_t i = 0; i < n && joined; i++) {
		size_t left = m->names.entry[number].len - name;

		dcp_buf_reset(&m->scratch);
		joined = dcp_torch_field_component(&m->scratch, item[i]) &&
			 !dcp_buf_error(&m->scratch) && m->scratch.n <= left &&
			 memcmp(text + name, m->scratch.p ? m->scratch.p : "", m->scratch.n) ==
				 0 &&
			 (i + 1 < n ? text[name + m->scratch.n] == '.' : m->scratch.n == left);
		dcp_buf_varint(&m->paths, m->scratch.n);
		name += m->scratch.n + 1;
	}
	if (!joined) {
		m->paths.n = at;
		dcp_buf_varint(&m->paths, 0);
		dcp_buf_varint(&m->paths, n);
		for (size_t i = 0; i < n; i++) {
			dcp_buf_reset(&m->scratch);
			if (!dcp_torch_field_component(&m->scratch, item[i])) {
				m->paths.n = at;
				return 0;
			}
			dcp_buf_varint(&m->paths, m->scratch.n);
			dcp_buf_add(&m->paths, m->scratch.p, m->scratch.n);
		}
	}
	m->keys[number].path = at;
	return check_size(&m->paths, err);
}

/* ---- mcore_data ---- */

/* Ignore a value that is not a shape: the key is then emitted with its stored shape. */
int dcp_dcp_meta_add_shape(void *meta, struct dcp_pv key, struct dcp_pv v, struct dcp_err *err)
{
	struct dcp_dcp_meta *m = meta;
	const struct dcp_pv *shape = dcp_pv_get(v, "nd_reformulated_orig_global_shape");
	uint64_t dims[DCP_MAX_NDIM];
	uint32_t number, ndim, at;
	int rc = number_of(m, key, &number, err);

	if (rc < 0 || !shape || dcp_torch_field_dims(*shape, "shape", dims, &ndim, NULL) < 0)
		return rc;
	if (!pay_cost(m, ndim))
		return fail_too_dear(err);
	at = (uint32_t)m->paths.n;
	dcp_buf_varint(&m->paths, ndim);
	for (uint32_t k = 0; k < ndim; k++)
		dcp_buf_varint(&m->paths, dims[k]);
	m->keys[number].shape = at;
	return check_size(&m->paths, err);
}

static const struct dcp_section sections[] = {
	{ "state_dict_metadata", false, dcp_dcp_meta_add_entry },
	{ "storage_data", false, dcp_dcp_meta_add_record },
	{ "planner_data", true, dcp_dcp_meta_add_path }, /* without it keys are not nested */
	{ "mcore_data", true, dcp_dcp_meta_add_shape },  /* Megatron's */
};

/* Megatron stores the save plans of all ranks: as long as everything else, and not needed. */
static bool is_plan(struct dcp_pv where)
{
	return dcp_torch_field_class(where) == DCP_TORCH_FIELD_PLAN;
}

static int look_at_root(void *ctx, struct dcp_pv root, struct dcp_err *err)
{
	const struct dcp_pv meta = dcp_pv_at(root, "storage_meta");
	struct dcp_dcp_meta *m = ctx;
	char type[128];

	if (dcp_torch_field_class(root) != DCP_TORCH_FIELD_METADATA)
		return dcp_fail_at(err, -EBADMSG, 0,
				   "the pickle holds %s, expected "
				   "torch.distributed.checkpoint.metadata.Metadata",
				   dcp_torch_field_type(root, type, sizeof(type)));
	if (dcp_pv_get(root, "state_dict_metadata") && !dcp_pv_get(root, "storage_data"))
		return dcp_fail(err, -ENOTSUP,
				"Metadata without storage_data: torch 1.12 wrote it, whose "
				"format no later torch reads; load it there and save it again "
				"with torch 1.13 or later");
	dcp_sections_fact(m->version, sizeof(m->version), dcp_pv_at(root, "version"));
	if (dcp_torch_field_class(meta) == DCP_TORCH_FIELD_STORAGE_META)
		dcp_sections_fact(m->save_id, sizeof(m->save_id), dcp_pv_at(meta, "save_id"));
	return 0;
}

int dcp_dcp_meta_read(struct dcp_dcp_meta *m, const struct dcp_source *src, struct dcp_err *err)
{
	const struct dcp_sections all = { sections, DCP_LEN(sections), is_plan, look_at_root,
					  m };
	uint64_t end;
	int rc;

	m->guess = 0;
	dcp_dcp_meta_begin(m, src->size);
	rc = dcp_sections_read(&all, src, err);
	if (rc < 0)
		return rc;
	end = m->records.n;
	if (dcp_buf_add(&m->ends, &end, sizeof(end)) < 0)
		return dcp_fail(err, -ENOMEM, "out of memory for metadata");
	m->nread++;
	return 0;
}
