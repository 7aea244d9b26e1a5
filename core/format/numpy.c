/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numpy's own files, as numpy, JAX programs and MLX write them.
 *
 *	step_100.npz             np.savez: a ZIP archive of arrays; a version by itself
 *	weights.npz config.json  a file with the name of a model: one version with all .npz
 *	                         and .npy beside it; weights.00.npz, ... are parts of a model
 *	a.npy b%2Fw.npy          np.save, one array each: all in a directory are one version; %2F
 *	                         is a slash of the key, as in a mount
 *
 * Stored members are read where they lie, deflated ones (np.savez_compressed) are decoded when
 * they are opened. Arrays of Python objects and of records are emitted as errors: nothing is
 * unpickled.
 *
 * Users also keep data and plots in numpy's files. So these files count only if no other family has
 * a file or a version; a file without the name of a model counts only if no directory lies beside
 * it.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/formats.h"
#include "core/format/weights/name.h"
#include "core/model/name.h"
#include "core/model/tensor.h"
#include "core/origin/archive/archive.h"
#include "core/origin/dir/dir.h"
#include "core/parse/numpy/numpy.h"

static const size_t arena_limit = 1u << 30; /* names of the members of one archive */

/* ---- names ---- */

static bool is_npz(const char *name)
{
	return *name != '.' && dcp_has_extension(name, ".npz") && strlen(name) < DCP_GROUP_MAX;
}

static bool is_npy(const char *name)
{
	return *name != '.' && dcp_has_extension(name, ".npy") && strlen(name) < DCP_GROUP_MAX;
}

static bool is_array(void *ctx, const char *name)
{
	return is_npz(name) || is_npy(name);
}

/* "weights.00.npz" -> "weights": the length of the name that its parts share. */
static size_t stem_length(const char *name)
{
	size_t n = strlen(name) - strlen(".npz"), digits = 0;

	while (digits < n && isdigit((unsigned char)name[n - digits - 1]))
		digits++;
	return digits && digits + 1 < n && name[n - digits - 1] == '.' ? n - digits - 1 : n;
}

static bool is_model(const char *name)
{
	static const char *const known[] = { "weights", "model", "params" };
	size_t n = stem_length(name);

	for (size_t i = 0; i < DCP_LEN(known); i++)
		if (n == strlen(known[i]) && memcmp(name, known[i], n) == 0)
			return true;
	return false;
}

/* Does another family know @dir? Composite versions consist of files that others know, or of
 * directories. */
static bool is_somebodys(dcp_families all, const struct dcp_dir *dir)
{
	for (; *all; all++)
		if (!(*all)->shy && !(*all)->composite &&
		    (*all)->probe(dir, (char[1]){ 0 }, 0) != DCP_MATCH_NO)
			return true;
	return false;
}

enum dcp_match dcp_numpy_probe(dcp_families all, const struct dcp_dir *dir)
{
	size_t nnpz = 0, nnpy = 0, ndirs = 0, nmodels = 0, nsaves = 0;

	for (size_t i = 0; i < dir->n; i++) {
		const char *name = dir->entries[i].name;

		if (dir->entries[i].is_dir) {
			ndirs += *name != '.';
		} else if (is_npz(name)) {
			nnpz++;
			nmodels += is_model(name);
			nsaves += dcp_order_is_numbered(name);
		} else {
			nnpy += is_npy(name);
		}
	}
	if (nnpz + nnpy == 0 || is_somebodys(all, dir))
		return DCP_MATCH_NO;
	if (dir->is_file || nmodels)
		return nsaves ? DCP_MATCH_MANY : DCP_MATCH_YES;
	if (ndirs)
		return DCP_MATCH_NO;
	return nnpz > 1 || nsaves || (nnpz && !dcp_weights_is_home(dir)) ? DCP_MATCH_MANY
									 : DCP_MATCH_YES;
}

bool dcp_numpy_group(const char *file, char *version)
{
	if (!is_npz(file))
		return false;
	snprintf(version, DCP_GROUP_MAX, "%s", file);
	return true;
}

/* ---- one array ---- */

