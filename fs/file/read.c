/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "core/base/err.h"
#include "core/store/view/view.h"
#include "fs/file/file_int.h"
#include "fs/fs.h"
#include "fs/versions/versions.h"

int dcpfs_file_failed(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, int rc)
{
	struct dcp_err err = { 0 };
	const char *why = dcp_err_noted(rc);

	if (rc == -EINTR) /* the program's own wish */
		return rc;
	if (f->ver && dcpfs_opened(f->ver))
		dcp_version_check(dcpfs_opened(f->ver), &err);
	if (!*err.msg && off != DCPFS_NO_OFFSET)
		dcp_fail_at(&err, rc, off, "reading at byte %llu failed: %s",
			    (unsigned long long)off, why);
	dcpfs_file_note(fs, f, off, *err.msg ? err.msg : why);
	if (!dcpfs_file_is_gone(f))
		dcpfs_versions_suspect(fs);
	return rc;
}

/* What reading [off, off + n) gave. */
static int judge(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, size_t n, int rc)
{
	uint64_t at = __atomic_load_n(&f->failed_at, __ATOMIC_RELAXED);

	if (rc < 0)
		return dcpfs_file_failed(fs, f, off, rc);
	if (DCP_UNLIKELY(at != DCPFS_FINE) &&
	    (at == DCPFS_NO_OFFSET || (at >= off && at - off < n)))
		dcpfs_file_healed(fs, f, off, n);
	return rc;
}

/* Did the version leave the list because its files were written over? */
static bool is_rewritten(const struct dcpfs_file *f)
{
	return f->ver && __atomic_load_n(&f->ver->rewritten, __ATOMIC_ACQUIRE);
}

/* Of a file that is no model: 1: the reply points into it; 0: it does not need it any more. */
static int answer(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, size_t n,
		  struct dcp_reply *r)
{
	int rc = f->content == DCPFS_VIEW ? dcp_view_answer(f->view, off, n, r)
					  : dcp_reply_point(r, f->text.p + off, n);

	return judge(fs, f, off, n, rc);
}

static int answer_part(struct dcpfs *fs, struct dcpfs_file *f, const struct dcpfs_model_part *p,
		       uint64_t off, size_t n, struct dcpfs_reply *r)
{
	struct dcpfs_file *part;
	int rc = dcpfs_file_part(fs, f, p, &part);

	if (rc < 0)
		return rc;
	rc = answer(fs, part, off, n, &r->bytes);
	if (rc > 0)
		r->part[r->nparts++] = part;
	else
		dcpfs_part_put(fs, part);
	return DCP_MIN(rc, 0);
}

static int answer_model(struct dcpfs *fs, struct dcpfs_file *f, uint64_t off, size_t n,
			struct dcpfs_reply *r)
{
	int rc = 0;

	while (n && rc == 0) {
		uint64_t inside, left;
		const struct dcpfs_model_part *part =
			dcpfs_model_at(&f->model, off, &inside, &left);
		size_t now = DCP_MIN(n, left);

		r->bytes.copy = r->nparts == DCP_LEN(r->part);
		if (part)
			rc = answer_part(fs, f, part, inside, now, r);
		else
			rc = dcp_reply_point(&r->bytes, f->model.header.p + off, now);
		off += now;
		n -= now;
	}
	return rc;
}

int dcpfs_file_answer(struct dcpfs *fs, struct dcpfs_file *f, uint64_t off, size_t n,
		      struct dcpfs_reply *r)
{
	r->nparts = 0;
	if (is_rewritten(f))
		return -ESTALE;
	if (f->content == DCPFS_PARTS)
		return answer_model(fs, f, off, n, r); /* its parts note what fails */
	return DCP_MIN(answer(fs, f, off, n, &r->bytes), 0);
}

void dcpfs_reply_failed(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off,
			const struct dcpfs_reply *r)
{
	if (f->content != DCPFS_PARTS)
		dcpfs_file_failed(fs, f, off, -EIO);
	for (uint32_t i = 0; i < r->nparts; i++)
		if (dcp_view_check(r->part[i]->view) < 0)
			dcpfs_file_failed(fs, r->part[i], DCPFS_NO_OFFSET, -EIO);
}

void dcpfs_reply_finish(struct dcpfs *fs, struct dcpfs_reply *r)
{
	dcp_reply_finish(&r->bytes);
	while (r->nparts)
		dcpfs_part_put(fs, r->part[--r->nparts]);
}

static void *given(void *buf, size_t size)
{
	(void)size;
	return buf;
}

/* For copies of whole files (fs/file/hot.h). */
static int read_bytes(struct dcpfs *fs, struct dcpfs_file *f, uint64_t off, void *buf, size_t n)
{
	struct dcpfs_reply r;
	int rc;

	dcp_reply_begin(&r.bytes, n, given, buf);
	r.bytes.copy = true;
	rc = dcpfs_file_answer(fs, f, off, n, &r);
	dcpfs_reply_finish(fs, &r);
	return rc;
}

int dcpfs_file_check(struct dcpfs *fs, const struct dcpfs_file *f)
{
	int rc = f->content == DCPFS_VIEW ? dcp_view_check(f->view) : 0;

	if (dcpfs_file_is_gone(f))
		return -ESTALE;
	return rc < 0 ? dcpfs_file_failed(fs, f, DCPFS_NO_OFFSET, rc) : 0;
}
int dcpfs_file_backing(struct dcpfs *fs, struct dcpfs_file *f)
{
	return f->ver ? dcpfs_hot_backing(fs->hot, fs, f, dcpfs_file_size(f), read_bytes,
					  &f->hot)
		      : 0;
}
