/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the weights of several tensor-parallel ranks. A weight that cannot be joined is emitted for
 * each rank: mp_rank_01.module.<name>. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/bytes.h"
#include "core/format/deepspeed/deepspeed_int.h"
#include "core/format/torch/torch.h"

/* module_sink: a sink in front of another, for module.<name>. */

/* Is the weight @name, in a file of @kind, a frozen weight or a buffer, which the optimizer does
 * not have? Tied weights have other names in files of pipeline layers, so there only buffers
 * count. */
static bool dcp_deepspeed_is_fp32(const struct dcp_deepspeed *ds, uint8_t kind,
				  const char *name)
{
	if (!ds->zero || dcp_intern_has(&ds->trained, name) ||
	    dcp_intern_has(&ds->frozen, name) || dcp_intern_has(&ds->emitted, name))
		return false;
	return kind == DCP_DEEPSPEED_MODEL || dcp_intern_has(&ds->buffers, name);
}

/* Emit a tensor as module / name: a state dict is flat, even if its names contain dots. */
static int put_in_front(void *ctx, const struct dcp_tensor *emitted)
{
	struct dcp_deepspeed_front *f = ctx;
	struct dcp_deepspeed *ds = f->ds;
	const char *name = emitted->key + strlen("module.");
	const char *path[2] = { "module", name };
	struct dcp_tensor t = *emitted;
	bool trained = dcp_intern_has(&ds->trained, name),
	     frozen = dcp_intern_has(&ds->frozen, name);
	uint64_t volume;
	int rc;

	if (strncmp(emitted->key, "module.", strlen("module.")) != 0)
		return dcp_emit_tensor(ds->in->sink, emitted);
	if (f->file->sharded && (trained || frozen) &&
	    dcp_shape_volume(t.shape, t.ndim, &volume) && volume == 0)
		return 0;
	t.path = path;
	t.npath = 2;
	rc = dcp_emit_tensor(ds->in->sink, &t);
	if (rc < 0 || !dcp_deepspeed_is_fp32(ds, f->file->kind, name))
		return rc;
	path[0] = "fp32";
	t.alias_of = t.npieces ? emitted->key : NULL;
	t.key = NULL;
	return dcp_emit_tensor(ds->in->sink, &t);
}

struct dcp_sink dcp_deepspeed_front_sink(struct dcp_deepspeed_front *f)
{
	return (struct dcp_sink){ .tensor = put_in_front, .ctx = f, .next = f->ds->in->sink };
}

/* The state dict in a file: its root, or in a model file the entry "module". */
const struct dcp_pv *dcp_deepspeed_state_dict(const struct dcp_deepspeed_name *name,
					      const struct dcp_deepspeed_input *in,
					      struct dcp_pv *room)
{
	*room = dcp_torch_root(in->t);
	return name->kind == DCP_DEEPSPEED_MODEL ? dcp_pv_get(*room, "module") : room;
}

/* The files of one model, layer or expert. */
struct unit {
	struct dcp_deepspeed *ds;
	const struct dcp_deepspeed_name *file;
	size_t n;
	struct dcp_deepspeed_input *in;
	struct dcp_intern *names;    /* of each file: key -> number of the pair */
	const struct dcp_pv **pairs; /* of each file */
	struct dcp_torch_tensor *tt; /* of each file: its part of the current tensor */
	struct dcp_arena scratch;
	struct dcp_buf name;
};

static int number_names(struct unit *u, size_t k)
{
	struct dcp_pv room;
	const struct dcp_pv *dict = dcp_deepspeed_state_dict(&u->file[k], &u->in[k], &room);
	char odd[24];
	size_t n = 0;
	int rc = 0;

	u->pairs[k] = dict ? dcp_pv_pairs(*dict, &n) : NULL;
	for (size_t i = 0; rc >= 0 && i < n; i++) {
		const char *name = dcp_pv_str(u->pairs[k][2 * i]);
		uint32_t number;

		/* Each pair gets a number, so a key that is no text, or was seen before, gets a
		 * name that no text has. */
		rc = name ? dcp_intern_str(&u->names[k], name, &number) : 0;
		if (rc == 0) {
			int len = snprintf(odd, sizeof(odd), "\xff%zu", i);

			rc = dcp_intern_add(&u->names[k], odd, (size_t)len, DCP_INTERN_NONE,
					    &number);
		}
	}
	return rc < 0 ? -ENOMEM : 0;
}

