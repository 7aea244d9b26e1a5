/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compare the destinations with what views of the checkpoint show. A view reads each tensor without
 * chunks, windows or messages.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/cleanup.h"
#include "core/store/io/files.h"
#include "core/store/view/view.h"
#include "tools/load/load_int.h"

enum { BAND = 1 << 20 };

/* Compare the part from element @e on with the @n stored bytes at @stored. @expected: room to convert
 * them. -EILSEQ. */
static int compare(const struct load_want *w, uint64_t e, const void *stored, uint64_t n,
		   void *expected)
{
	const struct load_target *t = &w->target;
	struct load_target own = *t;
	uint64_t count = n / t->from;

	own.swap = 0; /* the view has swapped bytes already */
	own.stride = NULL;
	own.base = expected;
	own.plain = own.dtype == own.shown;
	load_place_run(&own, 0, stored, n);
	for (uint64_t i = 0; i < count;) {
		uint64_t run = t->stride ? DCP_MIN(count - i, t->inner - (e + i) % t->inner)
					 : count - i;

		if (memcmp(load_address(t, e + i), (char *)expected + i * t->to, run * t->to))
			return -EILSEQ;
		i += run;
	}
	return 0;
}

static int check(struct dcpload_plan *p, const struct load_want *w, void *stored,
		 void *expected, struct dcp_err *err)
{
	uint64_t step = BAND - BAND % w->target.from;
	struct dcp_view *view = NULL;
	int rc = dcp_view_open(p->ck->v, w->id, DCP_AS_RAW, &w->cut, &view, err);

	for (uint64_t at = 0; rc == 0 && at < w->stored; at += step) {
		uint64_t n = DCP_MIN(w->stored - at, step);

		rc = dcp_view_read(view, at, stored, n);
		if (rc == 0)
			rc = compare(w, at / w->target.from, stored, n, expected);
		if (rc == -EILSEQ)
			dcp_fail(err, rc, DCP_ERR_NO_OFFSET,
				 "%s: what was loaded differs from what is stored, within "
				 "elements %llu to %llu of the part",
				 w->key, (unsigned long long)(at / w->target.from),
				 (unsigned long long)((at + n) / w->target.from));
	}
	dcp_view_close(view);
	return rc;
}

int dcpload_check(struct dcpload_plan *p, struct dcpload_error *err)
{
	dcp_auto_free void *stored = malloc(BAND), *expected = malloc(BAND * 8);
	struct dcpload_error unused;
	struct dcp_err own = { 0 };
	int rc = stored && expected ? 0 : -ENOMEM;

	err = err ? err : &unused;
	*err = (struct dcpload_error){ .rank = -1 };
	for (size_t i = 0; i < p->nwant && rc == 0; i++)
		if (p->want[i].id)
			rc = p->want[i].complete
				     ? check(p, &p->want[i], stored, expected, &own)
				     : dcp_fail(&own, -ENODATA, DCP_ERR_NO_OFFSET,
						"%s is not complete", p->want[i].key);
	load_fail_err(err, rc, &own);
	return load_agree(p->ck->comm, rc, err, (int)p->ck->config.timeout_ms);
}

int dcpload_drop_caches(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct dcp_files *files = dcp_version_files(p->ck->v);
	struct dcpload_error unused;
	uint32_t last = UINT32_MAX;

	err = err ? err : &unused;
	*err = (struct dcpload_error){ .rank = -1 };
	for (size_t i = 0; i < p->nneed; i++) {
		const struct dcp_file *file;

		if (p->need[i].file == last)
			continue;
		last = p->need[i].file;
		if (dcp_files_hold(files, last, true, &file, NULL) < 0)
			continue;
		posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
		dcp_files_release(files, last);
	}
	return load_agree(p->ck->comm, 0, err, (int)p->ck->config.timeout_ms);
}
