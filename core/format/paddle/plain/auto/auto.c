/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save_for_auto_inference: each rank wrote its part of every parameter to
 * {prefix}_dist{rank}.pdparams. The .pdattr beside that file records how the parameters were cut:
 *
 *	process_shape  the mesh: [data parallel, model parallel]
 *	process_group  the ranks in the mesh, row-major
 *	dims_mapping   for each dimension of the tensor, the dimension of the mesh that cuts it into
 *	               equal pieces, or -1
 *
 * Ranks at the same place in all mesh dimensions that cut a tensor hold copies of one part; the
 * lowest rank's copy is emitted.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/gather/join.h"
#include "core/format/paddle/plain/plain_int.h"
#include "core/model/tensor.h"
#include "core/parse/pickle/pickle.h"

/* The attributes of a key in one rank's .pdattr. */
struct dcp_pdsaid {
	uint32_t rank; /* index in ranks */
	struct dcp_pv v;
	struct dcp_pdsaid *next;
};

/* The attributes of one key from all ranks, in the order of ranks. */
struct dcp_pdentry {
	struct dcp_pdsaid *said, *last;
};

struct dcp_pdrank {
	const struct dcp_plain_part *part;
	uint64_t number;
	struct dcp_pickle *attr;
	const char *why;             /* not NULL: its tensors cannot be read */
	const struct dcp_copy *held; /* its copy of the current key */
};

struct dcp_pdjoin {
	const struct dcp_load *in;
	struct dcp_pdrank *ranks; /* sorted by number */
	size_t nranks;
	struct dcp_copies copies; /* by index of the rank */
	struct dcp_buf entries;   /* struct dcp_pdentry, by number of the key */
	uint32_t at;              /* the rank whose files are being read */
	struct dcp_err *err;
};

/* Emit every key, after all ranks were read. */
int dcp_pdjoin_emit(struct dcp_pdjoin *j);

/* ---- how a tensor was cut ---- */

enum { DCP_PDCUT_MESH = 8 }; /* dimensions; Paddle writes one or two */

struct dcp_pdcut {
	uint64_t mesh[DCP_PDCUT_MESH];
	uint64_t step[DCP_PDCUT_MESH]; /* places between neighbours */
	size_t nmesh;
	const struct dcp_pv *group; /* ranks by place */
	size_t nplaces;
	int8_t by[DCP_MAX_NDIM]; /* mesh dimension that cuts; -1: none */
};

/* Read the attributes @v of a tensor of @ndim dimensions: 0, or -EBADMSG described in @why. */
int dcp_pdcut_read(struct dcp_pdcut *c, struct dcp_pv v, uint32_t ndim, struct dcp_err *why);
bool dcp_pdcut_same(const struct dcp_pdcut *a, const struct dcp_pdcut *b);

/* The number of the part that the rank at @place holds: its place in the mesh dimensions that cut
 * the tensor, row-major over the tensor's dimensions. */
uint64_t dcp_pdcut_part(const struct dcp_pdcut *c, uint32_t ndim, uint64_t place);

enum { MAX_RANKS = 1 << 20 }; /* in one mesh */

static int read_mesh(struct dcp_pdcut *c, struct dcp_pv v, struct dcp_err *why)
{
	const struct dcp_pv *item = dcp_pv_items(dcp_pv_at(v, "process_shape"), &c->nmesh);
	uint64_t n = 1;

	c->group = dcp_pv_items(dcp_pv_at(v, "process_group"), &c->nplaces);
	if (c->nmesh == 0 || c->nmesh > DCP_PDCUT_MESH)
		return dcp_fail(why, -EBADMSG,
				"process_shape of %zu dimensions, expected 1 to %d", c->nmesh,
				DCP_PDCUT_MESH);
	for (size_t m = c->nmesh; m-- > 0;) {
		c->step[m] = n;
		if (!dcp_pv_u64(item[m], &c->mesh[m]) || c->mesh[m] == 0 ||
		    dcp_ckd_mul(&n, n, c->mesh[m]) || n > MAX_RANKS)
			return dcp_fail(why, -EBADMSG,
					"process_shape is not a mesh of up to %d ranks",
					MAX_RANKS);
	}
	if (n != c->nplaces)
		return dcp_fail(why, -EBADMSG,
				"process_group has %zu rank%s, process_shape %" PRIu64
				" place%s",
				c->nplaces, dcp_s(c->nplaces), n, dcp_s(n));
	return 0;
}

