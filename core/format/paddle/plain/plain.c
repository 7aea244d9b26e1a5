/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paddle's plain files: paddle.save, save_inference_model, jit.save, group_sharded, and what
 * paddle.incubate.distributed.utils.io writes.
 *
 *	model.pdparams model.pdopt             version model
 *	opt_rank0.pdopt opt_rank1.pdopt        version opt: whole tensors, each of some rank
 *	infer.pdiparams infer.pdmodel          version infer: the second names the tensors
 *	w_dist0.pdparams w_dist0.pdattr ...    version w: pieces, see auto.c
 *	state.pdz                              version state.pdz
 *
 * What a file holds is decided by its first bytes; names only group.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/endian.h"
#include "core/base/err.h"
#include "core/format/formats.h"
#include "core/format/paddle/plain/plain_int.h"
#include "core/model/tensor.h"
#include "core/parse/paddle/program.h"

enum {
	MEMORY = 256 << 20, /* labels of a million files */
	MAX_MISSING = 1000, /* absent ranks that are told one by one */
};

static enum dcp_match probe(const struct dcp_dir *dir, char *why, size_t n)
{
	struct dcp_pdname name;

	(void)why;
	(void)n;
	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir && dcp_pdname_read(dir->entries[i].name, &name) &&
		    name.kind != DCP_PDKIND_JSON && name.kind != DCP_PDKIND_INFO)
			return DCP_MATCH_MANY;
	return DCP_MATCH_NO;
}

static bool group(const char *file, char *version)
{
	struct dcp_pdname name;

	if (!dcp_pdname_read(file, &name))
		return false;
	memcpy(version, name.version, strlen(name.version) + 1);
	return true;
}

/* ---- keys ---- */

int dcp_pdkey_init(struct dcp_pdkey *k, const struct dcp_pdpart *part, const char *key,
		   const char *const *path, size_t npath)
{
	int how = part->choose ? part->choose(part->ctx, key) : 0;
	size_t n = strlen(key), label = strlen(part->label);

	*k = (struct dcp_pdkey){ .key = key, .path = path, .npath = npath };
	if (how == 0)
		return 1;
	if (how == 2)
		return 0;
	k->text = malloc(label + n + 2);
	k->list = calloc(npath + 1, sizeof(*k->list));
	if (!k->text || !k->list)
		return -ENOMEM;
	snprintf(k->text, label + n + 2, "%s.%s", part->label, key);
	k->list[0] = part->label;
	for (size_t i = 0; i < npath; i++)
		k->list[i + 1] = path[i];
	k->key = k->text;
	k->path = k->list;
	k->npath = npath + 1;
	return 1;
}

void dcp_pdkey_finish(struct dcp_pdkey *k)
{
	free(k->text);
	free(k->list);
}

/* ---- one file ---- */

/* Of a .pdiparams: the program beside it. */
struct names {
	struct dcp_paddle_program program;
	char file[DCP_GROUP_MAX + 16];
	bool known;
	struct dcp_err why;
};

static bool read_program(const struct dcp_dir *dir, struct names *names)
{
	struct dcp_input input;
	int rc;

	if (!dcp_dir_find(dir, names->file))
		return false;
	rc = dcp_dir_input(dir, names->file, &input, &names->why);
	if (rc == 0) {
		rc = dcp_paddle_program_read(&input.src, &names->program, &names->why);
		dcp_input_close(&input);
	}
	if (rc < 0)
		dcp_err_where(&names->why, rc, "%s", names->file);
	names->known = rc == 0;
	return names->known;
}

/* A .json may be anything; what newer Paddle writes goes before a .pdmodel left from before. */
static int find_names(const struct dcp_dir *dir, const struct dcp_pdpart *part,
		      struct names *names)
{
	int stem = (int)(strlen(part->file) - strlen("pdiparams"));
	char text[sizeof(names->why.msg) + 32];

	*names = (struct names){ 0 };
	for (int form = 0; form < 2; form++) {
		snprintf(names->file, sizeof(names->file), "%.*s%s", stem, part->file,
			 form ? "pdmodel" : "json");
		if (read_program(dir, names))
			return 0;
	}
	if (!names->why.code)
		snprintf(names->why.msg, sizeof(names->why.msg),
			 "no %.*spdmodel or %.*sjson beside it", stem, part->file, stem,
			 part->file);
	snprintf(text, sizeof(text), "%s: keys are numbers", names->why.msg);
	return part->sink->meta(part->sink->ctx, "names", text);
}

