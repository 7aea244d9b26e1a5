/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compare the destinations with what views of the checkpoint show. A view reads each tensor without
 * chunks, windows or messages.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/cleanup.h"
#include "core/store/io/files.h"
#include "core/store/view/view.h"
#include "tools/load/execute/execute_int.h"
#include "tools/load/load.h"
#include "tools/load/memory/memory.h"

enum { BAND = 1 << 20 };

/*
 * Compare @n bytes at @at of a destination. A device's are copied to @got, a buffer for BAND bytes,
 * first.
 */
static int differs(const struct dcpload_plan *p, const struct load_target *t, const char *at,
		   const char *expected, uint64_t n, void *got)
{
	struct load_device *d = p->device;
	int rc = 0;

	if (!t->on_device)
		return memcmp(at, expected, n) ? -EILSEQ : 0;
	for (uint64_t i = 0, now; i < n && rc == 0; i += now) {
		now = DCP_MIN(n - i, (uint64_t)BAND);
		rc = d->kind->fetch(d, got, at + i, now);
		if (rc == 0 && memcmp(got, expected + i, now))
			rc = -EILSEQ;
	}
	return rc;
}

/* Compare the part from element @e on with the @n bytes in room->stored. -EILSEQ. */
static int compare(const struct dcpload_plan *p, const struct load_want *w, uint64_t e,
		   uint64_t n, const struct load_rooms *room)
{
	const struct load_target *t = &w->target;
	struct load_target own = *t;
	uint64_t count = n / t->from;

	own.swap = 0; /* the view has swapped bytes already */
	own.stride = NULL;
	own.base = room->expected;
	own.plain = own.dtype == own.shown;
	load_place_run(&own, 0, room->stored, n);
	for (uint64_t i = 0; i < count;) {
		uint64_t run = t->stride ? DCP_MIN(count - i, t->inner - (e + i) % t->inner)
					 : count - i;

		int rc = differs(p, t, load_address(t, e + i), own.base + i * t->to,
				 run * t->to, room->got);

		if (rc < 0)
			return rc;
		i += run;
	}
	return 0;
}

/* Of BAND bytes, and one for what they are converted to. */
static int make_rooms(struct load_rooms *r)
{
	r->stored = r->stored ? r->stored : malloc(BAND);
	r->got = r->got ? r->got : malloc(BAND);
	r->expected = r->expected ? r->expected : malloc(BAND * 8);
	return r->stored && r->got && r->expected ? 0 : -ENOMEM;
}

void load_rooms_finish(struct load_rooms *r)
{
	free(r->stored);
	free(r->got);
	free(r->expected);
}

int load_check_want(struct dcpload_plan *p, const struct load_want *w, struct load_rooms *room,
		    struct dcp_err *err)
{
	uint64_t step = BAND - BAND % w->target.from;
	dcp_auto_view struct dcp_view *view = NULL;
	int rc = make_rooms(room);

	if (rc == 0)
		rc = dcp_view_open(p->ck->of.v, w->id, DCP_AS_RAW, &w->cut, &view, err);

	for (uint64_t at = 0; rc == 0 && at < w->stored; at += step) {
		uint64_t n = DCP_MIN(w->stored - at, step);

		rc = dcp_view_read(view, at, room->stored, n);
		if (rc == 0)
			rc = compare(p, w, at / w->target.from, n, room);
		if (rc == -EILSEQ)
			dcp_fail(err, rc,
				 "%s: what was loaded differs from what is stored, within "
				 "elements %llu to %llu of the part",
				 w->key, (unsigned long long)(at / w->target.from),
				 (unsigned long long)((at + n) / w->target.from));
	}
	return rc;
}

int dcpload_check(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct load_rooms room = { 0 };
	struct dcpload_error unused;
	struct dcp_err own = { 0 };
	int rc = 0;

	err = err ? err : &unused;
	*err = (struct dcpload_error){ .rank = -1 };
	if (load_keep_up(p, err) < 0)
		return err->code;
	for (size_t i = 0; i < p->nwant && rc == 0; i++)
		if (p->want[i].id)
			rc = p->want[i].complete
				     ? load_check_want(p, &p->want[i], &room, &own)
				     : dcp_fail(&own, -ENODATA, "%s is not complete",
						p->want[i].key);
	load_rooms_finish(&room);
	if (rc < 0 && !own.msg[0])
		load_device_said(p->device, rc, err);
	else
		load_fail_err(err, rc, &own);
	rc = load_agree(p->ck->comm, rc, err, (int)p->ck->config.timeout_ms);
	return load_while(err, rc, "checking");
}

int dcpload_drop_caches(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct dcp_files *files = dcp_version_files(p->ck->of.v);
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
		if (file->map && file->fd >= 0) /* what is mapped and was touched stays, too */
			madvise((void *)(uintptr_t)file->map, file->size, MADV_DONTNEED);
		fdatasync(file->fd); /* what is not written yet stays */
		/*
		 * Linux keeps pages that were just looked at the first time, and only marks them.
		 */
		for (int k = 0; k < 2; k++)
			posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
		dcp_files_release(files, last);
	}
	return load_agree(p->ck->comm, 0, err, (int)p->ck->config.timeout_ms);
}
