/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paddle's plain files: those of paddle.save, save_inference_model, jit.save, group_sharded and
 * paddle.incubate.distributed.utils.io.
 *
 *	model.pdparams model.pdopt             version model
 *	opt_rank0.pdopt opt_rank1.pdopt        version opt: whole tensors, each in some rank's file
 *	infer.pdiparams infer.pdmodel          version infer: the .pdmodel names the tensors
 *	w_dist0.pdparams w_dist0.pdattr ...    version w: pieces, see auto.c
 *	state.pdz                              version state.pdz
 *
 * The first bytes of a file decide how it is read; names only group files.
 */
#include "core/format/paddle/plain/plain_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/hash.h"
#include "core/base/intern.h"
#include "core/base/text.h"
#include "core/format/formats.h"

/*
 * Several files as one version. Every file is read twice: first only to learn the keys, then to
 * emit. If several files have a key, each file's label is put in front of the key. But if the key
 * has the same value in all files, as parameters of data-parallel ranks have, it is emitted once.
 *
 * No file records which values are replicas, so values are compared. Tensors of up to
 * DCP_PLAIN_SAME_WHOLE bytes are compared as a whole. Of larger tensors only samples are compared:
 * they count as replicas only if all tensors that several files hold are equal. If one tensor
 * differs, the model may be tensor-parallel: then weights differ, too, and samples may not show it.
 *
 * The same rule is used for an object and the tensors inside it, since its JSON names them.
 */

/* Stored bytes are compared, not values: if two files hold a value in different orders or
 * encodings, it counts as different. The only cost is that the value is emitted twice. */

enum { BLOCKS = 4, BLOCK = 4096 }; /* of a larger value */

/* Hash all properties of a piece except its place in the file. */
static void add_form(struct dcp_hash128 *h, const struct dcp_tensor *t,
		     const struct dcp_piece *p)
{
	const uint64_t numbers[] = { p->run_lo, p->run_n, p->nbytes,        p->enc,
				     p->filter, p->swap,  p->stride != NULL };

	dcp_hash128_add(h, p->lo, t->ndim * sizeof(*p->lo));
	dcp_hash128_add(h, p->len, t->ndim * sizeof(*p->len));
	if (p->stride)
		dcp_hash128_add(h, p->stride, t->ndim * sizeof(*p->stride));
	dcp_hash128_add(h, numbers, sizeof(numbers));
}

static int add_bytes(struct dcp_hash128 *h, const struct dcp_source *src, uint64_t off,
		     uint64_t n)
{
	uint8_t buf[BLOCK];

	while (n > 0) {
		size_t part = (size_t)DCP_MIN(n, sizeof(buf));
		int rc = dcp_source_read(src, off, buf, part);

		if (rc < 0)
			return rc;
		dcp_hash128_add(h, buf, part);
		off += part;
		n -= part;
	}
	return 0;
}

/* Hash all bytes of a piece; or of a large piece the start, the end, and blocks evenly between
 * them. */
static int add_piece(struct dcp_hash128 *h, const struct dcp_source *src,
		     const struct dcp_piece *p, uint64_t *budget, bool *sampled)
{
	bool whole = p->nbytes <= DCP_PLAIN_SAME_WHOLE;
	uint64_t cost = whole ? p->nbytes : BLOCKS * BLOCK;
	int rc = 0;

	if (cost > *budget)
		return -E2BIG;
	*budget -= cost;
	if (whole)
		return add_bytes(h, src, p->off, p->nbytes);
	*sampled = true;
	for (uint64_t i = 0; rc == 0 && i + 1 < BLOCKS; i++)
		rc = add_bytes(h, src, p->off + (p->nbytes - BLOCK) / (BLOCKS - 1) * i, BLOCK);
	return rc < 0 ? rc : add_bytes(h, src, p->off + p->nbytes - BLOCK, BLOCK);
}

int dcp_plain_same_read(const struct dcp_source *src, const struct dcp_tensor *t,
			uint64_t *budget, struct dcp_plain_same *out)
{
	struct dcp_hash128 *h;
	int rc = 0;

	*out = (struct dcp_plain_same){ 0 };
	if (t->error)
		return 0;
	h = dcp_hash128_new();
	if (!h)
		return -ENOMEM;
	dcp_hash128_add(h, t->dtype_name, strlen(t->dtype_name) + 1);
	dcp_hash128_add(h, &t->ndim, sizeof(t->ndim));
	dcp_hash128_add(h, t->shape, t->ndim * sizeof(*t->shape));
	for (size_t i = 0; rc == 0 && i < t->npieces; i++) {
		add_form(h, t, &t->pieces[i]);
		rc = add_piece(h, src, &t->pieces[i], budget, &out->sampled);
	}
	dcp_hash128_end(h, out->sum);
	out->known = rc == 0;
	return 0;
}

