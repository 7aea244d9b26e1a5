/* SPDX-License-Identifier: Apache-2.0 */
/* Sources: paddle/distributed/checkpoint/metadata.py (2.6 to 3.1),
 * paddle/distributed/flex_checkpoint/dcp/metadata.py (3.2 and later). */
#include "core/format/paddle/dist/dist_int.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/origin/origin.h"
#include "core/parse/pickle/pickle.h"
#include "core/parse/pyjson/pyjson.h"

bool dcp_paddle_meta_is(struct dcp_pv v, const char *name)
{
	return dcp_pv_is_object(v, "paddle.distributed.flex_checkpoint.dcp.metadata", name) ||
	       dcp_pv_is_object(v, "paddle.distributed.checkpoint.metadata", name);
}

/* Limits memory: in a pickle that refers to shared values, a small file can describe a lot. No
 * honest file needs more than m->limit. */
int dcp_paddle_meta_check_size(const struct dcp_paddle_meta *m, struct dcp_err *err)
{
	const struct dcp_buf *const all[] = { &m->keys,       &m->entries,    &m->records,
					      &m->heads,      &m->dims,       &m->paths,
					      &m->names.text, &m->errors.text };
	uint64_t sum = 0;

	for (size_t i = 0; i < DCP_LEN(all); i++) {
		if (dcp_buf_error(all[i]))
			return -ENOMEM;
		sum += all[i]->n;
	}
	if (sum > m->limit)
		return dcp_fail(err, -E2BIG,
				"metadata takes more than %" PRIu64 " bytes of memory",
				m->limit);
	return 0;
}

/* ---- keys ---- */

void dcp_paddle_meta_put_text(struct dcp_buf *b, const struct dcp_pnode *s)
{
	for (uint64_t i = 0; i < s->n; i++)
		dcp_buf_add(b, s->data[i] ? &s->data[i] : "\xc0\x80", s->data[i] ? 1 : 2);
}

int dcp_paddle_meta_key_number(struct dcp_paddle_meta *m, struct dcp_pv v, uint32_t *number,
			       struct dcp_err *err)
{
	static const struct dcp_paddle_meta_key fresh = { DCP_PADDLE_META_NONE,
							  DCP_PADDLE_META_NONE,
							  DCP_PADDLE_META_NONE,
							  DCP_PADDLE_META_NONE,
							  0,
							  0,
							  false };
	int rc;

	if (v.type != DCP_PV_STR)
		return dcp_fail(err, -EBADMSG, "a key is %s, expected str", dcp_pyjson_type(v));
	if (memchr(v.node->data, '\0', v.node->n)) {
		dcp_buf_reset(&m->scratch);
		dcp_paddle_meta_put_text(&m->scratch, v.node);
		if (dcp_buf_error(&m->scratch))
			return -ENOMEM;
		rc = dcp_intern_add(&m->names, m->scratch.p, m->scratch.n, m->guess, number);
	} else {
		rc = dcp_intern_add(&m->names, v.node->data, v.node->n, m->guess, number);
	}
	if (rc < 0)
		return dcp_fail(err, rc, "%u keys are too many", m->names.n);
	m->guess = *number + 1;
	if (rc == 1)
		dcp_buf_add(&m->keys, &fresh, sizeof(fresh));
	return dcp_buf_error(&m->keys);
}

int dcp_paddle_meta_spoil(struct dcp_paddle_meta *m, uint32_t key, const struct dcp_err *why,
			  struct dcp_err *err)
{
	uint32_t number;
	int rc;

	if (dcp_paddle_meta_key(m, key)->error != DCP_PADDLE_META_NONE)
		return dcp_paddle_meta_check_size(m, err);
	rc = dcp_intern_str(&m->errors, why->msg, &number);
	if (rc < 0)
		return -ENOMEM;
	dcp_paddle_meta_key(m, key)->error = number;
	return dcp_paddle_meta_check_size(m, err);
}

void dcp_paddle_meta_finish(struct dcp_paddle_meta *m)
{
	dcp_intern_finish(&m->names);
	dcp_intern_finish(&m->dtypes);
	dcp_intern_finish(&m->files);
	dcp_intern_finish(&m->errors);
	dcp_buf_finish(&m->keys);
	dcp_buf_finish(&m->entries);
	dcp_buf_finish(&m->records);
	dcp_buf_finish(&m->heads);
	dcp_buf_finish(&m->dims);
	dcp_buf_finish(&m->paths);
	dcp_buf_finish(&m->scratch);
}

