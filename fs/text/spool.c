/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/text/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/base.h"

enum { SPOOL_BYTES = 1 << 20 };

int dcpfs_text_from_buf(struct dcpfs_text *t, struct dcp_buf *b)
{
	size_t n = b->n;
	char *p = dcp_buf_take(b);

	if (!p)
		return -ENOMEM;
	*t = (struct dcpfs_text){ .p = p, .n = n, .heap = p };
	return 0;
}

void dcpfs_text_finish(struct dcpfs_text *t)
{
	if (t->p && !t->heap)
		munmap((void *)(uintptr_t)t->p, t->n);
	free(t->heap);
	*t = (struct dcpfs_text){ 0 };
}

int dcpfs_nameless(const char *dir, const char *what)
{
	int fd = dir ? open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;

	return fd >= 0 ? fd : memfd_create(what, MFD_CLOEXEC);
}

int dcpfs_spool_flush(struct dcpfs_spool *s, bool now)
{
	size_t done = 0;

	if (s->buf.failed)
		return -ENOMEM;
	if (!now && s->buf.n < SPOOL_BYTES)
		return 0;
	if (s->fd < 0)
		s->fd = dcpfs_nameless(s->dir, "dcpfs-text");
	if (s->fd < 0)
		return -errno;
	while (done < s->buf.n) {
		ssize_t n = write(s->fd, s->buf.p + done, s->buf.n - done);

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0)
			done += (size_t)n;
	}
	s->written += done;
	dcp_buf_reset(&s->buf);
	return 0;
}

int dcpfs_spool_rows(struct dcpfs_spool *s, struct dcp_index *ix, enum dcp_row_kind kind,
		     int (*fn)(void *ctx, struct dcp_row *row), void *ctx)
{
	dcp_auto_scan struct dcp_index_scan *scan = NULL;
	struct dcp_row row;
	int rc = dcp_index_scan(ix, kind, 0, false, &scan);

	while (rc == 0 && (rc = dcp_index_scan_next(scan, &row)) > 0) {
		rc = fn(ctx, &row);
		rc = rc < 0 ? rc : dcpfs_spool_flush(s, false);
	}
	return rc;
}

int dcpfs_spool_patch(struct dcpfs_spool *s, size_t off, const void *p, size_t n)
{
	if (off >= s->written) {
		memcpy(s->buf.p + (off - s->written), p, n);
		return 0;
	}
	return pwrite(s->fd, p, n, (off_t)off) == (ssize_t)n ? 0 : -EIO;
}

int dcpfs_spool_drop(struct dcpfs_spool *s, int rc)
{
	dcp_buf_finish(&s->buf);
	dcp_close_fd(&s->fd);
	return rc;
}

int dcpfs_spool_finish(struct dcpfs_spool *s, struct dcpfs_text *out)
{
	void *map;
	int rc;

	if (s->fd < 0)
		return dcpfs_text_from_buf(out, &s->buf);
	rc = dcpfs_spool_flush(s, true);
	if (rc < 0)
		return dcpfs_spool_drop(s, rc);
	map = mmap(NULL, s->written, PROT_READ, MAP_SHARED, s->fd, 0);
	rc = map == MAP_FAILED ? -errno : 0;
	if (rc == 0)
		*out = (struct dcpfs_text){ .p = map, .n = s->written };
	return dcpfs_spool_drop(s, rc);
}
