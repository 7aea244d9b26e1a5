/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DCP_FILTER_SUM: the elements are sums of what several files hold, as torch adds tensors up on
 * the CPU: one after the other, each result rounded to the dtype; a mean divides the last one.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/err.h"
#include "core/model/dtype.h"
#include "core/origin/source.h"
#include "core/store/view/view_int.h"

enum { PART = 16 << 10 }; /* bytes of a term that are read at once */

/* Add the numbers of @term to the @nbytes at @sum. */
static int add_term(const struct dcp_view *view, const struct dcp_term *term, char *sum,
		    uint64_t nbytes, struct dcp_err *err)
{
	double part[PART / sizeof(double)];
	const struct dcp_file *file;
	struct dcp_source src;
	int rc = dcp_files_hold(view->files, term->file, true, &file, err);

	if (rc < 0)
		return rc;
	src = dcp_source_blob(&file->blob);
	for (uint64_t at = 0; rc == 0 && at < nbytes; at += PART) {
		size_t size = (size_t)DCP_MIN(nbytes - at, PART);

		rc = dcp_source_read(&src, term->off + at, part, size);
		if (rc == 0)
			dcp_dtype_add(view->emitted.dtype, sum + at, part,
				      size / view->emitted.itemsize);
	}
	if (rc == 0)
		rc = dcp_files_check(view->files, term->file, false);
	dcp_files_release(view->files, term->file);
	return rc < 0 ? dcp_fail_at(err, rc, term->off, "%s cannot be read",
				    dcp_files_name(view->files, term->file))
		      : 0;
}

int dcp_view_sum(const struct dcp_view *view, const struct dcp_source *first,
		 const struct dcp_piece *p, int fd, struct dcp_err *err)
{
	enum dcp_dtype dtype = view->emitted.dtype;
	char *sum;
	int rc;

	if (!dcp_dtype_can_add(dtype) || p->swap)
		return dcp_fail(err, -EBADMSG, "its elements cannot be added up");
	if (!p->nbytes)
		return 0;
	rc = -posix_fallocate(fd, 0, (off_t)p->nbytes);
	if (rc < 0)
		return dcp_fail(err, rc, "no memory for a sum: %s", strerror(-rc));
	sum = mmap(NULL, p->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (sum == MAP_FAILED)
		return dcp_fail(err, -errno, "cannot map a sum: %m");
	rc = dcp_source_read(first, 0, sum, p->nbytes);
	for (uint32_t k = 0; rc == 0 && k < p->nmore; k++)
		rc = add_term(view, &p->more[k], sum, p->nbytes, err);
	if (rc == 0 && p->mean)
		dcp_dtype_divide(dtype, sum, p->nmore + 1, p->nbytes / view->emitted.itemsize);
	munmap(sum, p->nbytes);
	return rc;
}