struct loading {
	const struct dcp_load *in;
	const char *name;           /* of the current file */
	char prefix[DCP_GROUP_MAX]; /* of its keys; "": none */
	uint32_t file;
	size_t emitted;
	struct dcp_buf name_text; /* of the current array */
};

/* An array in the file: the place of its bytes, or of the compressed data. */
struct array {
	const char *name; /* nul-terminated, n counts */
	size_t n;
	uint64_t off, nbytes; /* in the file */
	uint64_t size;        /* once unpacked */
	bool deflated;
};

/* Make the path of its key. Returns the number of components; 0: out of memory. */
static size_t make_path(struct loading *l, const struct array *a, const char *path[2])
{
	size_t n = 0;

	dcp_buf_reset(&l->name_text);
	if (dcp_buf_add(&l->name_text, a->name, a->n) < 0)
		return 0;
	if (*l->prefix)
		path[n++] = l->prefix;
	path[n++] = l->name_text.p;
	return n;
}

static int emit_broken(struct loading *l, const struct array *a, const char *type,
		       const char *why)
{
	const char *path[2];
	struct dcp_object o = { .path = path, .type = type, .error = why };

	o.npath = make_path(l, a, path);
	if (!o.npath)
		return -ENOMEM;
	return dcp_emit_object(l->in->sink, &o);
}

static int emit_array(struct loading *l, const struct array *a, const struct dcp_npy *npy)
{
	const char *path[2];
	struct dcp_piece p = {
		.stride = npy->row_major ? NULL : npy->stride,
		.off = a->deflated ? a->off : a->off + npy->off,
		.nbytes = a->deflated ? a->nbytes : npy->nbytes,
		.file = l->file,
		.filter = a->deflated ? DCP_FILTER_DEFLATE : DCP_FILTER_NONE,
		.swap = npy->swap,
	};
	struct dcp_tensor t = {
		.path = path,
		.dtype = npy->dtype,
		.dtype_name = npy->dtype_name,
		.itemsize = npy->itemsize,
		.ndim = npy->ndim,
		.shape = npy->shape,
	};

	t.npath = make_path(l, a, path);
	if (!t.npath)
		return -ENOMEM;
	dcp_tensor_one_piece(&t, &p);
	l->emitted++;
	if (npy->swap && npy->dtype == DCP_DTYPE_OTHER)
		t.error = "big-endian elements of a type that dcpfs cannot convert";
	else if (a->size - npy->off != npy->nbytes)
		t.error = "its bytes are not as many as its header says";
	return dcp_emit_tensor(l->in->sink, &t);
}

/* Emit the array @a. @src holds all of its bytes, or the first of them, with the header. */
static int emit_npy(struct loading *l, const struct array *a, const struct dcp_source *src,
		    struct dcp_err *err)
{
	struct dcp_npy npy;
	int rc = dcp_npy_read(src, &npy, err);

	if (rc == -ENOMEM)
		return rc;
	if (rc == 0 && npy.off > a->size)
		rc = dcp_fail(err, -EBADMSG, "its header is cut short");
	if (rc < 0)
		return emit_broken(l, a, "", err->msg);
	if (npy.kind == DCP_NPY_OBJECTS)
		return emit_broken(l, a, "numpy.ndarray",
				   "an array of Python objects (dtype O), which is a pickle: "
				   "load it with allow_pickle=True and save what is in it");
	if (npy.kind == DCP_NPY_RECORDS)
		return emit_broken(l, a, "numpy.ndarray",
				   "an array of records (a structured dtype): save each of its "
				   "fields as an array");
	return emit_array(l, a, &npy);
}

/* ---- files ---- */

/* One kilobyte holds every header but that of records with many fields. */
static int emit_deflated(struct loading *l, const struct array *a, const struct dcp_source *src,
			 struct dcp_err *err)
{
	struct dcp_source packed = dcp_source_window(src, a->off, a->nbytes), head;
	unsigned char bytes[1024];
	size_t n = 0;
	int rc = dcp_inflate_head(&packed, DCP_CODEC_DEFLATE, bytes, sizeof(bytes), &n, err);

	if (rc == -ENOMEM)
		return rc;
	if (rc < 0)
		return emit_broken(l, a, "", err->msg);
	head = dcp_source_mem(bytes, n);
	return emit_npy(l, a, &head, err);
}