enum { BUDGET = 256 << 20 }; /* bytes of tensors that are read to compare them */

/* One key after the first reading. */
struct seen {
	uint32_t first, last;       /* number of the part that had it */
	uint32_t value;             /* number of an object's JSON; DCP_INTERN_NONE: not known */
	struct dcp_plain_same same; /* of a tensor */
	bool tensor, holds_tensors;
	bool shared; /* several parts have it */
	bool clash;
};

struct merge {
	struct dcp_intern keys, values;
	struct dcp_buf seen;          /* struct seen by number of the key */
	uint32_t part;                /* number of the current part */
	const struct dcp_source *src; /* its file */
	uint64_t budget;
	struct dcp_err *err;
};

static struct seen *seen_of(const struct merge *m, uint32_t number)
{
	return DCP_ITEMS(m->seen, struct seen) + number;
}

static bool is_same(const struct seen *a, const struct seen *b)
{
	if (a->tensor != b->tensor)
		return false;
	if (!a->tensor)
		return a->value != DCP_INTERN_NONE && a->value == b->value;
	return a->same.known && b->same.known &&
	       memcmp(a->same.sum, b->same.sum, sizeof(a->same.sum)) == 0;
}

static int note_value(struct merge *m, const char *key, struct seen s)
{
	struct seen *old;
	uint32_t number;
	int rc = dcp_intern_str(&m->keys, key, &number);

	s.first = s.last = m->part;
	if (rc == 1)
		dcp_buf_add(&m->seen, &s, sizeof(s));
	if (rc < 0 || dcp_buf_error(&m->seen))
		return -ENOMEM;
	if (rc == 1)
		return 0;
	old = seen_of(m, number);
	if (old->last != m->part) {
		old->shared = true;
		old->clash |= !is_same(old, &s);
	}
	old->holds_tensors |= s.holds_tensors;
	old->last = m->part;
	return 0;
}

/* ---- the first reading ---- */

static int note_tensor(void *ctx, const struct dcp_tensor *t)
{
	struct merge *m = ctx;
	struct seen s = { .value = DCP_INTERN_NONE, .tensor = true };

	if (dcp_plain_same_read(m->src, t, &m->budget, &s.same) < 0)
		return -ENOMEM;
	return note_value(m, t->key, s);
}

static int note_object(void *ctx, const struct dcp_object *o)
{
	struct merge *m = ctx;
	struct seen s = { .value = DCP_INTERN_NONE };

	if (o->json &&
	    dcp_intern_add(&m->values, o->json, o->json_len, DCP_INTERN_NONE, &s.value) < 0)
		return -ENOMEM;
	s.holds_tensors = o->json && memmem(o->json, o->json_len, "\"$tensor\":", 10);
	return note_value(m, o->key, s);
}

/* ---- between the readings ---- */

/* The object that contains the tensor @key, or NULL. */
static struct seen *holder_of(const struct merge *m, const char *key)
{
	for (const char *dot = strchr(key, '.'); dot; dot = strchr(dot + 1, '.')) {
		uint32_t number = dcp_intern_find(&m->keys, key, (size_t)(dot - key));

		if (number != DCP_INTERN_NONE && seen_of(m, number)->holds_tensors)
			return seen_of(m, number);
	}
	return NULL;
}

/* If an object or a tensor inside it clashes, let all of these clash. */
static void keep_together(struct merge *m)
{
	for (int way = 0; way < 2; way++)
		for (uint32_t i = 0; i < m->keys.n; i++) {
			struct seen *s = seen_of(m, i), *holder;

			holder = s->tensor ? holder_of(m, dcp_intern_text(&m->keys, i)) : NULL;
			if (holder && way == 0)
				holder->clash |= s->clash;
			else if (holder)
				s->clash |= holder->clash;
		}
}

/* Decide which keys clash, and emit as a fact how many tensors count as replicas. */
static int settle_clashes(struct merge *m, const struct dcp_sink *sink)
{
	uint32_t once = 0, sampled = 0;
	bool differ = false;

	for (uint32_t i = 0; i < m->keys.n; i++)
		differ |= seen_of(m, i)->tensor && seen_of(m, i)->clash;
	for (uint32_t i = 0; differ && i < m->keys.n; i++)
		seen_of(m, i)->clash |= seen_of(m, i)->shared && seen_of(m, i)->same.sampled;
	keep_together(m);
	for (uint32_t i = 0; i < m->keys.n; i++) {
		const struct seen *s = seen_of(m, i);

		once += s->tensor && s->shared && !s->clash;
		sampled += s->same.sampled && s->shared && !s->clash;
	}
	if (once == 0)
		return 0;
	return dcp_emit_fact(sink, 0, "replicas",
			     "%u tensor%s that several files hold: shown once; of %u of them, "
			     "larger than %d bytes, samples were compared",
			     once, dcp_s(once), sampled, DCP_PLAIN_SAME_WHOLE);
}

