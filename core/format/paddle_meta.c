/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine hands over pairs as they are about to enter a dict; a section's dict is known by
 * the name under it on the stack and by its depth. What the hook did not see is found in the
 * root object afterwards.
 *
 * What is wrong with one key is kept as its error; only what leaves no metadata at all fails.
 *
 * Sources: paddle/distributed/checkpoint/metadata.py (2.6 to 3.1),
 * paddle/distributed/flex_checkpoint/dcp/metadata.py (3.2 and later).
 */
#include "core/format/paddle_meta.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/parse/pickle.h"
#include "core/parse/pyjson.h"
#include "core/parse/source.h"

enum { STATE, STORAGE, MAPPING };
static const char *const sections[3] = { "state_dict_metadata", "storage_metadata",
					 "flat_mapping" };

enum { MEMORY_BASE = 64 << 20, MEMORY_FACTOR = 16 }; /* bytes, and bytes a byte of file */
enum { MAX_PATH = 256 };                             /* components */

static bool is_class(struct dcp_pv v, const char *name)
{
	return dcp_pv_is_object(v, "paddle.distributed.flex_checkpoint.dcp.metadata", name) ||
	       dcp_pv_is_object(v, "paddle.distributed.checkpoint.metadata", name);
}

static int no_memory(struct dcp_err *err)
{
	return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory for metadata");
}

/* Shared values make little text mean a lot: no honest file says more than this. */
static int check_size(const struct dcp_pmeta *m, struct dcp_err *err)
{
	const struct dcp_buf *const all[] = { &m->keys,       &m->entries,    &m->records,
					      &m->heads,      &m->dims,       &m->paths,
					      &m->names.text, &m->errors.text };
	uint64_t sum = 0;

	for (size_t i = 0; i < DCP_LEN(all); i++) {
		if (dcp_buf_error(all[i]))
			return no_memory(err);
		sum += all[i]->n;
	}
	if (sum > m->limit)
		return dcp_fail(err, -E2BIG, DCP_ERR_NO_OFFSET,
				"metadata takes more than %" PRIu64 " bytes of memory",
				m->limit);
	return 0;
}

/* ---- keys ---- */

/* Text without NUL: one inside is written as C0 80, as everywhere in dcpfs. */
static void put_text(struct dcp_buf *b, const struct dcp_pnode *s)
{
	for (uint64_t i = 0; i < s->n; i++)
		dcp_buf_add(b, s->data[i] ? &s->data[i] : "\xc0\x80", s->data[i] ? 1 : 2);
}

static int key_number(struct dcp_pmeta *m, struct dcp_pv v, uint32_t *number,
		      struct dcp_err *err)
{
	static const struct dcp_pmeta_key fresh = {
		DCP_PMETA_NONE, DCP_PMETA_NONE, DCP_PMETA_NONE, DCP_PMETA_NONE, 0, 0, false
	};
	int rc;

	if (v.type != DCP_PV_STR)
		return dcp_fail(err, -EBADMSG, DCP_ERR_NO_OFFSET, "a key is %s, expected str",
				dcp_pyjson_type(v));
	if (memchr(v.node->data, '\0', v.node->n)) {
		dcp_buf_reset(&m->scratch);
		put_text(&m->scratch, v.node);
		if (dcp_buf_error(&m->scratch))
			return no_memory(err);
		rc = dcp_intern_add(&m->names, m->scratch.p, m->scratch.n, m->guess, number);
	} else {
		rc = dcp_intern_add(&m->names, v.node->data, v.node->n, m->guess, number);
	}
	if (rc < 0)
		return dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "%u keys are too many", m->names.n);
	m->guess = *number + 1;
	if (rc == 1)
		dcp_buf_add(&m->keys, &fresh, sizeof(fresh));
	return dcp_buf_error(&m->keys) ? no_memory(err) : 0;
}

/* The first thing found wrong with a key stays. */
static int spoil(struct dcp_pmeta *m, uint32_t key, const struct dcp_err *why,
		 struct dcp_err *err)
{
	uint32_t number;
	int rc;

	if (dcp_pmeta_key(m, key)->error != DCP_PMETA_NONE)
		return 0;
	rc = dcp_intern_add(&m->errors, why->msg, strlen(why->msg), 0, &number);
	if (rc < 0)
		return no_memory(err);
	dcp_pmeta_key(m, key)->error = number;
	return 0;
}

/* ---- boxes ---- */

/* A tuple or list of numbers into dims. Returns 0, 1 when one of them is negative, or -EBADMSG
 * told in @why. */