int dcp_paddle_meta_take_dims(struct dcp_paddle_meta *m, const struct dcp_pv *v,
			      const char *what, uint64_t *at, uint32_t *ndim,
			      struct dcp_err *why)
{
	const struct dcp_pv *item;
	int negative = 0;
	size_t n = 0;

	if (!v || (v->type != DCP_PV_TUPLE && v->type != DCP_PV_LIST))
		return dcp_fail(why, -EBADMSG, "%s is %s, expected a tuple", what,
				v ? dcp_pyjson_type(*v) : "missing");
	item = dcp_pv_items(*v, &n);
	if (n > DCP_MAX_NDIM)
		return dcp_fail(why, -EBADMSG, "%s has %zu dimensions, at most %d are possible",
				what, n, DCP_MAX_NDIM);
	*at = DCP_NITEMS(m->dims, uint64_t);
	*ndim = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		uint64_t d = 0;

		if (!dcp_pv_u64(item[i], &d)) {
			if (item[i].type != DCP_PV_INT)
				return dcp_fail(why, -EBADMSG, "%s holds %s, expected int",
						what, dcp_pyjson_type(item[i]));
			negative = 1;
		}
		dcp_buf_add(&m->dims, &d, sizeof(d));
	}
	return negative;
}

static int take_run(struct dcp_pv v, struct dcp_paddle_meta_box *box, struct dcp_err *why)
{
	const struct dcp_pv flat = dcp_pv_at(v, "is_flattened");
	size_t n;
	const struct dcp_pv *item = dcp_pv_items(dcp_pv_at(v, "flattened_range"), &n);
	uint64_t is = 0;

	if (flat.type != DCP_PV_NONE && !dcp_pv_u64(flat, &is))
		return dcp_fail(why, -EBADMSG, "is_flattened is %s", dcp_pyjson_type(flat));
	if (!is)
		return 0;
	if (n != 2 || !dcp_pv_u64(item[0], &box->run_lo) ||
	    !dcp_pv_u64(item[1], &box->run_hi) || box->run_lo > box->run_hi)
		return dcp_fail(why, -EBADMSG,
				"a flattened piece without a flattened_range (start, stop)");
	box->flat = true;
	return 0;
}

int dcp_paddle_meta_take_box(struct dcp_paddle_meta *m, struct dcp_pv v, bool bare,
			     struct dcp_paddle_meta_box *box, struct dcp_err *why)
{
	const struct dcp_pv *len = dcp_pv_get(v, "local_shape");
	uint32_t nlen = 0;
	int rc = dcp_paddle_meta_take_dims(m, dcp_pv_get(v, "global_offset"), "global_offset",
					   &box->lo, &box->ndim, why);

	if (rc == 1)
		return dcp_fail(why, -EBADMSG, "a piece has a negative global_offset");
	box->len = DCP_PADDLE_META_NO_DIMS;
	if (rc == 0 && !(bare && (!len || len->type == DCP_PV_NONE))) {
		rc = dcp_paddle_meta_take_dims(m, len, "local_shape", &box->len, &nlen, why);
		if (rc >= 0 && nlen != box->ndim)
			return dcp_fail(why, -EBADMSG,
					"a piece has a global_offset of %" PRIu32
					" dimensions and a local_shape of %" PRIu32,
					box->ndim, nlen);
	}
	if (rc < 0)
		return rc;
	return take_run(v, box, why) < 0 ? -EBADMSG : rc;
}

/* A fault in one key is kept as the error of this key. Only faults that leave no metadata at all
 * make reading fail. */

enum { MAX_PATH = 256 }; /* components */

/* ---- state_dict_metadata ---- */

static int take_entry(struct dcp_paddle_meta *m, struct dcp_pv v,
		      struct dcp_paddle_meta_entry *e, struct dcp_err *why)
{
	struct dcp_pv dtype, shape;
	uint32_t ndim = 0;
	int rc, part;

	if (!dcp_paddle_meta_is(v, "LocalTensorMetadata"))
		return dcp_fail(why, -EBADMSG,
				"its metadata lists %s, expected LocalTensorMetadata",
				dcp_pyjson_type(v));
	rc = dcp_paddle_meta_take_box(m, v, false, &e->box, why);
	if (rc < 0)
		return rc;
	m->generation = (char)DCP_MAX(m->generation, dcp_pv_get(v, "global_shape") ? 'C'
						     : dcp_pv_get(v, "dtype")      ? 'B'
										   : 'A');
	/* older releases do not write these fields */
	dtype = dcp_pv_at(v, "dtype");
	shape = dcp_pv_at(v, "global_shape");
	if (dtype.type != DCP_PV_NONE) {
		const char *name = dcp_pv_str(dtype);

		if (!name)
			return dcp_fail(why, -EBADMSG, "dtype is %s, expected str",
					dcp_pyjson_type(dtype));
		if (strncmp(name, "paddle.", 7) == 0)
			name += 7;
		part = dcp_intern_add(&m->dtypes, name, strlen(name), e->dtype, &e->dtype);
		if (part < 0)
			return part;
	}
	if (shape.type == DCP_PV_NONE)
		return rc;
	part = dcp_paddle_meta_take_dims(m, &shape, "global_shape", &e->shape, &ndim, why);
	if (part == 1 || (part == 0 && ndim != e->box.ndim))
		return dcp_fail(why, -EBADMSG,
				"global_shape does not fit a piece of %" PRIu32 " dimensions",
				e->box.ndim);
	return part < 0 ? part : rc;
}