static int open_unit(struct unit *u)
{
	int rc = 0;

	for (size_t k = 0; rc == 0 && k < u->n; k++) {
		struct dcp_err why = { 0 };

		rc = dcp_deepspeed_open(u->ds, u->file[k].name, &u->in[k], &why);
		if (rc == 1 && u->file[k].kind != DCP_DEEPSPEED_MODEL)
			rc = dcp_deepspeed_emit_broken(u->ds, u->file[k].name, why.msg);
		else if (rc == 1)
			rc = 0;
		else if (rc == 0)
			rc = number_names(u, k);
	}
	return rc;
}

static const char *full_name(struct unit *u, const char *key)
{
	dcp_buf_reset(&u->name);
	if (u->file->kind == DCP_DEEPSPEED_LAYER)
		dcp_buf_printf(&u->name, "%" PRIu32 ".", u->file->layer);
	dcp_buf_str(&u->name, key);
	return dcp_buf_error(&u->name) ? NULL : u->name.p;
}

/* Make @p the piece of @tt that fills @box; false: its offset does not fit into 64 bits. */
static bool box_piece(const struct dcp_torch_tensor *tt, const struct dcp_deepspeed_box *box,
		      uint32_t file, uint32_t ndim, struct dcp_piece *p)
{
	uint64_t last = 0, step;

	*p = (struct dcp_piece){ .lo = box->lo,
				 .len = box->len,
				 .run_n = box->n,
				 .file = file,
				 .enc = DCP_ENC_PLAIN,
				 .filter = (uint8_t)tt->filter,
				 .swap = tt->swap };
	if (tt->row_major) {
		p->off = tt->off + box->first * tt->itemsize;
		p->nbytes = box->n * tt->itemsize;
		return true;
	}
	if (ndim != tt->ndim)
		return false;
	p->off = tt->off;
	p->stride = tt->stride;
	for (uint32_t d = 0; d < ndim; d++) {
		if (dcp_ckd_mul(&step, box->len[d] - 1, tt->stride[d]) ||
		    dcp_ckd_add(&last, last, step) || box->from[d] >= tt->shape[d])
			return false;
		p->off += box->from[d] * tt->stride[d] * tt->itemsize; /* fits: inside of it */
	}
	p->nbytes = (last + 1) * tt->itemsize;
	return true;
}

static int emit_local(struct unit *u, size_t k, const char *key)
{
	const struct dcp_torch_tensor *tt = &u->tt[k];
	struct dcp_piece piece = { .file = u->in[k].file };
	struct dcp_tensor t = { 0 };
	const char *name = full_name(u, key);
	char rank[24];

	if (!name)
		return -ENOMEM;
	t.error = dcp_torch_one_piece(tt, 0, &t, &piece);
	snprintf(rank, sizeof(rank), "mp_rank_%02" PRIu32, u->file[k].mp);
	return dcp_deepspeed_emit_one(u->ds, rank, "module", name, &t);
}

/* Add the sum or mean of all ranks as one piece. Returns the reason if that is impossible, or
 * NULL. */
static const char *add_up(struct unit *u, const struct dcp_deepspeed_whole *w,
			  struct dcp_piece *p)
{
	struct dcp_term *more = dcp_arena_calloc(&u->scratch, u->n, sizeof(*more));
	const struct dcp_torch_tensor *tt = u->tt;

	if (!more)
		return "out of memory";
	if (!dcp_dtype_can_add(tt->dtype))
		return "it is a sum of what the ranks hold, which are not numbers that can be "
		       "added up";
	for (size_t k = 0; k < u->n; k++) {
		if (!tt[k].row_major || tt[k].swap || tt[k].filter)
			return "its ranks hold it in an order that cannot be added up";
		more[k] = (struct dcp_term){ .off = tt[k].off, .file = u->in[k].file };
	}
	p->filter = DCP_FILTER_SUM;
	p->mean = w->mean;
	p->more = more + 1;
	p->nmore = (uint32_t)u->n - 1;
	return NULL;
}