int dcp_pdcut_read(struct dcp_pdcut *c, struct dcp_pv v, uint32_t ndim, struct dcp_err *why)
{
	const struct dcp_pv *map = dcp_pv_get(v, "dims_mapping"), *item;
	uint32_t used = 0;
	size_t n;
	int rc;

	*c = (struct dcp_pdcut){ 0 };
	rc = read_mesh(c, v, why);
	if (rc < 0)
		return rc;
	item = dcp_pv_items(dcp_pv_at(v, "dims_mapping"), &n);
	if (!map || n != ndim)
		return dcp_fail(why, -EBADMSG,
				"dims_mapping is for %zu dimension%s, the tensor has %" PRIu32,
				n, dcp_s(n), ndim);
	for (uint32_t d = 0; d < ndim; d++) {
		if (item[d].type != DCP_PV_INT || item[d].i < -1 ||
		    item[d].i >= (int64_t)c->nmesh)
			return dcp_fail(why, -EBADMSG,
					"dims_mapping of dimension %" PRIu32
					" is not a dimension of process_shape",
					d);
		c->by[d] = (int8_t)item[d].i;
		if (c->by[d] >= 0 && used >> c->by[d] & 1)
			return dcp_fail(why, -EBADMSG,
					"dims_mapping cuts two dimensions by one of the mesh");
		if (c->by[d] >= 0)
			used |= 1u << c->by[d];
	}
	return 0;
}

static bool same_ranks(const struct dcp_pdcut *a, const struct dcp_pdcut *b)
{
	for (size_t i = 0; i < a->nplaces; i++) {
		uint64_t x, y;

		if (!dcp_pv_u64(a->group[i], &x) || !dcp_pv_u64(b->group[i], &y) || x != y)
			return false;
	}
	return true;
}

bool dcp_pdcut_same(const struct dcp_pdcut *a, const struct dcp_pdcut *b)
{
	return a->nmesh == b->nmesh && a->nplaces == b->nplaces &&
	       memcmp(a->mesh, b->mesh, sizeof(a->mesh)) == 0 &&
	       memcmp(a->by, b->by, sizeof(a->by)) == 0 &&
	       (a->group == b->group || same_ranks(a, b));
}

uint64_t dcp_pdcut_part(const struct dcp_pdcut *c, uint32_t ndim, uint64_t place)
{
	uint64_t number = 0;

	for (uint32_t d = 0; d < ndim; d++)
		if (c->by[d] >= 0)
			number = number * c->mesh[c->by[d]] +
				 place / c->step[c->by[d]] % c->mesh[c->by[d]];
	return number;
}

/* One key while its parts are joined. */
struct joined {
	struct dcp_pdjoin *j;
	const struct dcp_copy *like; /* a readable part; all other parts must have its form */
	struct dcp_tensor t;
	uint64_t shape[DCP_MAX_NDIM];
	uint64_t nparts;              /* counting each set of copies once */
	const struct dcp_copy **part; /* by number */
	struct dcp_err why;
};

/* Read how the key was cut, on which the attributes of all ranks must agree; -ENOENT: there are no
 * attributes. */
static int agree_on_cut(struct joined *x, const struct dcp_pdentry *e, struct dcp_pdcut *cut)
{
	const struct dcp_pdrank *ranks = x->j->ranks;
	struct dcp_pdcut other;

	if (!e->said)
		return dcp_fail(&x->why, -ENOENT,
				"several ranks hold it and no .pdattr says how it was cut");
	for (const struct dcp_pdsaid *s = e->said; s; s = s->next) {
		int rc = dcp_pdcut_read(s == e->said ? cut : &other, s->v, x->t.ndim, &x->why);

		if (rc < 0)
			return dcp_err_where(&x->why, rc, "attributes of rank %" PRIu64,
					     ranks[s->rank].number);
		if (s != e->said && !dcp_pdcut_same(cut, &other))
			return dcp_fail(&x->why, -EBADMSG,
					"attributes of ranks %" PRIu64 " and %" PRIu64
					" disagree about how it was cut",
					ranks[e->said->rank].number, ranks[s->rank].number);
	}
	return 0;
}

/* ---- who holds which part ---- */

static int same_form(struct joined *x, const struct dcp_copy *h)
{
	if (dcp_copies_alike(&x->like->t, &h->t))
		return 0;
	return dcp_fail(&x->why, -EBADMSG,
			"%.120s and %.120s have parts of different shape or dtype, expected "
			"equal ones",
			x->like->file, h->file);
}

