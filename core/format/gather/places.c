/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/gather/places.h"

#include <errno.h>
#include <string.h>

int dcp_places_find(struct dcp_places *p, const char *key, const char **alias)
{
	uint32_t number;
	size_t at;
	int rc;

	if (dcp_buf_error(&p->place))
		return -ENOMEM;
	rc = dcp_intern_add(&p->seen, p->place.p, p->place.n, DCP_INTERN_NONE, &number);
	if (rc < 0)
		return rc;
	if (rc == 0) {
		memcpy(&at, p->key_off.p + number * sizeof(at), sizeof(at));
		*alias = p->keys.p + at;
		return 0;
	}
	at = p->keys.n;
	dcp_buf_add(&p->keys, key, strlen(key) + 1);
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
