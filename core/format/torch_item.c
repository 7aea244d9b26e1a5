/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/torch_item.h"

#include <errno.h>
#include <unistd.h>

#include "core/base/ckd.h"
#include "core/base/err.h"
#include "core/parse/dir.h"
#include "core/parse/inflate.h"

void dcp_titem_files_init(struct dcp_titem_files *f, const struct dcp_dir *dir)
{
	*f = (struct dcp_titem_files){ .dir = dir };
}

void dcp_titem_files_finish(struct dcp_titem_files *f)
{
	for (int i = 0; i < DCP_TITEM_SLOTS; i++)
		if (f->slot[i].number)
			close(f->slot[i].fd);
	*f = (struct dcp_titem_files){ 0 };
}

static int get_fd(struct dcp_titem_files *f, uint32_t number, const char *name, int *fd,
		  struct dcp_err *err)
{
	int i = (int)(number % DCP_TITEM_SLOTS), rc;

	if (f->slot[i].number == 1 + (uint64_t)number) {
		*fd = f->slot[i].fd;
		return 0;
	}
	if (!f->dir)
		return dcp_fail(err, -ENOENT, DCP_ERR_NO_OFFSET, "%s: no directory to look in",
				name);
	rc = dcp_open_beneath(f->dir->fd, name, fd, NULL, err);
	if (rc < 0)
		return rc;
	if (f->slot[i].number)
		close(f->slot[i].fd);
	f->slot[i].number = 1 + (uint64_t)number;
	f->slot[i].fd = *fd;
	return 0;
}

int dcp_titem_open(struct dcp_titem_files *f, uint32_t number, const char *name, uint64_t off,
		   uint64_t nbytes, enum dcp_filter filter, uint64_t limit,
		   struct dcp_titem *out, struct dcp_err *err)
{
	int fd, rc;

	*out = (struct dcp_titem){ 0 };
	rc = get_fd(f, number, name, &fd, err);
	if (rc < 0)
		return rc;
	rc = dcp_source_fd(fd, &out->file);
	if (rc < 0)
		return dcp_fail(err, rc, DCP_ERR_NO_OFFSET, "%s: cannot be read", name);
	if (!dcp_range_ok(off, nbytes, out->file.size))
		return dcp_fail(err, -EBADMSG, off,
				"%s: item of %llu bytes at %llu ends past the end of the file, "
				"which has %llu",
				name, (unsigned long long)nbytes, (unsigned long long)off,
				(unsigned long long)out->file.size);
	out->window = dcp_source_window(&out->file, off, nbytes);
	out->src = out->window;
	if (filter == DCP_FILTER_NONE)
		return 0;
	rc = dcp_inflate_zstd(&out->window, &out->decoded, limit, err);
	if (rc < 0)
		return dcp_err_where(err, rc, "%s at byte %llu", name, (unsigned long long)off);
	out->src = dcp_source_mem(out->decoded.p, out->decoded.n);
	return 0;
}

void dcp_titem_finish(struct dcp_titem *item)
{
	dcp_buf_finish(&item->decoded);
}