static int emit_member(struct loading *l, const struct dcp_zip_member *m,
		       const struct dcp_source *src, struct dcp_err *err)
{
	struct array a = { .name = m->name,
			   .n = strlen(m->name),
			   .nbytes = m->packed,
			   .size = m->size,
			   .deflated = m->deflated };
	struct dcp_source stored;
	int rc;

	if (!dcp_ends_with(m->name, a.n, ".npy") || a.n == strlen(".npy"))
		return 0;
	a.n -= strlen(".npy");
	if (!m->stored && !m->deflated)
		return emit_broken(l, &a, "",
				   "encrypted, or compressed in a way that numpy "
				   "does not write");
	rc = dcp_zip_data(src, m, &a.off, err);
	if (rc == -ENOMEM)
		return rc;
	if (rc < 0)
		return emit_broken(l, &a, "", err->msg);
	if (m->deflated)
		return emit_deflated(l, &a, src, err);
	stored = dcp_source_window(src, a.off, m->size);
	return emit_npy(l, &a, &stored, err);
}

static int emit_npz(struct loading *l, const struct dcp_source *src, struct dcp_err *err)
{
	struct dcp_zip_member *m = NULL;
	dcp_auto_arena struct dcp_arena arena = DCP_ARENA_INIT(arena_limit);
	size_t n = 0;
	int rc = dcp_zip_list(src, &arena, &m, &n, err);

	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = emit_member(l, &m[i], src, err);
	return rc;
}

static int emit_file(struct loading *l, struct dcp_err *err)
{
	char key[DCP_GROUP_MAX];
	struct array a = { .name = key };
	struct dcp_err why = { 0 };
	dcp_auto_input struct dcp_input input = { 0 };
	int rc = dcp_emit_file(l->in->sink, l->name, &l->file);

	if (rc < 0)
		return rc;
	dcp_name_to_key(l->name, strlen(l->name) - strlen(".npy"), key);
	a.n = strlen(key);
	rc = dcp_dir_input(l->in->dir, l->name, &input, &why);
	if (rc == 0) {
		a.size = a.nbytes = input.src.size;
		rc = is_npz(l->name) ? emit_npz(l, &input.src, &why)
				     : emit_npy(l, &a, &input.src, &why);
	}
	if (rc == -ENOMEM || (rc < 0 && why.code != rc)) /* the sink's own error */
		return rc;
	if (rc == 0)
		return 0;
	dcp_err_where(&why, rc, "%s", l->name);
	if (l->in->dir->n == 1)
		return dcp_err_give(err, &why, rc);
	*l->prefix = '\0';
	return emit_broken(l, &a, "", why.msg);
}

/* Choose the prefix of the keys in l->name: none in a model, or in a version of one file. */
static void choose_prefix(struct loading *l)
{
	size_t n = stem_length(l->name);
	bool alone = true;

	*l->prefix = '\0';
	if (!is_npz(l->name) || is_model(l->name))
		return;
	for (size_t i = 0; i < l->in->dir->n; i++) {
		const struct dcp_dirent *e = &l->in->dir->entries[i];

		alone &= e->is_dir || !is_npz(e->name) ||
			 (stem_length(e->name) == n && memcmp(e->name, l->name, n) == 0);
	}
	if (!alone)
		snprintf(l->prefix, sizeof(l->prefix), "%.*s", (int)n, l->name);
}

int dcp_numpy_load(const struct dcp_load *in, struct dcp_err *err)
{
	struct loading l = { .in = in, .name_text = DCP_BUF_INIT };
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < in->dir->n; i++) {
		l.name = in->dir->entries[i].name;
		if (in->dir->entries[i].is_dir || !is_array(NULL, l.name))
			continue;
		choose_prefix(&l);
		rc = emit_file(&l, err);
		dcp_load_progress(in, i + 1, in->dir->n, "files");
	}
	dcp_buf_finish(&l.name_text);
	if (rc == 0)
		rc = dcp_weights_emit_rest(in, is_array, NULL);
	return dcp_emit_fact(in->sink, rc, "framework", "numpy");
}
