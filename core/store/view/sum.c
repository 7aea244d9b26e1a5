/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DCP_FILTER_SUM: the elements are sums of what several files hold, as torch adds tensors up on
 * the CPU: one after the other, each result rounded to the dtype; a mean divides the last one.
 */
#include <errno.h>
#include <unistd.h>

#include "core/base/err.h"
#include "core/model/dtype.h"
#include "core/parse/source.h"
#include "core/store/view/view_int.h"

enum { PART = 16 << 10 }; /* bytes of each term that are added up at once */

/* [at, at + size) of the term @term. */
static int read_term(const struct dcp_view *view, const struct dcp_term *term, uint64_t at,
		     void *to, size_t size, struct dcp_err *err)
{
	const char *name = dcp_files_name(view->files, term->file);
	const struct dcp_file *file;
	struct dcp_source src;
	int rc = dcp_files_hold(view->files, term->file, true, &file, err);

	if (rc < 0)
		return rc;
	rc = dcp_source_fd(file->fd, &src);
	if (rc == 0)
		rc = dcp_source_read(&src, term->off + at, to, size);
	if (rc == 0)
		rc = dcp_files_check(view->files, term->file, false);
	dcp_files_release(view->files, term->file);
	return rc < 0 ? dcp_fail_at(err, rc, term->off + at, "%s cannot be read", name) : 0;
}

int dcp_view_sum(const struct dcp_view *view, const struct dcp_source *first,
		 const struct dcp_piece *p, int fd, struct dcp_err *err)
{
	uint32_t itemsize = view->emitted.itemsize;
	enum dcp_dtype dtype = view->emitted.dtype;
	double sum[PART / sizeof(double)], term[PART / sizeof(double)];
	int rc = 0;

	if (!dcp_dtype_can_add(dtype) || p->swap)
		return dcp_fail(err, -EBADMSG, "its elements cannot be added up");
	for (uint64_t at = 0; rc == 0 && at < p->nbytes;) {
		size_t size = (size_t)DCP_MIN(p->nbytes - at, PART);

		rc = dcp_source_read(first, at, sum, size);
		for (uint32_t k = 0; rc == 0 && k < p->nmore; k++) {
			rc = read_term(view, &p->more[k], at, term, size, err);
			if (rc == 0)
				dcp_dtype_add(dtype, sum, term, size / itemsize);
		}
		if (rc == 0 && p->mean)
			dcp_dtype_divide(dtype, sum, p->nmore + 1, size / itemsize);
		if (rc == 0 && pwrite(fd, sum, size, (off_t)at) != (ssize_t)size)
			rc = dcp_fail(err, -EIO, "no memory for a sum: %m");
		at += size;
	}
	return rc;
}
