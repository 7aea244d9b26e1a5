/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compare what landed in memory with a record of dcpfs verify.
 *
 * The digest is that of a whole tensor. Where the whole tensor is in memory as it was stored, that
 * memory is digested. A part, or numbers that were converted, are compared with what a view reads,
 * and the whole tensor of that view is digested.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cleanup.h"
#include "core/store/view/digest.h"
#include "core/store/view/view.h"
#include "tools/load/execute/execute_int.h"
#include "tools/load/execute/record.h"
#include "tools/load/load.h"
#include "tools/load/memory/memory.h"

enum { BAND = 1 << 20 };

/* Is the whole tensor there, as the view shows it? */
static bool is_whole(const struct load_want *w, const struct dcp_view *view)
{
	const struct load_target *t = &w->target;

	return dcp_view_size(view) == w->stored && w->stored == w->nbytes && !t->stride &&
	       t->dtype == t->shown;
}

static int digest_want(struct dcpload_plan *p, const struct load_want *w,
		       const struct load_line *line, void *band, struct load_rooms *rooms,
		       struct dcp_err *err)
{
	dcp_auto_view struct dcp_view *view = NULL;
	char text[DCP_DIGEST_TEXT] = "";
	const struct dcp_tensor *t;
	struct dcp_digesting *d;
	bool whole;
	int rc = dcp_view_open(p->ck->of.v, w->id, DCP_AS_RAW, NULL, &view, err);

	if (rc < 0)
		return rc;
	t = dcp_view_tensor(view);
	whole = is_whole(w, view);
	d = dcp_digest_begin(strlen(line->digest) == 64 ? DCP_DIGEST_SHA256 : DCP_DIGEST_XXH3,
			     t->dtype_name, t->ndim, t->shape);
	if (!d)
		return -ENOMEM;
	for (uint64_t at = 0, n; rc == 0 && at < dcp_view_size(view); at += n) {
		const char *from = band;

		n = DCP_MIN(dcp_view_size(view) - at, (uint64_t)BAND);
		if (whole && !w->target.on_device)
			from = (const char *)load_address(&w->target, 0) + at;
		else if (whole)
			rc = p->device->kind->fetch(
				p->device, band, (const char *)load_address(&w->target, 0) + at,
				n);
		else
			rc = dcp_view_read(view, at, band, n);
		if (rc == 0)
			dcp_digest_add(d, from, n);
	}
	dcp_digest_end(d, text);
	if (rc == 0 && strcmp(text, line->digest) != 0)
		rc = dcp_fail(err, -EILSEQ, "%s: what %s is not what was recorded", w->key,
			      whole ? "was loaded" : "is stored");
	return rc < 0 || whole ? rc : load_check_want(p, w, rooms, err);
}

int dcpload_verify(struct dcpload_plan *p, const char *path, struct dcpload_error *err)
{
	dcp_auto_free void *band = malloc(BAND);
	struct load_rooms rooms = { 0 };
	struct load_record r = { .text = NULL };
	struct dcpload_error unused;
	struct dcp_err own = { 0 };
	int rc = band ? 0 : -ENOMEM;

	err = err ? err : &unused;
	*err = (struct dcpload_error){ .rank = -1 };
	if (load_keep_up(p, err) < 0)
		return err->code;
	if (rc == 0)
		rc = load_record_read(path, &r, &own);
	for (size_t i = 0; i < p->nwant && rc == 0; i++) {
		const struct load_want *w = &p->want[i];
		const struct load_line *line;

		if (!w->id)
			continue;
		line = load_record_find(&r, w->key);
		if (!line)
			rc = dcp_fail(&own, -ENOKEY, "%s is not recorded in %s", w->key, path);
		else if (!w->complete)
			rc = dcp_fail(&own, -ENODATA, "%s is not complete", w->key);
		else
			rc = digest_want(p, w, line, band, &rooms, &own);
	}
	load_record_finish(&r);
	load_rooms_finish(&rooms);
	if (rc < 0 && !own.msg[0])
		load_device_said(p->device, rc, err);
	else
		load_fail_err(err, rc, &own);
	rc = load_agree(p->ck->comm, rc, err, (int)p->ck->config.timeout_ms);
	return load_while(err, rc, "verifying");
}
