/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "core/base/err.h"
#include "core/store/view/view.h"
#include "fs/file/file_int.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/versions/versions.h"

int dcpfs_file_failed(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, int rc)
{
	struct dcp_err err = { 0 };

	if (f->ver && dcpfs_opened(f->ver))
		dcp_version_check(dcpfs_opened(f->ver), &err);
	if (!*err.msg && off != DCPFS_NO_OFFSET)
		dcp_fail_at(&err, rc, off, "reading at byte %llu failed: %s",
			    (unsigned long long)off, strerror(-rc));
	dcpfs_file_note(fs, f, off, *err.msg ? err.msg : strerror(-rc));
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

static int view_iov(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, size_t n,
		    struct iovec *iov, int max, struct dcpfs_lent *lent)
{
	int rc = dcp_view_iov(f->view, off, n, iov, max, &lent->files);

	return rc == 0 ? 0 : judge(fs, f, off, n, rc); /* 0: read() will find out */
}

/* A reference to the file of one part of a model. */
static int part_file(struct dcpfs *fs, const struct dcpfs_file *f,
		     const struct dcpfs_model_part *part, struct dcpfs_file **out)
{
	uint64_t ino =
		dcpfs_ino_pack(dcpfs_ino_unpack(f->ino).slot, DCPFS_RAW, (uint64_t)part->row);

	return dcpfs_file_of(fs, f->ver, ino, out);
}

/* Pointers when all that is asked for lies in one part. */
static int model_iov(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, size_t n,
		     struct iovec *iov, int max, struct dcpfs_lent *lent)
{
	uint64_t inside, left;
	const struct dcpfs_model_part *part = dcpfs_model_at(&f->model, off, &inside, &left);
	int rc;

	if (n > left || max < 1)
		return 0;
	if (!part) {
		iov[0] = (struct iovec){ (void *)(uintptr_t)(f->model.header.p + off), n };
		return 1;
	}
	rc = part_file(fs, f, part, &lent->part);
	return rc < 0 ? rc : view_iov(fs, lent->part, inside, n, iov, max, lent);
}

static int model_read(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, char *buf,
		      size_t n)
{
	while (n) {
		uint64_t inside, left;
		const struct dcpfs_model_part *part =
			dcpfs_model_at(&f->model, off, &inside, &left);
		size_t now = DCP_MIN(n, left);
		struct dcpfs_file *of = NULL;
		int rc = 0;

		if (!part)
			memcpy(buf, f->model.header.p + off, now);
		else
			rc = part_file(fs, f, part, &of);
		if (of) {
			rc = dcpfs_file_read(fs, of, inside, buf, now);
			dcpfs_file_put(fs, of);
		}
		if (rc < 0)
			return rc;
		buf += now;
		off += now;
		n -= now;
	}
	return 0;
}

int dcpfs_file_iov(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, size_t n,
		   struct iovec *iov, int max, struct dcpfs_lent *lent)
{
	lent->part = NULL;
	lent->files.n = 0;
	if (is_rewritten(f))
		return -ESTALE;
	if (f->content == DCPFS_VIEW)
		return view_iov(fs, f, off, n, iov, max, lent);
	if (f->content == DCPFS_PARTS)
		return model_iov(fs, f, off, n, iov, max, lent);
	if (max < 1 || !f->text.p)
		return 0;
	iov[0] = (struct iovec){ (void *)(uintptr_t)(f->text.p + off), n };
	return 1;
}

void dcpfs_file_return(struct dcpfs *fs, const struct dcpfs_file *f, struct dcpfs_lent *lent)
{
	if (lent->files.n)
		dcp_view_return(lent->part ? lent->part->view : f->view, &lent->files);
	if (lent->part)
		dcpfs_file_put(fs, lent->part);
}

int dcpfs_file_read(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, void *buf,
		    size_t n)
{
	int rc = 0;

	if (is_rewritten(f))
		return -ESTALE;
	if (f->content == DCPFS_PARTS)
		return model_read(fs, f, off, buf, n); /* its parts note what fails */
	if (f->content == DCPFS_VIEW)
		rc = dcp_view_read(f->view, off, buf, n);
	else
		memcpy(buf, f->text.p + off, n);
	return judge(fs, f, off, n, rc);
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
	return f->ver ? dcpfs_hot_backing(fs->hot, fs, f, dcpfs_file_size(f), dcpfs_file_read,
					  &f->hot)
		      : 0;
}
