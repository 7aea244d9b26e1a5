/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints inside tar archives and compressed files, whatever their family.
 *
 *	ep2-ba6-rank0.tar        members of the archive are a directory; bytes are read from the
 *	                         archive itself
 *	ep2-ba6-rank0.tar.gz     the same, with bytes from the decompressed archive
 *	ep2-ba6-rank0.pt.zst     one file of that name without ".zst"
 *	model.nemo               a tar archive: model_config.yaml beside model_weights.ckpt or
 *	                         model_weights/
 *	model.qnemo              a tar archive of rank<r>.safetensors, one for each rank of TensorRT-LLM
 *
 * With DeepSpeed, Composer writes one archive for each rank. These archives are one version with
 * the name of rank 0's archive: their members together are the directory. Names only select the
 * files to open; the contents decide whether and how a file is compressed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/formats.h"
#include "core/format/nest/relay.h"
#include "core/format/torch/torch.h"
#include "core/model/tensor.h"
#include "core/origin/archive/archive.h"
#include "core/origin/dir/dir.h"

static const char *const packed[] = { ".gz", ".bz2", ".xz", ".lzma", ".zst", ".lz4" };

/* Extensions of tar archives that are or may be compressed: older NeMo archives are, newer ones are
 * not. */
static const char *const tars[] = { ".tgz", ".tbz2", ".txz", ".tzst", ".nemo", ".qnemo" };

/* Is @name that of a tar archive? "x.pth.tar" is not: it is a common name for files of
 * torch.save. */
static bool is_tar(const char *name)
{
	for (size_t i = 0; i < DCP_LEN(tars); i++)
		if (dcp_has_extension(name, tars[i]))
			return true;
	return dcp_has_extension(name, ".tar") && !dcp_has_extension(name, ".pth.tar");
}

/* The name without the extension of its compression; false if it has no such extension. */
static bool unpacked_name(const char *name, char out[DCP_GROUP_MAX])
{
	for (size_t i = 0; i < DCP_LEN(packed); i++) {
		if (!dcp_has_extension(name, packed[i]))
			continue;
		snprintf(out, DCP_GROUP_MAX, "%.*s", (int)(strlen(name) - strlen(packed[i])),
			 name);
		return true;
	}
	return false;
}

/* Would any family recognise a directory that holds only a file of this name? */
static bool somebody_knows(dcp_families all, const char *name)
{
	struct dcp_dirent e = { .name = name };
	struct dcp_dir dir = { .path = "", .entries = &e, .n = 1 };
	enum dcp_match match;
	const struct dcp_format *f = dcp_format_probe_in(all, NULL, &dir, &match, NULL, 0);

	/* A compressed file with only an array is not a checkpoint but a data set. */
	return f && !f->shy && match != DCP_MATCH_INCOMPLETE;
}

static bool is_ours(dcp_families all, const char *name)
{
	char inner[DCP_GROUP_MAX], again[DCP_GROUP_MAX];

	if (*name == '.' || strlen(name) >= DCP_GROUP_MAX)
		return false;
	if (is_tar(name))
		return true;
	return unpacked_name(name, inner) && !unpacked_name(inner, again) &&
	       (is_tar(inner) || somebody_knows(all, inner));
}

enum dcp_match dcp_archive_probe(dcp_families all, const struct dcp_dir *dir)
{
	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir && is_ours(all, dir->entries[i].name))
			return dir->is_file ? DCP_MATCH_YES : DCP_MATCH_MANY;
	return DCP_MATCH_NO;
}

bool dcp_archive_group(dcp_families all, const char *file, char *version)
{
	uint64_t rank;

	if (!is_ours(all, file))
		return false;
	if (!dcp_composer_name(file, version, &rank))
		snprintf(version, DCP_GROUP_MAX, "%s", file);
	return true;
}

/* ---- loading ---- */

/* One file of the version. */
struct part {
	const char *name;
	uint64_t rank;
	bool packed; /* the file is compressed: bytes lie in the decompressed file */
};

struct loading {
	const struct dcp_load *in;
	struct part *parts; /* by rank */
	struct part *input; /* the parts that could be opened, by their number in the archive */
	size_t n, ninputs;
	struct dcp_archive *archive;
	struct dcp_dir dir; /* of the archive */
};

static int by_rank(const void *a, const void *b)
{
	const struct part *x = a, *y = b;

	return DCP_CMP(x->rank, y->rank) ?: strcmp(x->name, y->name);
}