static struct dcp_pdrank *rank_of(const struct dcp_pdjoin *j, uint64_t number)
{
	size_t i;

	DCP_BISECT(i, 0, j->nranks, j->ranks[i].number < number);
	return i < j->nranks && j->ranks[i].number == number ? &j->ranks[i] : NULL;
}

/* Set x->why: the reason why the part of rank @number, which has no copy, is missing. */
static int say_lacking(struct joined *x, uint64_t number)
{
	const struct dcp_pdrank *r = rank_of(x->j, number);

	if (!r)
		return dcp_fail(&x->why, -ENODATA,
				"its part of rank %" PRIu64
				" is missing: that rank's .pdparams is not here",
				number);
	if (r->held || r->why)
		return dcp_fail(&x->why, -ENODATA, "its part of rank %" PRIu64 ": %s", number,
				r->held ? r->held->t.error : r->why);
	return dcp_fail(&x->why, -ENODATA,
			"its part of rank %" PRIu64 " is missing: %.200s does not hold it",
			number, r->part->file);
}

/* Find a holder for each part; of several copies the lowest rank's counts. */
static int place_parts(struct joined *x, const struct dcp_pdcut *c)
{
	const struct dcp_pdrank *ranks = x->j->ranks;
	uint64_t number = 0;

	for (uint64_t place = 0; place < c->nplaces; place++) {
		const struct dcp_copy **part = &x->part[dcp_pdcut_part(c, x->t.ndim, place)];
		const struct dcp_pdrank *r;

		if (!dcp_pv_u64(c->group[place], &number))
			return dcp_fail(&x->why, -EBADMSG,
					"process_group holds something else than ranks");
		r = rank_of(x->j, number);
		if (!r || !r->held || r->held->t.error)
			continue;
		if (same_form(x, r->held) < 0)
			return -EBADMSG;
		if (!*part || number < ranks[(*part)->who].number)
			*part = r->held;
	}
	for (uint64_t place = 0; place < c->nplaces; place++)
		if (!x->part[dcp_pdcut_part(c, x->t.ndim, place)]) {
			dcp_pv_u64(c->group[place], &number);
			return say_lacking(x, number);
		}
	return 0;
}

/* ---- the whole ---- */

/* Find where part @number begins in the whole. */
static void find_first(const struct joined *x, const struct dcp_pdcut *c, uint64_t number,
		       uint64_t first[DCP_MAX_NDIM])
{
	for (uint32_t d = x->t.ndim; d-- > 0;) {
		first[d] = c->by[d] < 0 ? 0 : number % c->mesh[c->by[d]] * x->like->t.shape[d];
		number /= c->by[d] < 0 ? 1 : c->mesh[c->by[d]];
	}
}

/* Find the shape of the whole and the number of its parts, at most as many as the mesh has
 * places. */
static int measure_whole(struct joined *x, const struct dcp_pdcut *c)
{
	x->nparts = 1;
	for (uint32_t d = 0; d < x->t.ndim; d++) {
		uint64_t n = c->by[d] < 0 ? 1 : c->mesh[c->by[d]];

		x->nparts *= n;
		if (dcp_ckd_mul(&x->shape[d], x->t.shape[d], n))
			return dcp_fail(&x->why, -EBADMSG,
					"its parts together have a size over 64 bits");
	}
	x->t.shape = x->shape;
	x->part = calloc((size_t)x->nparts, sizeof(struct dcp_copy *));
	return x->part ? 0 : -ENOMEM;
}

static int assemble_parts(struct joined *x, const struct dcp_pdcut *c)
{
	struct dcp_copies *all = &x->j->copies;
	uint64_t first[DCP_MAX_NDIM];
	int rc = measure_whole(x, c);

	if (rc == 0)
		rc = place_parts(x, c);
	dcp_join_begin(&all->join);
	for (uint64_t i = 0; rc == 0 && i < x->nparts; i++) {
		find_first(x, c, i, first);
		rc = dcp_join_add_part(&all->join, &x->part[i]->t, first, &all->arena);
	}
	return rc < 0 ? rc : dcp_join_end(&all->join, &x->t, NULL, NULL, &x->why);
}