static int tell_stream(const struct dcp_dir *dir, const struct dcp_pdpart *part,
		       const struct dcp_source *src, uint32_t number, bool params,
		       struct dcp_err *err)
{
	struct dcp_pdlod lod = { .params = params };
	struct names names = { 0 };
	uint32_t program;
	int rc = params ? find_names(dir, part, &names) : 0;

	if (rc < 0)
		return rc;
	if (names.known) {
		lod.program = &names.program;
		lod.program_file = names.file;
		rc = part->sink->file(part->sink->ctx, names.file, &program);
	}
	if (rc >= 0)
		rc = dcp_pdlod_tell(part, &lod, src, number, err);
	if (names.known)
		dcp_paddle_program_finish(&names.program);
	return rc;
}

static int tell_content(const struct dcp_dir *dir, const struct dcp_pdpart *part,
			const struct dcp_source *src, uint32_t number, struct dcp_err *err)
{
	size_t n = (size_t)DCP_MIN(src->size, 4);
	struct dcp_pdname name;
	uint8_t head[4] = { 0 };
	bool params;
	int rc = dcp_source_read(src, 0, head, n);

	if (rc < 0)
		return dcp_fail(err, rc, 0, "cannot read it");
	params = dcp_pdname_read(part->file, &name) && name.kind == DCP_PDKIND_PARAMS;
	if (params && (n == 0 || head[0] != 0x80))
		return tell_stream(dir, part, src, number, true, err);
	if (n == 0)
		return dcp_fail(err, -EBADMSG, 0, "it is empty");
	if (head[0] == 0x80)
		return dcp_pdstate_tell(part, src, number, err);
	if (n == 4 && dcp_load_le32(head) == 0)
		return tell_stream(dir, part, src, number, false, err);
	if (name.kind == DCP_PDKIND_MODEL)
		return dcp_fail(err, -EBADMSG, 0,
				"it is a program, and its tensors (.pdiparams) are not here");
	return dcp_fail(err, -EBADMSG, 0,
			"begins with %02x %02x, expected a pickle (80) or a tensor stream of "
			"Paddle (00 00 00 00)",
			head[0], head[1]);
}

int dcp_pdpart_tell(const struct dcp_dir *dir, const struct dcp_pdpart *part,
		    struct dcp_err *err)
{
	struct dcp_input input;
	uint32_t number;
	int rc = part->sink->file(part->sink->ctx, part->file, &number);

	if (rc < 0)
		return rc;
	rc = dcp_dir_input(dir, part->file, &input, err);
	if (rc < 0)
		return rc;
	if (err)
		err->code = 0;
	rc = tell_content(dir, part, &input.src, number, err);
	if (rc < 0 && err && err->code)
		dcp_err_where(err, rc, "%s", part->file);
	dcp_input_close(&input);
	return rc;
}

int dcp_pdpart_broken(const struct dcp_pdpart *part, const char *why)
{
	struct dcp_object o = {
		.key = part->label, .path = &part->label, .npath = 1, .type = "", .error = why
	};

	return part->sink->object(part->sink->ctx, &o);
}

/* ---- the files of a version ---- */

struct version {
	struct dcp_arena arena;
	struct dcp_pdpart *parts;
	struct dcp_pdname *names; /* of the parts */
	size_t n;
	bool attrs, extensions, ranks; /* what there is; extensions: more than one */
};

/* A program is no part; a file that is called like one and is a pickle is. */
static bool is_program(const struct dcp_dir *dir, const char *file)
{
	struct dcp_input input;
	uint8_t first = 0;

	if (dcp_dir_input(dir, file, &input, NULL) < 0)
		return false;
	if (input.src.size > 0 && dcp_source_read(&input.src, 0, &first, 1) < 0)
		first = 0x80;
	dcp_input_close(&input);
	return first != 0x80;
}

static void take_parts(struct version *v, const struct dcp_load *in, bool all)
{
	for (size_t i = 0; i < in->dir->n; i++) {
		const struct dcp_dirent *e = &in->dir->entries[i];
		struct dcp_pdname *name = &v->names[v->n];

		if (e->is_dir || !dcp_pdname_read(e->name, name) ||
		    name->kind == DCP_PDKIND_JSON || name->kind == DCP_PDKIND_INFO)
			continue;
		if (name->kind == DCP_PDKIND_ATTR && !all) {
			v->attrs = true;
			continue;
		}
		if (name->kind == DCP_PDKIND_MODEL && !all && is_program(in->dir, e->name))
			continue;
		v->extensions |= v->n && strcmp(v->names[0].extension, name->extension) != 0;
		v->ranks |= name->ranks[0];
		v->parts[v->n++] = (struct dcp_pdpart){ .file = e->name, .sink = in->sink };
	}
}

