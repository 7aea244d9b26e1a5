/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is wrong with one key is kept as its error; only what leaves no metadata at all fails.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/format/paddle/dist/meta/meta_int.h"
#include "core/parse/pyjson/pyjson.h"

enum { MAX_PATH = 256 }; /* components */

/* ---- state_dict_metadata ---- */

static int take_entry(struct dcp_pmeta *m, struct dcp_pv v, struct dcp_pmeta_entry *e,
		      struct dcp_err *why)
{
	struct dcp_pv dtype, shape;
	uint32_t ndim = 0;
	int rc, part;

	if (!dcp_pmeta_is(v, "LocalTensorMetadata"))
		return dcp_fail(why, -EBADMSG,
				"its metadata lists %s, expected LocalTensorMetadata",
				dcp_pyjson_type(v));
	rc = dcp_pmeta_take_box(m, v, false, &e->box, why);
	if (rc < 0)
		return rc;
	m->generation = (char)DCP_MAX(m->generation, dcp_pv_get(v, "global_shape") ? 'C'
						     : dcp_pv_get(v, "dtype")      ? 'B'
										   : 'A');
	/* what an older release did not write says nothing */
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
	part = dcp_pmeta_take_dims(m, &shape, "global_shape", &e->shape, &ndim, why);
	if (part == 1 || (part == 0 && ndim != e->box.ndim))
		return dcp_fail(why, -EBADMSG,
				"global_shape does not fit a piece of %" PRIu32 " dimensions",
				e->box.ndim);
	return part < 0 ? part : rc;
}

static void chain_entry(struct dcp_pmeta *m, uint32_t key, const struct dcp_pmeta_entry *e)
{
	struct dcp_pmeta_key *k = dcp_pmeta_key(m, key);
	uint32_t number = dcp_pmeta_nentries(m);

	if (dcp_buf_add(&m->entries, e, sizeof(*e)) < 0)
		return;
	if (k->entry == DCP_PMETA_NONE)
		k->entry = number;
	else
		dcp_pmeta_entry(m, k->last_entry)->next = number;
	k->last_entry = number;
}

int dcp_pmeta_add_state(void *meta, struct dcp_pv key, struct dcp_pv value, struct dcp_err *err)
{
	struct dcp_pmeta *m = meta;
	struct dcp_err why = { 0 };
	const struct dcp_pv *item;
	uint32_t k;
	size_t n = 0;
	int rc = dcp_pmeta_key_number(m, key, &k, err);

	if (rc < 0)
		return rc;
	dcp_pmeta_key(m, k)->named = true;
	if (value.type != DCP_PV_LIST && value.type != DCP_PV_TUPLE) {
		dcp_fail(&why, -EBADMSG, "its metadata is %s, expected a list",
			 dcp_pyjson_type(value));
		return dcp_pmeta_spoil(m, k, &why, err);
	}
	item = dcp_pv_items(value, &n);
	for (size_t i = 0; i < n; i++) {
		struct dcp_pmeta_entry e = { .shape = DCP_PMETA_NO_DIMS,
					     .dtype = DCP_PMETA_NONE,
					     .next = DCP_PMETA_NONE };

		rc = take_entry(m, item[i], &e, &why);
		if (rc == -ENOMEM)
			return -ENOMEM;
		if (rc < 0)
			return dcp_pmeta_spoil(m, k, &why, err);
		if (rc == 0)
			chain_entry(m, k, &e);
		rc = i % 256 == 255 ? dcp_pmeta_check_size(m, err) : 0;
		if (rc < 0)
			return rc;
	}
	return dcp_pmeta_check_size(m, err);
}

/* ---- storage_metadata ---- */

static int file_number(struct dcp_pmeta *m, struct dcp_pv v, uint32_t *number,
		       struct dcp_err *why)
{
	static const uint32_t none = DCP_PMETA_NONE;
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

static void chain_record(struct dcp_pmeta *m, struct dcp_pmeta_record *r)
{
	struct dcp_pmeta_key *k = dcp_pmeta_key(m, r->key);
	uint32_t *head = DCP_ITEMS(m->heads, uint32_t) + r->file;
	uint32_t number = dcp_pmeta_nrecords(m);

	r->next = k->record;
	r->next_in_file = *head;
	if (dcp_buf_add(&m->records, r, sizeof(*r)) < 0)
		return;
	k->record = number;
	*head = number;
}

int dcp_pmeta_add_record(void *meta, struct dcp_pv index, struct dcp_pv file,
			 struct dcp_err *err)
{
	struct dcp_pmeta *m = meta;
	struct dcp_pmeta_record r = { 0 };
	struct dcp_pv replica = dcp_pv_at(index, "replica_id");
	const struct dcp_pv *key;
	struct dcp_err why = { 0 };
	int rc;

	key = dcp_pmeta_is(index, "LocalTensorIndex") ? dcp_pv_get(index, "tensor_key") : NULL;
	if (!key)
		return dcp_fail(err, -EBADMSG,
				"storage_metadata has %s for a key, expected LocalTensorIndex",
				dcp_pyjson_type(index));
	rc = dcp_pmeta_key_number(m, *key, &r.key, err);
	if (rc < 0)
		return rc;
	rc = dcp_pmeta_take_box(m, index, true, &r.box, &why);
	if (rc == 1)
		return dcp_pmeta_check_size(m, err); /* of negative size: nothing */
	if (rc == 0 && replica.type != DCP_PV_NONE && !dcp_pv_u64(replica, &r.replica))
		rc = dcp_fail(&why, -EBADMSG, "replica_id is %s", dcp_pyjson_type(replica));
	if (rc == 0)
		rc = file_number(m, file, &r.file, &why);
	if (rc == -ENOMEM || rc == -E2BIG)
		return -ENOMEM;
	if (rc < 0)
		return dcp_pmeta_spoil(m, r.key, &why, err);
	chain_record(m, &r);
	return dcp_pmeta_check_size(m, err);
}

/* ---- flat_mapping ---- */

/* A path that is not a tuple of str and int is left out: the key stands for itself. */
int dcp_pmeta_add_path(void *meta, struct dcp_pv key, struct dcp_pv value, struct dcp_err *err)
{
	struct dcp_pmeta *m = meta;
	size_t n = 0, start = m->paths.n;
	const struct dcp_pv *item = dcp_pv_items(value, &n);
	uint32_t k;
	int rc;

	if (key.type != DCP_PV_STR || n == 0 || n > MAX_PATH ||
	    (value.type != DCP_PV_TUPLE && value.type != DCP_PV_LIST))
		return 0;
	rc = dcp_pmeta_key_number(m, key, &k, err);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < n; i++) {
		if (item[i].type == DCP_PV_STR) {
			dcp_pmeta_put_text(&m->paths, item[i].node);
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
	return dcp_pmeta_check_size(m, err);
}