static int emit_joined(struct joined *x, const struct dcp_copies_key *k,
		       const struct dcp_pdentry *e)
{
	struct dcp_pdcut cut;
	int rc;

	x->like = k->first;
	for (const struct dcp_copy *h = k->first; h; h = h->next) {
		x->j->ranks[h->who].held = h;
		if (x->like->t.error)
			x->like = h;
	}
	x->t = x->like->t;
	x->t.alias_of = NULL; /* tied parameters share their bytes in one file only */
	if (x->t.error)       /* no rank's part can be read */
		return dcp_emit_tensor(x->j->in->sink, &x->t);
	rc = agree_on_cut(x, e, &cut);
	if (rc == 0)
		rc = assemble_parts(x, &cut);
	else if (rc == -ENOENT && !k->first->next)
		rc = 0; /* a tensor of one rank alone */
	if (rc == -ENOMEM)
		return -ENOMEM;
	if (rc < 0)
		x->t.error = x->why.msg;
	return dcp_emit_tensor(x->j->in->sink, &x->t);
}

static int emit_key(struct dcp_pdjoin *j, const struct dcp_copies_key *k,
		    const struct dcp_pdentry *e)
{
	struct joined x = { .j = j };
	int rc = emit_joined(&x, k, e);

	for (const struct dcp_copy *h = k->first; h; h = h->next)
		j->ranks[h->who].held = NULL;
	free(x.part);
	return rc;
}

/* Emit a key that has only attributes, because its rank's tensors could not be read. */
static int emit_absent(struct dcp_pdjoin *j, const char *key, const struct dcp_pdentry *e)
{
	const struct dcp_pdrank *r = &j->ranks[e->said->rank];
	struct dcp_tensor t = {
		.key = key,
		.path = &key,
		.npath = 1,
		.dtype_name = "",
		.error = r->why ? r->why : "a .pdattr names it, no .pdparams here holds it",
	};

	return dcp_emit_tensor(j->in->sink, &t);
}

int dcp_pdjoin_emit(struct dcp_pdjoin *j)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < j->copies.names.n; i++) {
		const struct dcp_copies_key *k = dcp_copies_at(&j->copies, i);
		const struct dcp_pdentry *e = dcp_buf_at(&j->entries, i, sizeof(*e));

		if (!e)
			return -ENOMEM;
		rc = k->first ? emit_key(j, k, e)
			      : emit_absent(j, dcp_intern_text(&j->copies.names, i), e);
	}
	return rc;
}

/* ---- reading ---- */

static int on_tensor(void *ctx, const struct dcp_tensor *t)
{
	struct dcp_pdjoin *j = ctx;

	const char *file = j->ranks[j->at].part->file;

	return dcp_copies_add(&j->copies, t, j->at, file) < 0 ? -ENOMEM : 0;
}

static int choose_labelled(void *ctx, const char *key)
{
	return 1;
}

/* Paddle saves only parameters this way. Any other object is emitted with the rank's label. */
static int on_object(void *ctx, const struct dcp_object *o)
{
	struct dcp_pdjoin *j = ctx;
	struct dcp_plain_part part = *j->ranks[j->at].part;
	struct dcp_object labelled = *o;
	struct dcp_plain_key k;
	int rc;

	part.choose = choose_labelled;
	rc = dcp_plain_key_init(&k, &part, o->key, o->path, o->npath);
	if (rc == 1) {
		labelled.key = k.key;
		labelled.path = k.path;
		labelled.npath = k.npath;
		rc = dcp_emit_object(j->in->sink, &labelled);
	}
	dcp_plain_key_finish(&k);
	return rc;
}

static int read_params(struct dcp_pdjoin *j)
{
	struct dcp_pdrank *r = &j->ranks[j->at];
	struct dcp_sink sink = {
		.tensor = on_tensor, .object = on_object, .ctx = j, .next = j->in->sink
	};
	struct dcp_plain_part part = *r->part;
	struct dcp_err why = { 0 };
	int rc;

	part.sink = &sink;
	rc = dcp_plain_part_emit(j->in->dir, &part, &why);
	if (rc == 0 || rc == -ENOMEM || rc == -ENOSPC || !why.code)
		return rc;
	r->why = dcp_arena_strdup(&j->copies.arena, why.msg);
	return r->why ? dcp_plain_part_broken(r->part, why.msg) : -ENOMEM;
}

/* Write the name of the .pdattr: "w_dist1.pdparams" -> "w_dist1.pdattr". */
static void name_attr_file(char out[DCP_GROUP_MAX + 8], const char *params)
{
	const char *dot = strrchr(params, '.');
	size_t n = dot ? (size_t)(dot - params) : strlen(params);

	memcpy(out, params, n);
	strcpy(out + n, ".pdattr");
}