static void chain_entry(struct dcp_paddle_meta *m, uint32_t key,
			const struct dcp_paddle_meta_entry *e)
{
	struct dcp_paddle_meta_key *k = dcp_paddle_meta_key(m, key);
	uint32_t number = dcp_paddle_meta_nentries(m);

	if (dcp_buf_add(&m->entries, e, sizeof(*e)) < 0)
		return;
	if (k->entry == DCP_PADDLE_META_NONE)
		k->entry = number;
	else
		dcp_paddle_meta_entry(m, k->last_entry)->next = number;
	k->last_entry = number;
}

int dcp_paddle_meta_add_state(void *meta, struct dcp_pv key, struct dcp_pv value,
			      struct dcp_err *err)
{
	struct dcp_paddle_meta *m = meta;
	struct dcp_err why = { 0 };
	const struct dcp_pv *item;
	uint32_t k;
	size_t n = 0;
	int rc = dcp_paddle_meta_key_number(m, key, &k, err);

	if (rc < 0)
		return rc;
	dcp_paddle_meta_key(m, k)->named = true;
	if (value.type != DCP_PV_LIST && value.type != DCP_PV_TUPLE) {
		dcp_fail(&why, -EBADMSG, "its metadata is %s, expected a list",
			 dcp_pyjson_type(value));
		return dcp_paddle_meta_spoil(m, k, &why, err);
	}
	item = dcp_pv_items(value, &n);
	for (size_t i = 0; i < n; i++) {
		struct dcp_paddle_meta_entry e = { .shape = DCP_PADDLE_META_NO_DIMS,
						   .dtype = DCP_PADDLE_META_NONE,
						   .next = DCP_PADDLE_META_NONE };

		rc = take_entry(m, item[i], &e, &why);
		if (rc == -ENOMEM)
			return -ENOMEM;
		if (rc < 0)
			return dcp_paddle_meta_spoil(m, k, &why, err);
		if (rc == 0)
			chain_entry(m, k, &e);
		rc = i % 256 == 255 ? dcp_paddle_meta_check_size(m, err) : 0;
		if (rc < 0)
			return rc;
	}
	return dcp_paddle_meta_check_size(m, err);
}

/* ---- storage_metadata ---- */

static int find_file_number(struct dcp_paddle_meta *m, struct dcp_pv v, uint32_t *number,
			    struct dcp_err *why)
{
	static const uint32_t none = DCP_PADDLE_META_NONE;
	const char *name = dcp_pv_str(v);
	int rc;

	if (!name || !*name || strlen(name) != v.node->n || strlen(name) > 255)
		return dcp_fail(why, -EBADMSG, "storage_metadata names no file for it");
	if (strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return dcp_fail(
			why, -EBADMSG,
			"storage_metadata names \"%.100s\" for it, which is not a name of "
			"a file in the checkpoint's directory",
			name);
	rc = dcp_intern_str(&m->files, name, number);
	if (rc < 0)
		return rc;
	if (rc == 1)
		dcp_buf_add(&m->heads, &none, sizeof(none));
	return dcp_buf_error(&m->heads);
}

static void chain_record(struct dcp_paddle_meta *m, struct dcp_paddle_meta_record *r)
{
	struct dcp_paddle_meta_key *k = dcp_paddle_meta_key(m, r->key);
	uint32_t *head = DCP_ITEMS(m->heads, uint32_t) + r->file;
	uint32_t number = dcp_paddle_meta_nrecords(m);

	r->next = k->record;
	r->next_in_file = *head;
	if (dcp_buf_add(&m->records, r, sizeof(*r)) < 0)
		return;
	k->record = number;
	*head = number;
}

int dcp_paddle_meta_add_record(void *meta, struct dcp_pv index, struct dcp_pv file,
			       struct dcp_err *err)
{
	struct dcp_paddle_meta *m = meta;
	struct dcp_paddle_meta_record r = { 0 };
	struct dcp_pv replica = dcp_pv_at(index, "replica_id");
	const struct dcp_pv *key;
	struct dcp_err why = { 0 };
	int rc;

