/* SPDX-License-Identifier: Apache-2.0 */
/* numpy's own files. npy: a directory with an .npy for each tensor, named as in a mount. npz: an
 * archive of them, as np.savez writes it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/model/name.h"
#include "core/parse/numpy/numpy.h"
#include "core/write/pickle.h"
#include "core/write/write.h"

static const char *refuses_tensor(const struct dcp_write_tensor *t)
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
					    : refuses_tensor(t);
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

static int plan_files(const struct dcp_write_set *set, const struct dcp_write_opts *opts,
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
	.plan = plan_files,
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
	.refuses = refuses_tensor,
	.plan = plan_npz,
};

/* "<f4" */
static const char *code_of(enum dcp_dtype dtype)
{
	const struct dcp_dtype_info *info = dcp_dtype_info(dtype);

	if (dtype == DCP_DTYPE_BF16)
		return "<u2";
	if (dtype == DCP_DTYPE_F8_E4M3 || dtype == DCP_DTYPE_F8_E5M2)
		return "|i1";
	return info->widened ? NULL : info->npy;
}

bool dcp_ndarray_can(enum dcp_dtype dtype)
{
	return code_of(dtype) && dtype != DCP_DTYPE_U16 && dtype != DCP_DTYPE_U32 &&
	       dtype != DCP_DTYPE_U64;
}

/* numpy.dtype('f4', False, True) and its state. */
uint32_t dcp_ndarray_put_dtype(struct dcp_pickler *p, char order, const char *code)
{
	uint32_t memo;

	dcp_pickler_put(p, "B R c (3 w 0 1", "numpy", "dtype", code);
	memo = dcp_pickler_last(p);
	dcp_pickler_put(p, "(8 i w N N N i i i", 3,
			order == '<'   ? "<"
			: order == '>' ? ">"
				       : "|",
			-1, -1, 0);
	return memo;
}

static void put_dtype(struct dcp_ndarrays *a, enum dcp_dtype dtype)
{
	const char *code = code_of(dtype);

	if (a->dtype[dtype].known)
		dcp_pickler_get(a->p, a->dtype[dtype].memo);
	else
		a->dtype[dtype].memo = dcp_ndarray_put_dtype(a->p, *code, code + 1);
	a->dtype[dtype].known = true;
}

/* _reconstruct(ndarray, (0,), b'b') */
static void put_empty(struct dcp_ndarrays *a)
{
	struct dcp_pickler *p = a->p;

	dcp_pickler_put(p, "R c (3 c (1 i", "numpy.core.multiarray", "_reconstruct", "numpy",
			"ndarray", 0);
	if (a->b.known) {
		dcp_pickler_get(p, a->b.memo);
		return;
	}
	dcp_pickler_bytes(p, "b", 1);
	a->b.known = true;
	a->b.memo = dcp_pickler_last(p) - 2; /* then came the tuple and the result */
}

/* _codecs.encode("...", "latin1"); protocol 2 has no bytes. */
static int put_text(struct dcp_ndarrays *a, const struct dcp_ndarray_of *of,
		    struct dcp_err *err)
{
	dcp_auto_buf struct dcp_buf lengths = DCP_BUF_INIT;
	struct dcp_pickler *p = a->p;
	uint64_t total;
	int rc = dcp_writer_measure(a->w, of->tensor, of->part, of->off, of->nbytes, &lengths,
				    &total, err);

	if (rc < 0)
		return rc;
	dcp_pickler_put(p, "R c (2", "_codecs", "encode");
	dcp_pickler_text_open(p, total);
	dcp_pickler_flush(p, a->w);
	dcp_writer_text(a->w, of->tensor, of->part, of->off, of->nbytes, &lengths);
	dcp_pickler_bytes_close(p);
	dcp_pickler_word(p, "latin1");
	return 0;
}

static int put_elements(struct dcp_ndarrays *a, const struct dcp_ndarray_of *of,
			struct dcp_err *err)
{
	struct dcp_pickler *p = a->p;

	if (of->nbytes == 0)
		dcp_pickler_bytes(p, "", 0);
	else if (p->protocol < 3)
		return put_text(a, of, err);
	else {
		dcp_pickler_bytes_open(p, of->nbytes);
		dcp_pickler_flush(p, a->w);
		dcp_writer_slice(a->w, of->tensor, of->part, of->off, of->nbytes);
		dcp_pickler_bytes_close(p);
	}
	return 0;
}

void dcp_ndarray_open(struct dcp_ndarrays *a, uint32_t ndim, const uint64_t *shape)
{
	struct dcp_pickler *p = a->p;

	dcp_pickler_open(p, DCP_PICKLE_BUILD, 0);
	put_empty(a);
	dcp_pickler_put(p, "(5 i v", 1, ndim, shape);
}

int dcp_ndarray_put(struct dcp_ndarrays *a, const struct dcp_ndarray_of *of,
		    struct dcp_err *err)
{
	dcp_ndarray_open(a, of->ndim, of->shape);
	put_dtype(a, of->dtype);
	dcp_pickler_bool(a->p, false);
	return put_elements(a, of, err);
}

int dcp_ndarray_put_part(struct dcp_ndarrays *a, size_t tensor, size_t part,
			 struct dcp_err *err)
{
	const struct dcp_write_tensor *t = &a->w->set->tensors[tensor];
	const struct dcp_write_part *of = &t->parts[part];

	return dcp_ndarray_put(a,
			       &(struct dcp_ndarray_of){
				       .dtype = t->dtype,
				       .ndim = of->ndim,
				       .shape = of->shape,
				       .tensor = tensor,
				       .part = part,
				       .nbytes = dcp_write_part_bytes(t, of),
			       },
			       err);
}