/* ---- the second reading ---- */

static int choose_label(void *ctx, const char *key)
{
	const struct merge *m = ctx;
	uint32_t number = dcp_intern_find(&m->keys, key, strlen(key));
	const struct seen *s;

	if (number == DCP_INTERN_NONE)
		return 0;
	s = seen_of(m, number);
	if (s->clash)
		return 1;
	return s->first == m->part ? 0 : 2;
}

static int read_part(struct merge *m, const struct dcp_dir *dir,
		     const struct dcp_plain_part *part, struct dcp_err *why)
{
	struct dcp_input input;
	int rc = dcp_dir_input(dir, part->file, &input, why);

	if (rc < 0)
		return rc;
	m->src = &input.src;
	rc = dcp_plain_part_emit(dir, part, why);
	dcp_input_close(&input);
	return rc;
}

/* Read or (@again) emit a part. If the part is broken, the reason is kept in m->err, or emitted.
 * The version is refused if all parts are broken. */
static int emit_part(struct merge *m, const struct dcp_load *in,
		     const struct dcp_plain_part *part, bool again, size_t *nbroken)
{
	const struct dcp_sink notes = { .tensor = note_tensor,
					.object = note_object,
					.ctx = m };
	struct dcp_plain_part p = *part;
	struct dcp_err why = { 0 };
	int rc;

	p.sink = again ? in->sink : &notes;
	p.choose = again ? choose_label : NULL;
	p.ctx = m;
	rc = again ? dcp_plain_part_emit(in->dir, &p, &why) : read_part(m, in->dir, &p, &why);
	if (rc == 0)
		return 0;
	if (rc == -ENOMEM || rc == -ENOSPC || !why.code) {
		if (m->err && why.code)
			*m->err = why;
		return rc;
	}
	(*nbroken)++;
	if (!again && m->err)
		*m->err = why;
	return again ? dcp_plain_part_broken(&p, why.msg) : 0;
}

/* Emit a version of @n parts, at least two, in the order of the version's directory. */
static int dcp_pdmerge(const struct dcp_load *in, const struct dcp_plain_part *parts, size_t n,
		       struct dcp_err *err)
{
	struct merge m = { .budget = BUDGET, .err = err };
	size_t nbroken = 0;
	int rc = 0;

	for (int again = 0; rc == 0 && again < 2; again++) {
		for (size_t i = 0; rc == 0 && i < n; i++) {
			m.part = (uint32_t)i;
			rc = emit_part(&m, in, &parts[i], again, &nbroken);
		}
		if (rc == 0 && !again && nbroken == n)
			rc = err && err->code ? err->code : -EBADMSG;
		if (rc == 0 && !again)
			rc = settle_clashes(&m, in->sink);
	}
	dcp_intern_finish(&m.keys);
	dcp_intern_finish(&m.values);
	dcp_buf_finish(&m.seen);
	return rc;
}

enum {
	MEMORY = 256 << 20, /* labels of a million files */
	MAX_MISSING = 1000, /* absent ranks that are named one by one */
};

static enum dcp_match probe_plain(const struct dcp_dir *dir, char *why, size_t n)
{
	struct dcp_plain_name name;

	for (size_t i = 0; i < dir->n; i++)
		if (!dir->entries[i].is_dir &&
		    dcp_plain_name_read(dir->entries[i].name, &name) &&
		    name.kind != DCP_PDKIND_JSON && name.kind != DCP_PDKIND_INFO)
			return DCP_MATCH_MANY;
	return DCP_MATCH_NO;
}

static bool group_by_name(const char *file, char *version)
{
	struct dcp_plain_name name;

	if (!dcp_plain_name_read(file, &name))
		return false;
	memcpy(version, name.version, strlen(name.version) + 1);
	return true;
}

/* ---- the files of a version ---- */

struct version {
	struct dcp_arena arena;
	struct dcp_plain_part *parts;
	struct dcp_plain_name *names; /* of the parts */
	size_t n;
	bool attrs, extensions, ranks; /* there are .pdattr, several extensions, ranks */
};