/* What tells the parts apart: their extensions, their ranks, or both. */
static int label(struct version *v)
{
	for (size_t i = 0; i < v->n; i++) {
		const struct dcp_pdname *name = &v->names[i];
		const char *dot = name->ranks[0] && v->extensions ? "." : "";
		const char *end = !name->ranks[0] || v->extensions ? name->extension : "";
		size_t n = strlen(name->ranks) + strlen(end) + 2;
		char *text = dcp_arena_alloc(&v->arena, n);

		if (!text)
			return -ENOMEM;
		snprintf(text, n, "%s%s%s", name->ranks, dot, end);
		v->parts[i].label = text;
	}
	return 0;
}

static int take_version(struct version *v, const struct dcp_load *in, struct dcp_err *err)
{
	size_t n = in->dir->n + 1;

	dcp_arena_init(&v->arena, MEMORY + n * (sizeof(*v->parts) + sizeof(*v->names)));
	v->parts = dcp_arena_calloc(&v->arena, n, sizeof(*v->parts));
	v->names = dcp_arena_calloc(&v->arena, n, sizeof(*v->names));
	if (v->parts && v->names) {
		take_parts(v, in, false);
		if (v->n == 0) { /* whatever there is: it says itself why it is nothing */
			v->attrs = false;
			take_parts(v, in, true);
		}
		if (label(v) == 0)
			return 0;
	}
	return dcp_fail(err, -ENOMEM, DCP_ERR_NO_OFFSET, "out of memory for names of files");
}

/* ---- ranks that are not there ---- */

/* @file with another number in place of its last one, as wide. */
static void other_rank(char *out, size_t n, const char *file, const char *extension,
		       uint64_t rank)
{
	size_t end = (size_t)(extension - file) - 1, start = end;

	while (start > 0 && file[start - 1] >= '0' && file[start - 1] <= '9')
		start--;
	snprintf(out, n, "%.*s%0*" PRIu64 "%s", (int)start, file,
		 end - start > 1 && file[start] == '0' ? (int)(end - start) : 1, rank,
		 file + end);
}

/* Files "w_rank0", "w_rank3": tell that ranks 1 and 2 are missing. */
static int tell_missing(const struct version *v, const struct dcp_load *in)
{
	const struct dcp_pdname *last = NULL;
	const char *like = "";
	size_t told = 0;
	int rc = 0;

	for (size_t i = 0; i < v->n; i++)
		if (v->names[i].one_rank && (!last || v->names[i].rank > last->rank)) {
			last = &v->names[i];
			like = v->parts[i].file;
		}
	for (uint64_t r = 0; rc == 0 && last && r < last->rank && told < MAX_MISSING; r++) {
		char file[DCP_GROUP_MAX + 32], why[DCP_GROUP_MAX + 128];
		char text[2 * DCP_GROUP_MAX];
		struct dcp_pdpart gone = { .label = text, .sink = in->sink };
		struct dcp_pdname name;

		other_rank(file, sizeof(file), like, last->extension, r);
		if (dcp_dir_find(in->dir, file) || !dcp_pdname_read(file, &name))
			continue;
		snprintf(text, sizeof(text), "%s%s%s", name.ranks, v->extensions ? "." : "",
			 v->extensions ? name.extension : "");
		snprintf(why, sizeof(why),
			 "%s is missing: there are files of ranks up to %" PRIu64, file,
			 last->rank);
		rc = dcp_pdpart_broken(&gone, why);
		told++;
	}
	return rc;
}

static int load(const struct dcp_load *in, struct dcp_err *err)
{
	struct version v = { 0 };
	int rc = take_version(&v, in, err);

	if (rc == 0 && v.n == 0)
		rc = dcp_fail(err, -ENOENT, DCP_ERR_NO_OFFSET, "no file of Paddle's in it");
	if (rc == 0 && v.attrs)
		rc = dcp_pdauto(in, v.parts, v.names, v.n, err);
	else if (rc == 0 && v.n == 1)
		rc = dcp_pdpart_tell(in->dir, &v.parts[0], err);
	else if (rc == 0)
		rc = dcp_pdmerge(in, v.parts, v.n, err);
	if (rc == 0 && v.n > 1 && !v.attrs)
		rc = tell_missing(&v, in);
	dcp_arena_finish(&v.arena);
	return rc < 0 ? rc : in->sink->meta(in->sink->ctx, "framework", "paddle");
}

const struct dcp_format dcp_format_paddle_plain = {
	.name = "paddle-plain",
	.what = "paddle.save files",
	.probe = probe,
	.group = group,
	.load = load,
};
