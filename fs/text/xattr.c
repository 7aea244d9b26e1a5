/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/text/xattr.h"
#include "fs/versions/opener.h"

#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/format/format.h"
#include "core/model/geometry/meet.h"
#include "core/model/geometry/tiling.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"
#include "fs/fs.h"
#include "fs/tree/tree.h"
#include "fs/versions/ranks.h"
#include "fs/versions/versions.h"

#define PREFIX "user.dcpfs."

/* One row with everything its attributes are made of. */
struct subject {
	struct dcpfs_version *ver;
	struct dcp_arena arena;
	const struct dcpfs_rows *rows;
	struct dcp_row row;
	struct dcp_tensor t;
	bool *needed; /* by piece: the rank has something of it; NULL: all are */
	struct dcp_object o;
};

static int mark_piece(void *ctx, const struct dcp_meet *m)
{
	struct subject *s = ctx;

	s->needed[m->piece - s->t.pieces] = true;
	return 0;
}

/* Which pieces @part has something of. What does not lie as it should is listed whole. */
static int find_needed(struct subject *s, const struct dcp_cut *part)
{
	struct dcp_tiling tiling;
	uint64_t n = part->flat_n;
	int rc;

	if ((s->t.error && !s->t.partly) || (!part->flat && !dcp_cut_volume(part, &n)))
		return 0;
	rc = dcp_tiling_init(&tiling, &s->t, &s->arena, NULL);
	if (rc < 0)
		return rc == -ENOMEM ? rc : 0;
	s->needed = dcp_arena_calloc(&s->arena, s->t.npieces, sizeof(*s->needed));
	if (s->t.npieces && !s->needed)
		return -ENOMEM;
	return n ? dcp_meet(&tiling, part, 0, n, mark_piece, s) : 0;
}

/* Attributes of a rank's file: its part, or why there is none. */
static int cut_subject(struct subject *s)
{
	struct dcp_err why = { 0 };
	struct dcp_cut part;
	int rc = dcpfs_rank_cut(s->ver, &s->row, &s->arena, &part, &why);

	if (rc == -ENOMEM)
		return rc;
	if (rc < 0 && !s->t.error)
		s->t.error = dcp_arena_strndup(&s->arena, why.msg, strlen(why.msg));
	if (rc <= 0 || !dcpfs_is_rank(s->ver))
		return 0;
	if (s->t.partly && dcpfs_rank_can_read(s->ver, &s->row, &part, NULL) == 0)
		s->t.error = NULL;
	rc = find_needed(s, &part);
	s->t.ndim = s->row.ndim;
	s->t.shape = s->row.shape;
	return rc;
}

static int load(struct dcpfs *fs, uint64_t ino, struct subject *s)
{
	struct dcpfs_ino i = dcpfs_ino_unpack(ino);
	int rc;

	memset(s, 0, sizeof(*s));
	s->rows = dcpfs_rows_of(i.kind);
	if (!s->rows)
		return -ENODATA;
	s->ver = dcpfs_version_by_slot(fs, i.slot);
	if (!s->ver)
		return -ESTALE;
	dcp_arena_init(&s->arena, 512 << 20);
	rc = dcpfs_version_open(fs, s->ver, NULL);
	if (rc == 0) {
		struct dcp_index *ix = dcpfs_index(s->ver);

		rc = dcp_index_by_id(ix, s->rows->rows, (int64_t)i.row, &s->arena, &s->row);
		if (rc == 0 && s->rows->rows == DCP_ROW_TENSOR)
			rc = dcp_index_tensor(ix, (int64_t)i.row, &s->arena, &s->t, NULL);
		else if (rc == 0)
			rc = dcp_index_object(ix, (int64_t)i.row, &s->arena, &s->o, NULL);
		if (rc == 0 && s->rows->rows == DCP_ROW_TENSOR)
			rc = cut_subject(s);
	}
	return rc;
}

static void unload(struct subject *s)
{
	dcp_arena_finish(&s->arena);
	dcpfs_version_put(s->ver);
}

/* Each getter appends its value and says whether the subject has one. */
static bool put_key(const struct subject *s, struct dcp_buf *b)
{
	dcp_buf_str(b, s->row.key);
	return true;
}

static bool put_version(const struct subject *s, struct dcp_buf *b)
{
	dcp_buf_str(b, s->ver->name);
	return true;
}

static bool put_format(const struct subject *s, struct dcp_buf *b)
{
	dcp_buf_str(b, dcp_version_format(dcpfs_opened(s->ver))->name);
	return true;
}

static bool put_path(const struct subject *s, struct dcp_buf *b)
{
	bool tensor = s->rows->rows == DCP_ROW_TENSOR;
	const char *const *path = tensor ? s->t.path : s->o.path;
	size_t n = tensor ? s->t.npath : s->o.npath;
	struct dcp_jsonw w;

	dcp_jsonw_init(&w, b, false);
	dcp_jsonw_array(&w);
	for (size_t i = 0; i < n; i++)
		dcp_jsonw_str(&w, path[i]);
	dcp_jsonw_end(&w);
	return true;
}

