/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "core/base/err.h"
#include "core/store/view.h"
#include "fs/file_int.h"
#include "fs/fs.h"
#include "fs/ino.h"
#include "fs/versions.h"

int dcpfs_file_failed(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, int rc)
{
	struct dcp_err err = { 0 };

	if (f->ver && f->ver->v)
		dcp_version_check(f->ver->v, &err);
	if (!*err.msg)
		dcp_fail(&err, rc, off, "reading at byte %llu failed: %s",
			 (unsigned long long)off, strerror(-rc));
	dcpfs_file_note(fs, f, err.msg);
	return rc;
}

/* The file of one part of a model, counted. */
static int part_file(struct dcpfs *fs, const struct dcpfs_file *f,
		     const struct dcpfs_model_part *part, struct dcpfs_file **out)
{
	uint64_t ino =
		dcpfs_ino_pack(dcpfs_ino_unpack(f->ino).slot, DCPFS_RAW, (uint64_t)part->row);

	return dcpfs_file_get(fs, ino, out, NULL);
}

/* Pointers when all that is asked for lies in one part. */
static int model_iov(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, size_t n,
		     struct iovec *iov, int max, struct dcpfs_file **lent)
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
	rc = part_file(fs, f, part, lent);
	return rc < 0 ? rc : dcpfs_file_iov(fs, *lent, inside, n, iov, max, NULL);
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
		   struct iovec *iov, int max, struct dcpfs_file **lent)
{
	int rc = 0;

	if (dcpfs_file_is_gone(f))
		return -ESTALE;
	if (f->view) {
		rc = dcp_view_iov(f->view, off, n, iov, max);
	} else if (f->model.size) {
		return lent ? model_iov(fs, f, off, n, iov, max, lent) : 0;
	} else if (max > 0 && f->text.p) {
		iov[0] = (struct iovec){ (void *)(uintptr_t)(f->text.p + off), n };
		rc = 1;
	}
	return rc < 0 ? dcpfs_file_failed(fs, f, off, rc) : rc;
}

int dcpfs_file_read(struct dcpfs *fs, const struct dcpfs_file *f, uint64_t off, void *buf,
		    size_t n)
{
	int rc = 0;

	if (dcpfs_file_is_gone(f))
		return -ESTALE;
	if (f->model.size)
		return model_read(fs, f, off, buf, n); /* its parts note what fails */
	if (f->view)
		rc = dcp_view_read(f->view, off, buf, n);
	else
		memcpy(buf, f->text.p + off, n);
	return rc < 0 ? dcpfs_file_failed(fs, f, off, rc) : rc;
}
