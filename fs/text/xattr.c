/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/text/text.h"
#include "fs/versions/versions.h"

#include <errno.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/jsonw.h"
#include "core/format/format.h"
#include "core/model/geometry/cut.h"
#include "core/model/geometry/tiling.h"
#include "core/store/index/index.h"
#include "core/store/io/files.h"
#include "fs/fs.h"
#include "fs/tree/tree.h"

#define PREFIX "user.dcpfs."

/* A row with all the data of its attributes. */
struct subject {
	struct dcpfs_version *ver;
	struct dcp_arena arena;
	const struct dcpfs_rows *rows;
	struct dcp_row row;
	struct dcp_tensor t;
	bool *needed; /* for each piece: does the rank use it? NULL: all are used */
	struct dcp_object o;
};

static int mark_piece(void *ctx, const struct dcp_meet *m)
{
	struct subject *s = ctx;

	s->needed[m->piece - s->t.pieces] = true;
	return 0;
}

/* Mark the pieces that @part overlaps. A piece that does not lie as expected counts as used. */
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
		s->t.error = dcp_arena_strdup(&s->arena, why.msg);
	if (rc <= 0 || !dcpfs_is_rank(s->ver))
		return 0;
	if (s->t.partly && dcpfs_rank_can_read(s->ver, &s->row, &part, NULL) == 0)
		s->t.error = NULL;
	rc = find_needed(s, &part);
	s->t.ndim = s->row.ndim;
	s->t.shape = s->row.shape;
	return rc;
}

static int load_subject(struct dcpfs *fs, uint64_t ino, struct subject *s)
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

static void unload_subject(struct subject *s)
{
	dcp_arena_finish(&s->arena);
	dcpfs_version_put(s->ver);
}

/* The dtype of this file's elements, which .npy may widen. */
static const char *storage_dtype(const struct subject *s)
{
	const struct dcp_dtype_info *info = dcp_dtype_info(dcp_tensor_shown(&s->t));

	return s->rows->as == DCP_AS_NPY && info->widened ? info->npy : s->t.dtype_name;
}

static bool is_needed(const struct subject *s, size_t piece)
{
	return !s->needed || s->needed[piece];
}

/* Names of the source files of the tensor, in order of first use. */
static void put_files(const struct subject *s, struct dcp_buf *b)
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
}

enum attribute {
	KEY,
	VERSION,
	FORMAT,
	PATH,
	DTYPE,
	STORAGE_DTYPE,
	SHAPE,
	NBYTES,
	FILES,
	ALIAS_OF,
	TYPE,
	ERROR,
	ATTRIBUTES
};

static const char *const attributes[ATTRIBUTES] = {
	[KEY] = PREFIX "key",       [VERSION] = PREFIX "version",
	[FORMAT] = PREFIX "format", [PATH] = PREFIX "path",
	[DTYPE] = PREFIX "dtype",   [STORAGE_DTYPE] = PREFIX "storage_dtype",
	[SHAPE] = PREFIX "shape",   [NBYTES] = PREFIX "nbytes",
	[FILES] = PREFIX "files",   [ALIAS_OF] = PREFIX "alias_of",
	[TYPE] = PREFIX "type",     [ERROR] = PREFIX "error",
};

/* Append the value of an attribute; false: the subject has none. */
static bool put_attribute(const struct subject *s, enum attribute a, struct dcp_buf *b)
{
	bool tensor = s->rows->rows == DCP_ROW_TENSOR;
	char shape[DCP_BOX_TEXT];
	const char *const text[ATTRIBUTES] = {
		[KEY] = s->row.key,
		[VERSION] = s->ver->name,
		[FORMAT] = dcp_version_format(dcpfs_opened(s->ver))->name,
		[DTYPE] = tensor ? s->t.dtype_name : NULL,
		[STORAGE_DTYPE] = tensor ? storage_dtype(s) : NULL,
		[SHAPE] = tensor ? dcp_dims_text(shape, sizeof(shape), s->t.shape, s->t.ndim)
				 : NULL,
		[ALIAS_OF] = s->t.alias_of,
		[TYPE] = s->o.type,
		[ERROR] = tensor ? s->t.error : s->o.error,
	};
	struct dcp_jsonw w;

	if (text[a])
		dcp_buf_str(b, text[a]);
	dcp_jsonw_init(&w, b, false);
	if (a == PATH)
		dcp_jsonw_strs(&w, tensor ? s->t.path : s->o.path,
			       tensor ? s->t.npath : s->o.npath);
	if (a == NBYTES && tensor)
		dcp_jsonw_u64(&w, s->row.nbytes);
	if (a == FILES)
		put_files(s, b);
	return text[a] || b->n;
}

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
	rc = load_subject(fs, ino, &s);
	for (size_t i = 0; rc == 0 && i < DCP_LEN(attributes); i++)
		if (!strcmp(attributes[i], name)) {
			rc = put_attribute(&s, (enum attribute)i, out) ? dcp_buf_error(out)
								       : -ENODATA;
			unload_subject(&s);
			return rc;
		}
	unload_subject(&s);
	return rc < 0 ? rc : -ENODATA;
}

int dcpfs_xattr_list(struct dcpfs *fs, uint64_t ino, struct dcp_buf *out)
{
	struct subject s;
	int rc = load_subject(fs, ino, &s);

	for (size_t i = 0; rc == 0 && i < DCP_LEN(attributes); i++) {
		dcp_auto_buf struct dcp_buf value = DCP_BUF_INIT;

		if (put_attribute(&s, (enum attribute)i, &value))
			dcp_buf_add(out, attributes[i], strlen(attributes[i]) + 1);
	}
	unload_subject(&s);
	return rc == -ENODATA ? 0 : rc < 0 ? rc : dcp_buf_error(out);
}