static int emit_whole(struct unit *u, const char *name, const struct dcp_deepspeed_whole *w,
		      const char *error)
{
	struct dcp_deepspeed *ds = u->ds;
	const struct dcp_torch_tensor *tt = u->tt;
	dcp_auto_buf struct dcp_buf pieces = DCP_BUF_INIT;
	struct dcp_tensor t = { .dtype = tt->dtype,
				.dtype_name = tt->dtype_name,
				.itemsize = tt->itemsize,
				.ndim = w->ndim,
				.shape = w->shape,
				.error = error };
	struct dcp_piece p;
	int rc;

	for (size_t i = 0; !t.error && i < w->nbox; i++) {
		if (w->box[i].n == 0)
			continue;
		if (!box_piece(&u->tt[w->box[i].local], &w->box[i], u->in[w->box[i].local].file,
			       w->ndim, &p))
			t.error = "its ranks hold it in an order that cannot be joined";
		if (w->sum && !t.error)
			t.error = add_up(u, w, &p);
		dcp_buf_add(&pieces, &p, sizeof(p));
	}
	if (dcp_buf_error(&pieces))
		return -ENOMEM;
	t.pieces = DCP_ITEMS(pieces, struct dcp_piece);
	t.npieces = t.error ? 0 : pieces.n / sizeof(p);
	rc = dcp_deepspeed_emit_one(ds, NULL, "module", name, &t);
	if (rc < 0 || !dcp_deepspeed_is_fp32(ds, u->file->kind, name))
		return rc;
	return dcp_deepspeed_emit_one(ds, NULL, "fp32", name, &t);
}

/* Put the tensors with @key of all ranks into u->tt. Returns the reason if they are not pieces of
 * one tensor, or NULL. */
static const char *gather_tensors(struct unit *u, const char *key, uint32_t first)
{
	for (size_t k = 0; k < u->n; k++) {
		uint32_t at = k == 0 ? first : dcp_intern_find(&u->names[k], key, strlen(key));
		struct dcp_err why = { 0 };

		if (at == DCP_INTERN_NONE)
			return "a tensor-parallel rank does not have it";
		if (dcp_torch_tensor(u->in[k].t, u->pairs[k][2 * at + 1], &u->tt[k], &why) != 1)
			return "a tensor-parallel rank has no tensor of that name";
		if (u->tt[k].dtype != u->tt[0].dtype ||
		    strcmp(u->tt[k].dtype_name, u->tt[0].dtype_name) != 0)
			return "its tensor-parallel ranks hold different dtypes";
	}
	return NULL;
}

static int emit_unjoined(struct unit *u, const char *key)
{
	int rc = 0;

	for (size_t k = 0; rc == 0 && k < u->n; k++) {
		uint32_t at = u->in[k].t ? dcp_intern_find(&u->names[k], key, strlen(key))
					 : DCP_INTERN_NONE;

		if (at != DCP_INTERN_NONE &&
		    dcp_torch_tensor(u->in[k].t, u->pairs[k][2 * at + 1], &u->tt[k], NULL) == 1)
			rc = emit_local(u, k, key);
	}
	return rc;
}

/* Emit an object or a broken tensor among the weights, unchanged from rank 0. */
static int emit_other(struct unit *u, const char *key, uint32_t at)
{
	struct dcp_deepspeed_front front = { .ds = u->ds, .file = u->file };
	struct dcp_sink sink = dcp_deepspeed_front_sink(&front);
	const char *name = full_name(u, key);
	const char *prefix[] = { "module", name };
	struct dcp_torch_state s = { .t = u->in->t,
				     .root = &u->pairs[0][2 * at + 1],
				     .sink = &sink,
				     .prefix = prefix,
				     .nprefix = 2,
				     .file = u->in->file };

	return name ? dcp_torch_state_emit(&s) : -ENOMEM;
}

