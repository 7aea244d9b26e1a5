/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/gather/places.h"

#include <errno.h>
#include <string.h>

#include "core/model/tensor.h"

static void pack(struct dcp_buf *place, const struct dcp_tensor *t)
{
	dcp_buf_reset(place);
	dcp_buf_str(place, t->dtype_name);
	dcp_buf_varint(place, t->ndim);
	for (uint32_t k = 0; k < t->ndim; k++)
		dcp_buf_varint(place, t->shape[k]);
	for (size_t i = 0; i < t->npieces; i++) {
		const struct dcp_piece *p = &t->pieces[i];

		dcp_buf_varint(place, p->file);
		dcp_buf_varint(place, p->off);
		dcp_buf_varint(place, p->item_lo);
		dcp_buf_varint(place, p->item_n);
		dcp_buf_varint(place, p->run_lo);
		dcp_buf_varint(place, p->run_n);
		dcp_buf_varint(place, p->enc);
		dcp_buf_varint(place, p->filter);
		dcp_buf_varint(place, p->swap);
		dcp_buf_varint(place, p->stride != NULL); /* row-major is not strides of 0 */
		for (uint32_t k = 0; k < t->ndim; k++) {
			dcp_buf_varint(place, p->lo[k]);
			dcp_buf_varint(place, p->len[k]);
			dcp_buf_varint(place, p->stride ? p->stride[k] : 0);
		}
	}
}

int dcp_places_find(struct dcp_places *p, struct dcp_tensor *t)
{
	uint32_t number;
	size_t at;
	int rc;

	pack(&p->place, t);
	if (dcp_buf_error(&p->place))
		return -ENOMEM;
	rc = dcp_intern_add(&p->seen, p->place.p, p->place.n, DCP_INTERN_NONE, &number);
	if (rc < 0)
		return rc;
	if (rc == 0) {
		memcpy(&at, p->key_off.p + number * sizeof(at), sizeof(at));
		t->alias_of = p->keys.p + at;
		return 0;
	}
	at = p->keys.n;
	dcp_buf_add(&p->keys, t->key, strlen(t->key) + 1);
	dcp_buf_add(&p->key_off, &at, sizeof(at));
	return dcp_buf_error(&p->keys) || dcp_buf_error(&p->key_off) ? -ENOMEM : 0;
}

void dcp_places_finish(struct dcp_places *p)
{
	dcp_buf_finish(&p->place);
	dcp_intern_finish(&p->seen);
	dcp_buf_finish(&p->keys);
	dcp_buf_finish(&p->key_off);
}