static bool put_dtype(const struct subject *s, struct dcp_buf *b)
{
	if (s->rows->rows == DCP_ROW_TENSOR)
		dcp_buf_str(b, s->t.dtype_name);
	return s->rows->rows == DCP_ROW_TENSOR;
}

/* What the elements of this very file are: .npy may hold wider ones. */
static bool put_storage_dtype(const struct subject *s, struct dcp_buf *b)
{
	const struct dcp_dtype_info *info = dcp_dtype_info(dcp_tensor_shown(&s->t));

	if (s->rows->rows != DCP_ROW_TENSOR)
		return false;
	dcp_buf_str(b,
		    s->rows->as == DCP_AS_NPY && info->widened ? info->npy : s->t.dtype_name);
	return true;
}

static bool put_shape(const struct subject *s, struct dcp_buf *b)
{
	if (s->rows->rows != DCP_ROW_TENSOR)
		return false;
	dcp_buf_str(b, "[");
	for (uint32_t d = 0; d < s->t.ndim; d++)
		dcp_buf_printf(b, "%s%llu", d ? ", " : "", (unsigned long long)s->t.shape[d]);
	dcp_buf_str(b, "]");
	return true;
}

static bool put_nbytes(const struct subject *s, struct dcp_buf *b)
{
	if (s->rows->rows == DCP_ROW_TENSOR)
		dcp_buf_printf(b, "%llu", (unsigned long long)s->row.nbytes);
	return s->rows->rows == DCP_ROW_TENSOR;
}

static bool is_needed(const struct subject *s, size_t piece)
{
	return !s->needed || s->needed[piece];
}

/* Names of the files that hold it, in order of first use. */
static bool put_files(const struct subject *s, struct dcp_buf *b)
{
	const struct dcp_files *files = dcp_version_files(dcpfs_opened(s->ver));

	for (size_t i = 0; i < s->t.npieces && b->n < 60000; i++) {
		size_t k = 0;

		if (!is_needed(s, i))
			continue;
		while (k < i &&
		       (s->t.pieces[k].file != s->t.pieces[i].file || !is_needed(s, k)))
			k++;
		if (k == i)
			dcp_buf_printf(b, "%s%s", b->n ? " " : "",
				       dcp_files_name(files, s->t.pieces[i].file));
	}
	return b->n != 0;
}

static bool put_alias_of(const struct subject *s, struct dcp_buf *b)
{
	if (s->t.alias_of)
		dcp_buf_str(b, s->t.alias_of);
	return s->t.alias_of != NULL;
}

static bool put_type(const struct subject *s, struct dcp_buf *b)
{
	if (s->rows->rows == DCP_ROW_OBJECT && s->o.type)
		dcp_buf_str(b, s->o.type);
	return s->rows->rows == DCP_ROW_OBJECT && s->o.type;
}

static bool put_error(const struct subject *s, struct dcp_buf *b)
{
	const char *error = s->rows->rows == DCP_ROW_TENSOR ? s->t.error : s->o.error;

	if (error)
		dcp_buf_str(b, error);
	return error != NULL;
}

static const struct {
	const char *name;
	bool (*put)(const struct subject *s, struct dcp_buf *b);
} attributes[] = {
	{ PREFIX "key", put_key },       { PREFIX "version", put_version },
	{ PREFIX "format", put_format }, { PREFIX "path", put_path },
	{ PREFIX "dtype", put_dtype },   { PREFIX "storage_dtype", put_storage_dtype },
	{ PREFIX "shape", put_shape },   { PREFIX "nbytes", put_nbytes },
	{ PREFIX "files", put_files },   { PREFIX "alias_of", put_alias_of },
	{ PREFIX "type", put_type },     { PREFIX "error", put_error },
};

int dcpfs_xattr_get(struct dcpfs *fs, uint64_t ino, const char *name, struct dcp_buf *out)
{
	struct subject s;
	int rc;

	/* "not supported" makes ls -l ask for ACLs and labels once a mount, "no data" once a
	 * file */
	if (strncmp(name, "user.", 5) != 0)
		return -ENOTSUP;
	if (strncmp(name, PREFIX, strlen(PREFIX)) != 0)
		return -ENODATA;
	rc = load(fs, ino, &s);
	for (size_t i = 0; rc == 0 && i < DCP_LEN(attributes); i++)
		if (!strcmp(attributes[i].name, name)) {
			rc = attributes[i].put(&s, out) ? dcp_buf_error(out) : -ENODATA;
			unload(&s);
			return rc;
		}
	unload(&s);
	return rc < 0 ? rc : -ENODATA;
}

int dcpfs_xattr_list(struct dcpfs *fs, uint64_t ino, struct dcp_buf *out)
{
	struct subject s;
	int rc = load(fs, ino, &s);

	for (size_t i = 0; rc == 0 && i < DCP_LEN(attributes); i++) {
		dcp_auto_buf struct dcp_buf value = DCP_BUF_INIT;

		if (attributes[i].put(&s, &value))
			dcp_buf_add(out, attributes[i].name, strlen(attributes[i].name) + 1);
	}
	unload(&s);
	return rc == -ENODATA ? 0 : rc < 0 ? rc : dcp_buf_error(out);
}