static int take_dims(struct dcp_pmeta *m, const struct dcp_pv *v, const char *what,
		     uint64_t *at, uint32_t *ndim, struct dcp_err *why)
{
	const struct dcp_pv *item;
	int negative = 0;
	size_t n = 0;

	if (!v || (v->type != DCP_PV_TUPLE && v->type != DCP_PV_LIST))
		return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET, "%s is %s, expected a tuple",
				what, v ? dcp_pyjson_type(*v) : "missing");
	item = dcp_pv_items(*v, &n);
	if (n > DCP_MAX_NDIM)
		return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
				"%s has %zu dimensions, at most %d are possible", what, n,
				DCP_MAX_NDIM);
	*at = m->dims.n / sizeof(uint64_t);
	*ndim = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		uint64_t d = 0;

		if (!dcp_pv_u64(item[i], &d)) {
			if (item[i].type != DCP_PV_INT)
				return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
						"%s holds %s, expected int", what,
						dcp_pyjson_type(item[i]));
			negative = 1;
		}
		dcp_buf_add(&m->dims, &d, sizeof(d));
	}
	return negative;
}

static bool is_absent(const struct dcp_pv *v)
{
	return !v || v->type == DCP_PV_NONE;
}

static int take_run(struct dcp_pv v, struct dcp_pmeta_box *box, struct dcp_err *why)
{
	const struct dcp_pv *flat = dcp_pv_get(v, "is_flattened"), *range, *item;
	uint64_t is = 0;
	size_t n = 0;

	if (is_absent(flat))
		return 0;
	if (!dcp_pv_u64(*flat, &is))
		return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET, "is_flattened is %s",
				dcp_pyjson_type(*flat));
	if (!is)
		return 0;
	range = dcp_pv_get(v, "flattened_range");
	item = range ? dcp_pv_items(*range, &n) : NULL;
	if (n != 2 || !dcp_pv_u64(item[0], &box->run_lo) ||
	    !dcp_pv_u64(item[1], &box->run_hi) || box->run_lo > box->run_hi)
		return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
				"a flattened piece without a flattened_range (start, stop)");
	box->flat = true;
	return 0;
}

/* @v's global_offset, local_shape (unless @bare) and run. 1: a piece of negative size. */
static int take_box(struct dcp_pmeta *m, struct dcp_pv v, bool bare, struct dcp_pmeta_box *box,
		    struct dcp_err *why)
{
	const struct dcp_pv *len = dcp_pv_get(v, "local_shape");
	uint32_t nlen = 0;
	int rc = take_dims(m, dcp_pv_get(v, "global_offset"), "global_offset", &box->lo,
			   &box->ndim, why);

	if (rc == 1)
		return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
				"a piece has a negative global_offset");
	box->len = DCP_PMETA_NO_DIMS;
	if (rc == 0 && !(bare && is_absent(len))) {
		rc = take_dims(m, len, "local_shape", &box->len, &nlen, why);
		if (rc >= 0 && nlen != box->ndim)
			return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
					"a piece has a global_offset of %" PRIu32
					" dimensions and a local_shape of %" PRIu32,
					box->ndim, nlen);
	}
	if (rc < 0)
		return rc;
	return take_run(v, box, why) < 0 ? -EBADMSG : rc;
}

/* ---- state_dict_metadata ---- */

static int take_entry(struct dcp_pmeta *m, struct dcp_pv v, struct dcp_pmeta_entry *e,
		      struct dcp_err *why)
{
	const struct dcp_pv *dtype, *shape;
	uint32_t ndim = 0;
	int rc, part;

	if (!is_class(v, "LocalTensorMetadata"))
		return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
				"its metadata lists %s, expected LocalTensorMetadata",
				dcp_pyjson_type(v));
	rc = take_box(m, v, false, &e->box, why);
	if (rc < 0)
		return rc;
	dtype = dcp_pv_get(v, "dtype");
	shape = dcp_pv_get(v, "global_shape");
	m->generation = (char)DCP_MAX(m->generation, shape ? 'C' : dtype ? 'B' : 'A');
	if (!is_absent(dtype)) {
		const char *name = dcp_pv_str(*dtype);

		if (!name)
			return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
					"dtype is %s, expected str", dcp_pyjson_type(*dtype));
		if (strncmp(name, "paddle.", 7) == 0)
			name += 7;
		part = dcp_intern_add(&m->dtypes, name, strlen(name), e->dtype, &e->dtype);
		if (part < 0)
			return part;
	}
	if (is_absent(shape))
		return rc;
	part = take_dims(m, shape, "global_shape", &e->shape, &ndim, why);
	if (part == 1 || (part == 0 && ndim != e->box.ndim))
		return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
				"global_shape does not fit a piece of %" PRIu32 " dimensions",
				e->box.ndim);
	return part < 0 ? part : rc;
}

