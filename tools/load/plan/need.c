/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds where the bytes of the wants are stored. A view of each want does it: it finds them in the
 * stored items and checks that the files are those of the index. Bytes that a view must compute
 * (compressed items, negated elements) are not in any file as they are wanted, so the view reads
 * them itself.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/store/view/view.h"
#include "tools/load/load.h"

struct locating {
	struct dcpload_plan *plan;
	struct load_want *want;
	uint64_t found; /* bytes */
	bool swap, decoded;
};

static int add_need(void *ctx, const struct dcp_strided *s, uint32_t file)
{
	struct locating *l = ctx;
	struct dcpload_plan *p = l->plan;
	struct dcp_chunk_need *need;

	if (p->nneed == l->want->first)
		l->swap = s->piece->swap;
	if (file == DCP_VIEW_NO_FILE || s->piece->swap != l->swap) {
		l->decoded = true;
		return -ECANCELED; /* the view will read all of it */
	}
	if (DCP_GROW(p->need, p->cap_need, p->nneed) < 0)
		return -ENOMEM;
	need = &p->need[p->nneed++];
	*need = (struct dcp_chunk_need){ *s, file, (uint32_t)(l->want - p->want) };
	need->s.piece = NULL;
	l->found += dcp_strided_bytes(s);
	return 0;
}

static int locate(struct dcpload_plan *p, struct load_want *w, struct dcp_err *err)
{
	struct locating l = { .plan = p, .want = w };
	dcp_auto_view struct dcp_view *view = NULL;
	int rc = dcp_view_open(p->ck->of.v, w->id, DCP_AS_RAW, &w->cut, &view, err);

	w->first = p->nneed;
	if (rc < 0)
		return rc;
	rc = dcp_view_strided(view, add_need, &l);
	if (rc == 0 &&
	    l.found <
		    w->stored) { /* the rest is zeros, which only a view can put between strides */
		w->padded = true;
		l.decoded = w->target.stride != NULL;
	}
	if (l.decoded || rc == -ENOTSUP) {
		w->through_view = true;
		p->nneed = w->first;
		rc = 0;
	}
	if (rc == 0 && l.swap && !w->through_view) {
		w->target.swap = dcp_dtype_swap_unit(w->target.dtype, w->target.from);
		w->target.plain &= w->target.swap <= 1;
	}
	w->n = p->nneed - w->first;
	return rc < 0 ? dcp_err_say(err, rc) : 0;
}

/* What a view says, without the version and the key in front of it. */
static const char *cause(const struct dcpload_plan *p, const char *key,
			 const struct dcp_err *said)
{
	char where[sizeof(said->msg)];
	size_t n;

	snprintf(where, sizeof(where), "%s: %s: ", dcp_version_name(p->ck->of.v), key);
	dcp_printable(where, sizeof(where));
	n = strlen(where);
	return strncmp(said->msg, where, n) ? said->msg : said->msg + n;
}

int load_locate(struct dcpload_plan *p, struct dcpload_error *err)
{
	int rc = 0;

	for (size_t i = 0; i < p->nwant && rc == 0; i++) {
		struct load_want *w = &p->want[i];
		struct dcp_err own = { 0 };

		if (!w->id || w->stored == 0)
			continue;
		rc = locate(p, w, &own);
		if (rc == 0)
			continue;
		if (rc == -ENOMEM || !(p->flags & DCPLOAD_PARTIAL))
			return load_fail_err(err, rc, &own);
		w->id = 0;
		p->nneed = w->first;
		w->n = 0;
		rc = load_list(p, DCPLOAD_BROKEN, w->key, "%s", cause(p, w->key, &own));
	}
	return rc < 0 ? load_fail(err, rc, "out of memory") : 0;
}