/* Do all ranks hold the same bytes? Only small tensors are compared. */
static bool all_same(struct unit *u)
{
	uint64_t n;
	uint8_t a[4096], b[4096];

	if (!dcp_shape_volume(u->tt->shape, u->tt->ndim, &n) ||
	    dcp_ckd_mul(&n, n, u->tt->itemsize) || !dcp_deepspeed_may_compare(u->ds, n, u->n))
		return false;
	for (size_t k = 1; k < u->n; k++) {
		if (!u->tt->row_major || !u->tt[k].row_major || u->tt[k].ndim != u->tt->ndim ||
		    u->tt[k].filter != u->tt->filter ||
		    memcmp(u->tt[k].shape, u->tt->shape, u->tt->ndim * sizeof(uint64_t)) != 0)
			return false;
		for (uint64_t at = 0; at < n; at += sizeof(a)) {
			size_t part = (size_t)DCP_MIN(n - at, sizeof(a));

			if (dcp_source_read(&u->in->in.src, u->tt->off + at, a, part) < 0 ||
			    dcp_source_read(&u->in[k].in.src, u->tt[k].off + at, b, part) < 0 ||
			    memcmp(a, b, part) != 0)
				return false;
		}
	}
	return true;
}

/* The name for which the rules are made, as the optimizer has it. The file of a pipeline layer
 * names its part of a tied module differently: "1.weight" for "tied_modules.embed.weight". */
static const char *ruled_name(struct unit *u, const char *key, const char *name)
{
	static const char tied[] = "tied_modules.";
	const struct dcp_intern *trained = &u->ds->trained;

	if (u->file->kind != DCP_DEEPSPEED_LAYER || dcp_intern_has(trained, name))
		return name;
	for (uint32_t i = 0; i < trained->n; i++) {
		const char *other = dcp_intern_text(trained, i), *dot;

		if (strncmp(other, tied, strlen(tied)) != 0)
			continue;
		dot = strchr(other + strlen(tied), '.');
		if (dot && strcmp(dot + 1, key) == 0)
			return other;
	}
	return name;
}

/* Do the rules not concern @name? Rules are for parameters, not buffers; if they name every
 * parameter, any other name is an alias. */
static bool is_unruled(const struct unit *u, const char *name,
		       const struct dcp_deepspeed_rule *rule, const char *why)
{
	if (!why && !rule->by_default)
		return false;
	return dcp_intern_has(&u->ds->buffers, name) ||
	       (!why && rule->complete && !dcp_intern_has(&u->ds->trained, name));
}

/* If no rule has the name, ranks with equal tensors hold the whole tensor. */
static const char *rule_of(struct unit *u, const char *key, const char *name,
			   struct dcp_deepspeed_rule *rule)
{
	const char *why = dcp_deepspeed_rule(u->ds, ruled_name(u, key, name), rule);
	bool unruled = is_unruled(u, name, rule, why);

	if (unruled)
		*rule = (struct dcp_deepspeed_rule){ .cut = DCP_DEEPSPEED_CUT_AVERAGED };
	else if (why)
		return why;
	if (rule->cut == DCP_DEEPSPEED_CUT_AVERAGED && all_same(u))
		rule->cut = DCP_DEEPSPEED_CUT_REPLICATED;
	return unruled && rule->cut == DCP_DEEPSPEED_CUT_AVERAGED
		       ? "no rule names it, and ranks have different values of it"
		       : NULL;
}

/* In stage 3, parameters that the optimizer has are empty tensors here. */
static bool is_placeholder(const struct unit *u, const char *name,
			   const struct dcp_torch_tensor *tt)
{
	uint64_t volume;

	return u->file->sharded && dcp_shape_volume(tt->shape, tt->ndim, &volume) &&
	       volume == 0 &&
	       (dcp_intern_has(&u->ds->trained, name) || dcp_intern_has(&u->ds->frozen, name));
}

