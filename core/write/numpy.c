/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numpy's own files. npy: a directory with an .npy for each tensor, called as in a mount. npz:
 * an archive of them, as np.savez writes it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/model/name.h"
#include "core/parse/numpy/numpy.h"
#include "core/write/write.h"
#include "core/write/zip.h"

static const char *refuses(const struct dcp_write_tensor *t)
{
	dcp_auto_buf struct dcp_buf head = DCP_BUF_INIT;

	if (dcp_npy_header_stored(&head, t->dtype, 0, NULL) == -ENOTSUP)
		return "numpy has no such numbers: give --dtype F32";
	return *t->key ? NULL : "its key is empty";
}

/* ---- .npy ---- */

static const char *refuses_npy(const struct dcp_write_tensor *t)
{
	char name[DCP_NAME_MAX + 1];

	dcp_name_from_key(t->key, false, name);
	return strlen(name) == DCP_NAME_MAX ? "its key is too long for a file's name"
					    : refuses(t);
}

static int put_array(const struct dcp_write_tensor *t, struct dcp_writer *w)
{
	dcp_auto_buf struct dcp_buf head = DCP_BUF_INIT;
	int rc = dcp_npy_header_stored(&head, t->dtype, t->ndim, t->shape);

	if (rc < 0)
		return rc;
	dcp_writer_bytes(w, head.p, head.n);
	dcp_writer_part(w, (size_t)(t - w->set->tensors), 0);
	return 0;
}

static int plan(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		struct dcp_writer *w, struct dcp_err *err)
{
	char name[DCP_NAME_MAX + 1], file[DCP_NAME_MAX + sizeof(".npy")];
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < set->ntensors; i++) {
		dcp_name_from_key(set->tensors[i].key, false, name);
		snprintf(file, sizeof(file), "%s.npy", name);
		dcp_writer_file(w, file, false);
		rc = put_array(&set->tensors[i], w);
	}
	return rc;
}

const struct dcp_write_format dcp_write_npy = {
	.name = "npy",
	.what = "a directory with an .npy for each tensor",
	.refuses = refuses_npy,
	.plan = plan,
};

/* ---- .npz ---- */

static int put_member(const struct dcp_write_tensor *t, struct dcp_zipper *z)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT, head = DCP_BUF_INIT;
	int rc = dcp_npy_header_stored(&head, t->dtype, t->ndim, t->shape);

	if (rc < 0)
		return rc;
	if (dcp_buf_printf(&name, "%s.npy", t->key) < 0)
		return -ENOMEM;
	dcp_zipper_part(z, name.p, head.p, head.n, (size_t)(t - z->w->set->tensors), 0);
	return 0;
}

static int plan_npz(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
		    struct dcp_writer *w, struct dcp_err *err)
{
	struct dcp_zipper z;
	int rc = 0, end;

	if (!opts->name)
		dcp_writer_extras(w);
	dcp_writer_file(w, opts->name ? opts->name : "weights.npz", true);
	dcp_zipper_begin(&z, w, DCP_ZIP_PYTHON);
	for (size_t i = 0; rc == 0 && i < set->ntensors; i++)
		rc = put_member(&set->tensors[i], &z);
	end = dcp_zipper_end(&z);
	if (rc == 0 && end == -E2BIG)
		return dcp_fail(
			err, end,
			"a key is longer than the 65535 bytes that an archive can name");
	return rc < 0 ? rc : end;
}

static const char *const extensions[] = { ".npz", NULL };

const struct dcp_write_format dcp_write_npz = {
	.name = "npz",
	.what = "numpy's archive of arrays: one .npz, or a directory with weights.npz",
	.extensions = extensions,
	.takes = DCP_WRITE_EXTRAS,
	.refuses = refuses,
	.plan = plan_npz,
};