static int list_parts(struct loading *l)
{
	const struct dcp_dir *dir = l->in->dir;
	char save[DCP_GROUP_MAX];

	l->parts = calloc(dir->n + 1, sizeof(*l->parts));
	l->input = calloc(dir->n + 1, sizeof(*l->input));
	if (!l->parts || !l->input)
		return -ENOMEM;
	for (size_t i = 0; i < dir->n; i++) {
		struct part p = { .name = dir->entries[i].name };

		if (dir->entries[i].is_dir || !is_ours(l->in->formats, p.name))
			continue;
		dcp_composer_name(p.name, save, &p.rank);
		l->parts[l->n++] = p;
	}
	DCP_SORT(l->parts, l->n, by_rank);
	return 0;
}

/* Open the file of @p, or the decompressed file. */
static int open_part(const struct loading *l, struct part *p, struct dcp_input *out,
		     struct dcp_err *err)
{
	const struct dcp_unpacker *u = l->in->unpack;
	enum dcp_codec codec;
	int rc = dcp_dir_input(l->in->dir, p->name, out, err);

	if (rc < 0)
		return rc;
	rc = dcp_inflate_codec(&out->src, &codec);
	if (rc == 0 && codec == DCP_CODEC_NONE)
		return 0;
	dcp_input_close(out);
	if (rc < 0)
		return dcp_fail_at(err, rc, 0, "%.300s cannot be read", p->name);
	if (!u)
		return dcp_fail(err, -ENOTSUP,
				"%.300s: compressed with %s inside something that is packed "
				"itself",
				p->name, dcp_codec_name(codec));
	p->packed = true;
	return u->open(u->ctx, p->name, out, err);
}

static int add_part(struct loading *l, struct part *p, struct dcp_err *err)
{
	char inner[DCP_GROUP_MAX];
	struct dcp_input input;
	int rc = open_part(l, p, &input, err);

	if (rc < 0)
		return rc;
	if (!unpacked_name(p->name, inner))
		snprintf(inner, sizeof(inner), "%s", p->name);
	rc = is_tar(inner) ? dcp_archive_add_tar(l->archive, &input, err)
			   : dcp_archive_add_file(l->archive, &input, inner, err);
	l->input[l->ninputs++] = *p; /* a damaged archive is counted, too */
	return rc < 0 ? dcp_err_where(err, rc, "%.300s", p->name) : 0;
}

/* Add the archives of all ranks. A damaged archive is emitted as a broken object with its name, and
 * the others are read. */
static int add_parts(struct loading *l, struct dcp_err *err)
{
	const struct dcp_sink *sink = l->in->sink;
	size_t good = 0;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < l->n; i++) {
		struct dcp_err why = { 0 };
		uint32_t number;

		rc = add_part(l, &l->parts[i], &why);
		good += rc == 0;
		if (rc == -ENOMEM || (rc < 0 && l->n == 1))
			return dcp_err_give(err, &why, rc);
		if (rc == 0)
			continue;
		/* the file is recorded, so that its repair is noticed */
		rc = dcp_emit_file(sink, l->parts[i].name, &number);
		if (rc == 0)
			rc = dcp_emit_broken(sink, l->parts[i].name, why.msg);
	}
	if (rc == 0 && good == 0)
		return dcp_fail(err, -EBADMSG, "none of its %zu archives can be read", l->n);
	return rc;
}

/* Find where the file @name lies. A file that is not in the archive gets a name that no look-up
 * finds. */
static int place_file(void *ctx, const char *name, struct dcp_place *out)
{
	const struct loading *l = ctx;
	uint32_t input = 0;
	int n;

	if (dcp_archive_find(&l->dir, name, &input, &out->base, NULL) == 0) {
		out->unpacked = l->input[input].packed;
		n = snprintf(out->name, sizeof(out->name), "%s", l->input[input].name);
	} else {
		n = snprintf(out->name, sizeof(out->name), "%s/%s", l->input[0].name, name);
	}
	return n < 0 || (size_t)n >= sizeof(out->name) ? -ENAMETOOLONG : 0;
}

static int emit_inner(struct loading *l, struct dcp_err *err)
{
	dcp_auto_relay struct dcp_relay r = { .to = l->in->sink,
					      .place = place_file,
					      .ctx = l };
	struct dcp_load in;
	int rc = dcp_dir_of_archive(l->archive, l->input[0].name, &l->dir, err);

	if (rc < 0)
		return rc;
	in = dcp_relay_load(&r, l->in, &l->dir);
	rc = dcp_inner_load(&in, err);
	dcp_dir_close(&l->dir);
	return rc;
}

int dcp_archive_load(const struct dcp_load *in, struct dcp_err *err)
{
	struct loading l = { .in = in };
	int rc = list_parts(&l);

	if (rc == 0)
		rc = dcp_archive_create(&l.archive);
	if (rc == 0)
		rc = add_parts(&l, err);
	if (rc == 0)
		rc = emit_inner(&l, err);
	dcp_archive_close(l.archive);
	free(l.parts);
	free(l.input);
	return rc;
}