static int emit_key(struct unit *u, uint32_t at)
{
	const char *key = dcp_pv_str(u->pairs[0][2 * at]), *name, *why;
	struct dcp_deepspeed_local *local;
	struct dcp_deepspeed_whole whole;
	struct dcp_deepspeed_rule rule = { 0 };
	int rc;

	if (!key)
		return 0;
	if (dcp_torch_tensor(u->in->t, u->pairs[0][2 * at + 1], &u->tt[0], NULL) != 1)
		return emit_other(u, key, at);
	dcp_arena_reset(&u->scratch);
	local = dcp_arena_calloc(&u->scratch, u->n, sizeof(*local));
	why = local ? gather_tensors(u, key, at) : "out of memory";
	name = full_name(u, key);
	if (!name)
		return -ENOMEM;
	if (is_placeholder(u, name, u->tt))
		return 0;
	for (size_t k = 0; !why && k < u->n; k++)
		local[k] = (struct dcp_deepspeed_local){ u->tt[k].ndim, u->tt[k].shape };
	if (!why)
		why = rule_of(u, key, name, &rule);
	if (!why)
		why = dcp_deepspeed_join(&rule, local, u->n, &u->scratch, &whole);
	if (!why)
		return emit_whole(u, name, &whole, NULL);
	rc = dcp_deepspeed_note_unjoined(u->ds, name, why, &rule);
	return rc < 0 ? rc : emit_unjoined(u, key);
}

/* Emit the unit as broken, because the file of a rank is missing or damaged. */
static int emit_holed(struct unit *u, const char *why)
{
	struct dcp_deepspeed_whole none = { 0 };
	int rc = 0;

	for (size_t k = 0; k < u->n; k++) {
		if (!u->in[k].t)
			continue;
		for (uint32_t i = 0; rc == 0 && i < u->names[k].n; i++) {
			const char *key = dcp_pv_str(u->pairs[k][2 * i]), *name;

			if (!key || dcp_torch_tensor(u->in[k].t, u->pairs[k][2 * i + 1], u->tt,
						     NULL) != 1)
				continue;
			name = full_name(u, key);
			if (name && is_placeholder(u, name, u->tt))
				continue;
			none.ndim = u->tt->ndim;
			memcpy(none.shape, u->tt->shape, sizeof(none.shape));
			rc = name ? emit_whole(u, name, &none, why) : -ENOMEM;
		}
		break;
	}
	return rc;
}

static int emit_unit_files(struct unit *u)
{
	char missing[DCP_DEEPSPEED_NAME_MAX + 40] = "";
	int rc = open_unit(u);

	for (size_t k = 0; k < u->n; k++)
		if (rc == 0 && !u->in[k].t && !missing[0])
			snprintf(missing, sizeof(missing), "%.95s cannot be read",
				 u->file[k].name);
	if (rc == 0 && u->n < u->ds->tp)
		snprintf(missing, sizeof(missing),
			 "%.60s: only %zu of %" PRIu32 " ranks have such a file", u->file->name,
			 u->n, u->ds->tp);
	if (rc == 0 && missing[0])
		return emit_holed(u, missing);
	for (uint32_t i = 0; rc == 0 && i < u->names[0].n; i++)
		rc = emit_key(u, i);
	return rc;
}

int dcp_deepspeed_emit_unit(struct dcp_deepspeed *ds, const struct dcp_deepspeed_name *file,
			    size_t n)
{
	struct unit u = { .ds = ds, .file = file, .n = n };
	int rc = -ENOMEM;

	u.in = calloc(n, sizeof(*u.in));
	u.names = calloc(n, sizeof(*u.names));
	u.pairs = calloc(n, sizeof(*u.pairs));
	u.tt = calloc(n, sizeof(*u.tt));
	dcp_arena_init(&u.scratch, 256u << 20);
	rc = u.in && u.names && u.pairs && u.tt ? emit_unit_files(&u) : -ENOMEM;
	for (size_t k = 0; u.in && u.names && k < n; k++) {
		dcp_deepspeed_close(&u.in[k]);
		dcp_intern_finish(&u.names[k]);
	}
	dcp_arena_finish(&u.scratch);
	dcp_buf_finish(&u.name);
	free(u.in);
	free(u.names);
	free(u.pairs);
	free(u.tt);
	return rc;
}