/* Is @file a program, which is not a part of the version? A pickle with such a name is a part. */
static bool is_program(const struct dcp_dir *dir, const char *file)
{
	dcp_auto_input struct dcp_input input = { 0 };
	uint8_t first = 0;

	if (dcp_dir_input(dir, file, &input, NULL) < 0)
		return false;
	if (input.src.size > 0 && dcp_source_read(&input.src, 0, &first, 1) < 0)
		first = 0x80;
	return first != 0x80;
}

static void take_parts(struct version *v, const struct dcp_load *in, bool all)
{
	for (size_t i = 0; i < in->dir->n; i++) {
		const struct dcp_dirent *e = &in->dir->entries[i];
		struct dcp_plain_name *name = &v->names[v->n];

		if (e->is_dir || !dcp_plain_name_read(e->name, name) ||
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
		v->parts[v->n++] = (struct dcp_plain_part){ .file = e->name, .sink = in->sink };
	}
}

/* Give the parts labels that distinguish them: their extensions, their ranks, or both. */
static int label_parts(struct version *v)
{
	for (size_t i = 0; i < v->n; i++) {
		const struct dcp_plain_name *name = &v->names[i];
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
		if (v->n == 0) { /* take any file: reading it tells why it cannot be used */
			v->attrs = false;
			take_parts(v, in, true);
		}
		if (label_parts(v) == 0)
			return 0;
	}
	return dcp_fail(err, -ENOMEM, "out of memory for names of files");
}

/* ---- missing ranks ---- */

/* Write the name @file with another rank as its last number, with the same number of digits. */
static void name_other_rank(char *out, size_t n, const char *file, const char *extension,
			    uint64_t rank)
{
	const char *end = extension - 1, *start = dcp_digits_before(file, end);

	snprintf(out, n, "%.*s%0*" PRIu64 "%s", (int)(start - file), file,
		 end - start > 1 && *start == '0' ? (int)(end - start) : 1, rank, end);
}

/* Report gaps between ranks: with files "w_rank0" and "w_rank3", ranks 1 and 2 are missing. */
static int emit_missing(const struct version *v, const struct dcp_load *in)
{
	const struct dcp_plain_name *last = NULL;
	const char *like = "";
	size_t emitted = 0;
	int rc = 0;

	for (size_t i = 0; i < v->n; i++)
		if (v->names[i].one_rank && (!last || v->names[i].rank > last->rank)) {
			last = &v->names[i];
			like = v->parts[i].file;
		}
	for (uint64_t r = 0; rc == 0 && last && r < last->rank && emitted < MAX_MISSING; r++) {
		char file[DCP_GROUP_MAX + 32], why[DCP_GROUP_MAX + 128];
		char text[2 * DCP_GROUP_MAX];
		struct dcp_plain_part gone = { .label = text, .sink = in->sink };
		struct dcp_plain_name name;

		name_other_rank(file, sizeof(file), like, last->extension, r);
		if (dcp_dir_find(in->dir, file) || !dcp_plain_name_read(file, &name))
			continue;
		snprintf(text, sizeof(text), "%s%s%s", name.ranks, v->extensions ? "." : "",
			 v->extensions ? name.extension : "");
		snprintf(why, sizeof(why),
			 "%s is missing: there are files of ranks up to %" PRIu64, file,
			 last->rank);
		rc = dcp_plain_part_broken(&gone, why);
		emitted++;
	}
	return rc;
}

static int load_plain(const struct dcp_load *in, struct dcp_err *err)
{
	struct version v = { 0 };
	int rc = take_version(&v, in, err);

	if (rc == 0 && v.n == 0)
		rc = dcp_fail(err, -ENOENT, "no file of Paddle's in it");
	if (rc == 0 && v.attrs)
		rc = dcp_plain_auto(in, v.parts, v.names, v.n, err);
	else if (rc == 0 && v.n == 1)
		rc = dcp_plain_part_emit(in->dir, &v.parts[0], err);
	else if (rc == 0)
		rc = dcp_pdmerge(in, v.parts, v.n, err);
	if (rc == 0 && v.n > 1 && !v.attrs)
		rc = emit_missing(&v, in);
	dcp_arena_finish(&v.arena);
	return dcp_emit_fact(in->sink, rc, "framework", "paddle");
}

const struct dcp_format dcp_format_paddle_plain = {
	.name = "paddle-plain",
	.what = "paddle.save files",
	.probe = probe_plain,
	.group = group_by_name,
	.load = load_plain,
	.marks =
		(const struct dcp_mark[]){
			{ "*.pdparams", "a Paddle checkpoint" },
			{ 0 },
		},
};
