/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources: paddle/distributed/checkpoint/metadata.py (2.6 to 3.1),
 * paddle/distributed/flex_checkpoint/dcp/metadata.py (3.2 and later).
 */

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/format/paddle/dist/meta/meta_int.h"
#include "core/parse/pyjson/pyjson.h"

bool dcp_pmeta_is(struct dcp_pv v, const char *name)
{
	return dcp_pv_is_object(v, "paddle.distributed.flex_checkpoint.dcp.metadata", name) ||
	       dcp_pv_is_object(v, "paddle.distributed.checkpoint.metadata", name);
}

/* Shared values make little text mean a lot: no honest file says more than this. */
int dcp_pmeta_check_size(const struct dcp_pmeta *m, struct dcp_err *err)
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

void dcp_pmeta_put_text(struct dcp_buf *b, const struct dcp_pnode *s)
{
	for (uint64_t i = 0; i < s->n; i++)
		dcp_buf_add(b, s->data[i] ? &s->data[i] : "\xc0\x80", s->data[i] ? 1 : 2);
}

int dcp_pmeta_key_number(struct dcp_pmeta *m, struct dcp_pv v, uint32_t *number,
			 struct dcp_err *err)
{
	static const struct dcp_pmeta_key fresh = {
		DCP_PMETA_NONE, DCP_PMETA_NONE, DCP_PMETA_NONE, DCP_PMETA_NONE, 0, 0, false
	};
	int rc;

	if (v.type != DCP_PV_STR)
		return dcp_fail(err, -EBADMSG, "a key is %s, expected str", dcp_pyjson_type(v));
	if (memchr(v.node->data, '\0', v.node->n)) {
		dcp_buf_reset(&m->scratch);
		dcp_pmeta_put_text(&m->scratch, v.node);
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

int dcp_pmeta_spoil(struct dcp_pmeta *m, uint32_t key, const struct dcp_err *why,
		    struct dcp_err *err)
{
	uint32_t number;
	int rc;

	if (dcp_pmeta_key(m, key)->error != DCP_PMETA_NONE)
		return dcp_pmeta_check_size(m, err);
	rc = dcp_intern_str(&m->errors, why->msg, &number);
	if (rc < 0)
		return -ENOMEM;
	dcp_pmeta_key(m, key)->error = number;
	return dcp_pmeta_check_size(m, err);
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