	key = dcp_paddle_meta_is(index, "LocalTensorIndex") ? dcp_pv_get(index, "tensor_key")
							    : NULL;
	if (!key)
		return dcp_fail(err, -EBADMSG,
				"storage_metadata has %s for a key, expected LocalTensorIndex",
				dcp_pyjson_type(index));
	rc = dcp_paddle_meta_key_number(m, *key, &r.key, err);
	if (rc < 0)
		return rc;
	rc = dcp_paddle_meta_take_box(m, index, true, &r.box, &why);
	if (rc == 1)
		return dcp_paddle_meta_check_size(
			m, err); /* a piece of negative size is ignored */
	if (rc == 0 && replica.type != DCP_PV_NONE && !dcp_pv_u64(replica, &r.replica))
		rc = dcp_fail(&why, -EBADMSG, "replica_id is %s", dcp_pyjson_type(replica));
	if (rc == 0)
		rc = find_file_number(m, file, &r.file, &why);
	if (rc == -ENOMEM || rc == -E2BIG)
		return -ENOMEM;
	if (rc < 0)
		return dcp_paddle_meta_spoil(m, r.key, &why, err);
	chain_record(m, &r);
	return dcp_paddle_meta_check_size(m, err);
}

/* ---- flat_mapping ---- */

/* Add the path of a key. A path that is not a tuple of str and int is left out: then the key is its
 * own path. */
int dcp_paddle_meta_add_path(void *meta, struct dcp_pv key, struct dcp_pv value,
			     struct dcp_err *err)
{
	struct dcp_paddle_meta *m = meta;
	size_t n = 0, start = m->paths.n;
	const struct dcp_pv *item = dcp_pv_items(value, &n);
	uint32_t k;
	int rc;

	if (key.type != DCP_PV_STR || n == 0 || n > MAX_PATH ||
	    (value.type != DCP_PV_TUPLE && value.type != DCP_PV_LIST))
		return 0;
	rc = dcp_paddle_meta_key_number(m, key, &k, err);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < n; i++) {
		if (item[i].type == DCP_PV_STR) {
			dcp_paddle_meta_put_text(&m->paths, item[i].node);
		} else if (item[i].type == DCP_PV_INT) {
			dcp_buf_printf(&m->paths, "%" PRId64, item[i].i);
		} else {
			m->paths.n = start;
			return 0;
		}
		dcp_buf_add(&m->paths, "", 1);
	}
	dcp_paddle_meta_key(m, k)->path = start;
	dcp_paddle_meta_key(m, k)->npath = (uint32_t)n;
	return dcp_paddle_meta_check_size(m, err);
}

/* meta_read: reads a whole .metadata, section by section. */

enum {
	MEMORY_BASE = 64 << 20,
	MEMORY_FACTOR = 16
}; /* bytes, and bytes for each byte of the file */

static const struct dcp_section sections[] = {
	{ "state_dict_metadata", false, dcp_paddle_meta_add_state },
	{ "storage_metadata", false, dcp_paddle_meta_add_record },
	{ "flat_mapping", true, dcp_paddle_meta_add_path },
};

static int look_at_root(void *ctx, struct dcp_pv root, struct dcp_err *err)
{
	struct dcp_paddle_meta *m = ctx;

	if (!dcp_paddle_meta_is(root, "Metadata"))
		return dcp_fail_at(
			err, -EBADMSG, 0,
			"the pickle holds %s, expected Metadata of paddle.distributed",
			dcp_pyjson_type(root));
	dcp_sections_fact(m->model_type, sizeof(m->model_type), dcp_pv_at(root, "model_type"));
	dcp_sections_fact(m->version, sizeof(m->version),
			  dcp_pv_at(root, "checkpoint_version"));
	dcp_sections_fact(m->commit, sizeof(m->commit), dcp_pv_at(root, "paddle_commit_id"));
	return 0;
}

int dcp_paddle_meta_read(struct dcp_paddle_meta *m, const struct dcp_source *src,
			 struct dcp_err *err)
{
	const struct dcp_sections all = { sections, DCP_LEN(sections), NULL, look_at_root, m };
	const uint64_t zero = 0;

	dcp_buf_add(&m->dims, &zero,
		    sizeof(zero)); /* scalars have no dims, but refer to a place */
	m->guess = 0;
	m->limit += MEMORY_BASE + MEMORY_FACTOR * src->size;
	return dcp_sections_read(&all, src, err);
}