static void chain_entry(struct dcp_pmeta *m, uint32_t key, const struct dcp_pmeta_entry *e)
{
	struct dcp_pmeta_key *k = dcp_pmeta_key(m, key);
	uint32_t number = dcp_pmeta_nentries(m);

	dcp_buf_add(&m->entries, e, sizeof(*e));
	if (dcp_buf_error(&m->entries))
		return;
	if (k->entry == DCP_PMETA_NONE)
		k->entry = number;
	else
		dcp_pmeta_entry(m, k->last_entry)->next = number;
	k->last_entry = number;
}

static int add_state(struct dcp_pmeta *m, struct dcp_pv key, struct dcp_pv value,
		     struct dcp_err *err)
{
	struct dcp_err why = { 0 };
	const struct dcp_pv *item;
	uint32_t k;
	size_t n = 0;
	int rc = key_number(m, key, &k, err);

	if (rc < 0)
		return rc;
	dcp_pmeta_key(m, k)->named = true;
	if (value.type != DCP_PV_LIST && value.type != DCP_PV_TUPLE) {
		dcp_fail(&why, -EBADMSG, DCP_ERR_NO_OFFSET,
			 "its metadata is %s, expected a list", dcp_pyjson_type(value));
		return spoil(m, k, &why, err);
	}
	item = dcp_pv_items(value, &n);
	for (size_t i = 0; i < n; i++) {
		struct dcp_pmeta_entry e = { .shape = DCP_PMETA_NO_DIMS,
					     .dtype = DCP_PMETA_NONE,
					     .next = DCP_PMETA_NONE };

		rc = take_entry(m, item[i], &e, &why);
		if (rc == -ENOMEM)
			return no_memory(err);
		if (rc < 0)
			return spoil(m, k, &why, err);
		if (rc == 0)
			chain_entry(m, k, &e);
		rc = i % 256 == 255 ? check_size(m, err) : 0;
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* ---- storage_metadata ---- */

static int file_number(struct dcp_pmeta *m, struct dcp_pv v, uint32_t *number,
		       struct dcp_err *why)
{
	static const uint32_t none = DCP_PMETA_NONE;
	const char *name = dcp_pv_str(v);
	int rc;

	if (!name || !*name || strlen(name) != v.node->n || strlen(name) > 255)
		return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
				"storage_metadata names no file for it");
	if (strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return dcp_fail(why, -EBADMSG, DCP_ERR_NO_OFFSET,
				"storage_metadata names \"%.100s\" for it, which is no name of "
				"a file in the checkpoint's directory",
				name);
	rc = dcp_intern_add(&m->files, name, strlen(name), 0, number);
	if (rc < 0)
		return rc;
	if (rc == 1)
		dcp_buf_add(&m->heads, &none, sizeof(none));
	return dcp_buf_error(&m->heads);
}

static void chain_record(struct dcp_pmeta *m, struct dcp_pmeta_record *r)
{
	struct dcp_pmeta_key *k = dcp_pmeta_key(m, r->key);
	uint32_t *head = (uint32_t *)(void *)m->heads.p + r->file;
	uint32_t number = dcp_pmeta_nrecords(m);

	r->next = k->record;
	r->next_in_file = *head;
	dcp_buf_add(&m->records, r, sizeof(*r));
	if (dcp_buf_error(&m->records))
		return;
	k->record = number;
	*head = number;
}

static int add_record(struct dcp_pmeta *m, struct dcp_pv index, struct dcp_pv file,
		      struct dcp_err *err)
{
	struct dcp_pmeta_record r = { 0 };
	const struct dcp_pv *key, *replica;
	struct dcp_err why = { 0 };
	int rc;

	key = is_class(index, "LocalTensorIndex") ? dcp_pv_get(index, "tensor_key") : NULL;
	if (!key)
		return dcp_fail(err, -EBADMSG, DCP_ERR_NO_OFFSET,
				"storage_metadata has %s for a key, expected LocalTensorIndex",
				dcp_pyjson_type(index));
	rc = key_number(m, *key, &r.key, err);
	if (rc < 0)
		return rc;
	rc = take_box(m, index, true, &r.box, &why);
	if (rc == 1)
		return 0; /* a piece of negative size: nothing */
	replica = dcp_pv_get(index, "replica_id");
	if (rc == 0 && !is_absent(replica) && !dcp_pv_u64(*replica, &r.replica))
		rc = dcp_fail(&why, -EBADMSG, DCP_ERR_NO_OFFSET, "replica_id is %s",
			      dcp_pyjson_type(*replica));
	if (rc == 0)
		rc = file_number(m, file, &r.file, &why);
	if (rc == -ENOMEM || rc == -E2BIG)
		return no_memory(err);
	if (rc < 0)
		return spoil(m, r.key, &why, err);
	chain_record(m, &r);
	return 0;
}

/* ---- flat_mapping ---- */

/* A path that is no tuple of str and int is left out: the key stands for itself. */
static int add_path(struct dcp_pmeta *m, struct dcp_pv key, struct dcp_pv value,
		    struct dcp_err *err)
{
	size_t n = 0, start = m->paths.n;
	const struct dcp_pv *item = dcp_pv_items(value, &n);
	uint32_t k;
	int rc;

	if (key.type != DCP_PV_STR || n == 0 || n > MAX_PATH ||
	    (value.type != DCP_PV_TUPLE && value.type != DCP_PV_LIST))
		return 0;
	rc = key_number(m, key, &k, err);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < n; i++) {
		if (item[i].type == DCP_PV_STR) {
			put_text(&m->paths, item[i].node);
		} else if (item[i].type == DCP_PV_INT) {
			dcp_buf_printf(&m->paths, "%" PRId64, item[i].i);
		} else {
			m->paths.n = start;
			return 0;
		}
		dcp_buf_add(&m->paths, "", 1);
	}
	dcp_pmeta_key(m, k)->path = start;
	dcp_pmeta_key(m, k)->npath = (uint32_t)n;
	return 0;
}

/* ---- the pickle ---- */

static int add_pairs(struct dcp_pmeta *m, int section, const struct dcp_pv *kv, size_t npairs,
		     struct dcp_err *err)
{
	int (*const add[3])(struct dcp_pmeta *, struct dcp_pv, struct dcp_pv,
			    struct dcp_err *) = { add_state, add_record, add_path };