static int add_said(struct dcp_pdjoin *j, struct dcp_pv root)
{
	size_t n = 0;
	const struct dcp_pv *kv = dcp_pv_pairs(root, &n);

	for (size_t i = 0; i < n; i++) {
		const char *key = dcp_pv_str(kv[2 * i]);
		struct dcp_pdsaid *s = dcp_arena_calloc(&j->copies.arena, 1, sizeof(*s));
		struct dcp_pdentry *e = NULL;
		uint32_t number;

		if (!key)
			continue;
		if (dcp_copies_number(&j->copies, key, &number) == 0)
			e = dcp_buf_at(&j->entries, number, sizeof(*e));
		if (!s || !e)
			return -ENOMEM;
		s->rank = j->at;
		s->v = kv[2 * i + 1];
		if (e->last)
			e->last->next = s;
		else
			e->said = s;
		e->last = s;
	}
	return 0;
}

/* Read a rank's .pdattr. The file may be missing, because all ranks that share a key record the
 * same attributes. */
static int read_attr(struct dcp_pdjoin *j)
{
	struct dcp_pdrank *r = &j->ranks[j->at];
	char file[DCP_GROUP_MAX + 8];
	dcp_auto_input struct dcp_input input = { 0 };
	struct dcp_err why = { 0 };
	uint32_t number;
	int rc;

	name_attr_file(file, r->part->file);
	if (!dcp_dir_find(j->in->dir, file))
		return 0;
	rc = dcp_emit_file(j->in->sink, file, &number);
	if (rc < 0)
		return rc;
	rc = dcp_dir_input(j->in->dir, file, &input, &why);
	if (rc == 0)
		rc = dcp_pickle_read(&input.src, NULL, &r->attr, NULL, &why);
	if (rc == -ENOMEM)
		return -ENOMEM;
	if (rc == 0)
		return add_said(j, dcp_pickle_root(r->attr));
	dcp_err_where(&why, rc, "%s", file);
	return dcp_plain_part_broken(
		&(struct dcp_plain_part){ .label = file, .sink = j->in->sink }, why.msg);
}

static int by_number(const void *a, const void *b)
{
	const struct dcp_pdrank *x = a, *y = b;

	return DCP_CMP(x->number, y->number);
}

/* The rank of a file. A file without a rank is in no process_group, so it gets a number that no
 * rank has. */
static uint64_t rank_number(const struct dcp_plain_name *name, size_t i, size_t n)
{
	if (name->one_rank && strcmp(name->extension, "pdparams") == 0)
		return name->rank;
	return n == 1 ? 0 : UINT64_MAX - i;
}

/* Read the files of all ranks. If a rank's file cannot be read, the reason is kept in the rank. */
static int read_ranks(struct dcp_pdjoin *j, const struct dcp_plain_part *parts,
		      const struct dcp_plain_name *names, size_t n)
{
	size_t nbroken = 0;
	int rc = 0;

	j->nranks = n;
	j->ranks = dcp_arena_calloc(&j->copies.arena, n, sizeof(*j->ranks));
	if (!j->ranks)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		j->ranks[i].part = &parts[i];
		j->ranks[i].number = rank_number(&names[i], i, n);
	}
	DCP_SORT(j->ranks, n, by_number);
	for (j->at = 0; rc == 0 && j->at < n; j->at++) {
		rc = read_params(j);
		if (rc == 0)
			rc = read_attr(j);
		nbroken += j->ranks[j->at].why != NULL;
	}
	if (rc == 0 && nbroken == n)
		return dcp_fail(j->err, -EBADMSG, "%s", j->ranks[0].why);
	return rc;
}

int dcp_plain_auto(const struct dcp_load *in, const struct dcp_plain_part *parts,
		   const struct dcp_plain_name *names, size_t n, struct dcp_err *err)
{
	struct dcp_pdjoin j = { .in = in, .err = err };
	int rc;

	dcp_copies_init(&j.copies);
	rc = read_ranks(&j, parts, names, n);
	if (rc == 0)
		rc = dcp_pdjoin_emit(&j);
	for (size_t i = 0; j.ranks && i < j.nranks; i++)
		dcp_pickle_free(j.ranks[i].attr);
	dcp_buf_finish(&j.entries);
	dcp_copies_finish(&j.copies);
	return rc;
}