	for (size_t i = 0; i < npairs; i++) {
		int rc = add[section](m, kv[2 * i], kv[2 * i + 1], err);

		if (rc < 0)
			return rc;
	}
	return check_size(m, err);
}

static int on_pairs(void *ctx, struct dcp_pv where, size_t depth, const struct dcp_pv *kv,
		    size_t npairs, struct dcp_err *err)
{
	struct dcp_pmeta *m = ctx;

	for (int i = 0; i < 3; i++) {
		int rc;

		if (!dcp_pv_is_str(where, sections[i]))
			continue;
		if (!m->depth[i])
			m->depth[i] = depth;
		if (m->depth[i] != depth)
			return 0;
		rc = add_pairs(m, i, kv, npairs, err);
		return rc < 0 ? rc : 1;
	}
	return 0;
}

static void keep_fact(char out[64], const struct dcp_pv *v)
{
	const char *text = v ? dcp_pv_str(*v) : NULL;

	if (text && strlen(text) < 64)
		memcpy(out, text, strlen(text) + 1);
}

/* Check the root's class, and take the pairs that did not come through the hook. */
static int read_root(struct dcp_pmeta *m, struct dcp_pv root, struct dcp_err *err)
{
	if (!is_class(root, "Metadata"))
		return dcp_fail(err, -EBADMSG, 0,
				"the pickle holds %s, expected Metadata of paddle.distributed",
				dcp_pyjson_type(root));
	for (int i = STATE; i <= MAPPING; i++) {
		const struct dcp_pv *v = dcp_pv_get(root, sections[i]), *kv;
		size_t n;
		int rc;

		if (i == MAPPING && is_absent(v))
			continue;
		if (!v || !dcp_pv_is_mapping(*v))
			return dcp_fail(err, -EBADMSG, DCP_ERR_NO_OFFSET,
					"%s is %s, expected a dict", sections[i],
					v ? dcp_pyjson_type(*v) : "missing");
		kv = dcp_pv_pairs(*v, &n);
		rc = add_pairs(m, i, kv, n, err);
		if (rc < 0)
			return rc;
	}
	keep_fact(m->model_type, dcp_pv_get(root, "model_type"));
	keep_fact(m->version, dcp_pv_get(root, "checkpoint_version"));
	keep_fact(m->commit, dcp_pv_get(root, "paddle_commit_id"));
	return 0;
}

int dcp_pmeta_read(struct dcp_pmeta *m, const struct dcp_source *src, struct dcp_err *err)
{
	const struct dcp_pickle_hook hook = { on_pairs, m };
	const struct dcp_pickle_opts opts = { .hook = &hook };
	const uint64_t zero = 0;
	struct dcp_pickle *pickle;
	int rc;

	dcp_buf_add(&m->dims, &zero, sizeof(zero)); /* scalars have no numbers, but a place */
	memset(m->depth, 0, sizeof(m->depth));
	m->guess = 0;
	m->limit += MEMORY_BASE + MEMORY_FACTOR * src->size;
	rc = dcp_pickle_read(src, &opts, &pickle, NULL, err);
	if (rc < 0)
		return rc;
	rc = read_root(m, dcp_pickle_root(pickle), err);
	dcp_pickle_free(pickle);
	return rc;
}

void dcp_pmeta_finish(struct dcp_pmeta *m)
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
