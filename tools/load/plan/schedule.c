/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/hash.h"
#include "core/store/view/view.h"

enum {
	ELEMENT = 16, /* bytes of the largest element */
};

void load_rounds_free(struct load_rounds *r, bool keep)
{
	if (!r)
		return;
	free(r->of.base);
	free(r->mine);
	free(r->theirs);
	free(r->ntheirs);
	free(r->memory);
	free(r->next);
	free(r->send);
	free(r->nsend);
	free(r->nrecv);
	free(r->recv);
	if (r->pack && !keep)
		load_host.free(NULL, r->pack, r->npack + 1);
	if (r->in && !r->device && !keep)
		load_host.free(NULL, r->in, r->nin + 1);
	if (r->there && !r->mapped && !keep)
		r->device->kind->free(r->device, r->there, load_rounds_device_bytes(r));
	free(r);
}

uint64_t load_rounds_bytes(const struct load_rounds *r)
{
	return !r ? 0 : r->device ? r->npack : r->npack + r->nin;
}

uint64_t load_rounds_device_bytes(const struct load_rounds *r)
{
	return r && r->device ? r->npack + r->nin : 0;
}

/* ---- stripes ---- */

static int add_part(struct load_rounds *r, const struct load_round_part *v)
{
	if (DCP_GROW(r->mine, r->cap_mine, r->nmine) < 0)
		return -ENOMEM;
	r->mine[r->nmine] = *v;
	r->mine[r->nmine].number = (uint32_t)r->nmine;
	r->nmine++;
	return 0;
}

/* Cut ranges of files into parts of stripes: r->mine. @slack: a part includes the end of its last
 * element. */
static int split_ranges(struct load_rounds *r, const struct dcp_chunk_range *v, size_t n,
			bool slack)
{
	int rc = 0;

	for (size_t i = 0; i < n; i++)
		for (uint64_t lo = v[i].lo, hi; lo < v[i].hi && rc == 0; lo = hi) {
			uint64_t number = lo / r->of.size, end;

			hi = DCP_MIN((number + 1) * r->of.size, v[i].hi);
			end = slack ? DCP_MIN(hi + ELEMENT, v[i].hi) : hi;
			rc = add_part(r, &(struct load_round_part){
						 .stripe = r->of.base[v[i].file] + number,
						 .lo = lo,
						 .run = (uint32_t)(end - lo),
						 .count = 1,
						 .file = v[i].file });
		}
	return rc;
}

struct splitting {
	struct load_rounds *r;
	struct load_round_part part; /* template of the parts of a need in a stripe */
};

static int split_series(void *ctx, const struct dcp_chunk_series *s)
{
	struct splitting *sp = ctx;

	sp->part.lo = s->off;
	sp->part.run = (uint32_t)s->run;
	sp->part.step = (uint32_t)s->step;
	sp->part.count = (uint32_t)s->count;
	return add_part(sp->r, &sp->part);
}

static int split_piece(void *ctx, const struct dcp_strided *s)
{
	return dcp_chunk_pack(s, split_series, ctx);
}

/* The same for packed needs. */
static int split_packed(struct load_rounds *r, const struct dcpload_plan *p)
{
	int rc = 0;

	for (size_t i = 0; i < p->nneed; i++) {
		const struct dcp_chunk_need *need = &p->need[i];
		const struct load_target *t = &p->want[need->want].target;
		uint64_t end = need->s.off + dcp_strided_extent(&need->s);
		struct splitting sp = { r, { .file = need->file, .need = (uint32_t)i + 1 } };

		if (!dcp_chunk_is_packed(&need->s))
			continue;
		for (uint64_t lo = need->s.off - need->s.off % r->of.size; lo < end && rc == 0;
		     lo += r->of.size) {
			sp.part.stripe = r->of.base[need->file] + lo / r->of.size;
			rc = dcp_strided_clip(&need->s, lo, lo + r->of.size,
					      t->plain ? 1 : t->from, split_piece, &sp);
		}
	}
	return rc;
}

static int by_number(const void *a, const void *b)
{
	const struct load_round_part *x = a, *y = b;

	return x->stripe != y->stripe ? DCP_CMP(x->stripe, y->stripe)
				      : DCP_CMP(x->number, y->number);
}

static int by_place(const void *a, const void *b)
{
	const struct load_round_part *x = a, *y = b;

	return x->stripe != y->stripe ? DCP_CMP(x->stripe, y->stripe) : DCP_CMP(x->lo, y->lo);
}

static int by_owner(const void *a, const void *b, void *arg)
{
	const struct load_round_part *x = a, *y = b;
	uint32_t ox = dcp_stripe_owner(arg, x->stripe), oy = dcp_stripe_owner(arg, y->stripe);

	return ox != oy ? DCP_CMP(ox, oy) : by_number(a, b);
}

int load_rounds_send(const struct dcpload_plan *p, struct dcpload_error *err)
{
	const struct dcpload_comm *comm = p->ck->comm;
	struct load_rounds *r = p->rounds;
	int timeout = (int)p->ck->config.timeout_ms;

	if (!comm->alltoallv && p->link && p->link->kind->alltoallv)
		return p->link->kind->alltoallv(p->link, r->send, r->nsend, r->recv, r->nrecv,
						err);
	if (!comm->alltoallv)
		return load_gather_mine(comm, r->send, r->nsend, r->recv, r->nrecv, err,
					timeout);
	return load_comm_say(
		comm, comm->alltoallv(comm->ctx, r->send, r->nsend, r->recv, r->nrecv, timeout),
		err);
}

/* Learn how many parts others need of this rank's stripes, and allocate them. */
static int hear_sizes(struct dcpload_plan *p, struct dcpload_error *err)
{
	const struct dcpload *ck = p->ck;
	struct load_rounds *r = p->rounds;
	uint64_t *own = calloc(r->of.ranks, sizeof(*own)),
		 *others = calloc(r->of.ranks, sizeof(*others));
	size_t total = 0;
	int rc = own && others ? 0 : load_fail(err, -ENOMEM, "out of memory");

	for (size_t i = 0; i < r->nmine && rc == 0; i++)
		own[dcp_stripe_owner(&r->of, r->mine[i].stripe)]++;
	rc = load_agree(ck->comm, rc, err, (int)ck->config.timeout_ms);
	for (uint32_t d = 0; d < r->of.ranks && rc == 0; d++) {
		r->send[d] = &own[d];
		r->recv[d] = &others[d];
		r->nsend[d] = r->nrecv[d] = sizeof(*own);
	}
	if (rc == 0)
		rc = load_rounds_send(p, err);
	for (uint32_t d = 0; d < r->of.ranks && rc == 0; d++) {
		r->nsend[d] = own[d] * sizeof(*r->mine);
		r->ntheirs[d] = others[d];
		total += others[d];
		if (others[d] > SIZE_MAX / sizeof(*r->memory) / r->of.ranks)
			rc = load_fail(err, -EPROTO, "rank %u requests too many runs", d);
	}
	if (rc == 0) {
		r->memory = calloc(total + 1, sizeof(*r->memory));
		if (!r->memory)
			rc = load_fail(err, -ENOMEM, "out of memory");
	}
	free(own);
	free(others);
	return load_agree(ck->comm, rc, err, (int)ck->config.timeout_ms);
}

/* Bytes of the file from the first run of @v to the end of the last. */
static uint64_t measure_extent(const struct load_round_part *v)
{
	return (uint64_t)(v->count - 1) * v->step + v->run;
}

/* Are these parts in the stripes of this rank? Another release or a broken transport may send
 * anything. */
static bool is_sound(const struct load_rounds *r, const struct load_round_part *v, size_t n)
{
	const uint64_t most = r->of.size + r->slack;
	uint64_t bytes = 0;

	for (size_t i = 0; i < n; i++) {
		uint64_t lo;

		if (v[i].file >= r->of.nfiles ||
		    dcp_stripe_owner(&r->of, v[i].stripe) != r->self ||
		    v[i].stripe < r->of.base[v[i].file] ||
		    v[i].stripe >= r->of.base[v[i].file + 1] ||
		    (i && v[i - 1].stripe > v[i].stripe))
			return false;
		lo = (v[i].stripe - r->of.base[v[i].file]) * r->of.size;
		if (v[i].lo < lo || v[i].lo - lo > most || v[i].run == 0 || v[i].count == 0 ||
		    measure_extent(&v[i]) > most - (v[i].lo - lo))
			return false;
		bytes += (uint64_t)v[i].run * v[i].count; /* runs may overlap */
		if (bytes >> 48)
			return false;
	}
	return true;
}

/* Send each owner the parts of its stripes that this rank needs, and receive the parts that others
 * need of the stripes of this rank. */
static int send_owners(struct dcpload_plan *p, struct dcpload_error *err)
{
	struct load_rounds *r = p->rounds;
	struct load_round_part *to = NULL, *from;
	int rc;

	if (r->nmine)
		qsort_r(r->mine, r->nmine, sizeof(*r->mine), by_owner, &r->of);
	rc = hear_sizes(p, err);
	if (rc < 0)
		return rc;
	to = r->memory;
	from = r->mine;
	for (uint32_t d = 0; d < r->of.ranks; d++) {
		r->send[d] = from;
		r->recv[d] = to;
		r->theirs[d] = to;
		r->nrecv[d] = r->ntheirs[d] * sizeof(*to);
		if (to)
			to += r->ntheirs[d];
		if (from)
			from += r->nsend[d] / sizeof(*from);
	}
	rc = load_rounds_send(p, err);
	for (uint32_t d = 0; d < r->of.ranks && rc == 0; d++)
		if (!is_sound(r, r->theirs[d], r->ntheirs[d]))
			rc = load_fail(err, -EPROTO,
				       "rank %u requests bytes outside of every file", d);
	DCP_SORT(r->mine, r->nmine, by_number);
	return load_agree(p->ck->comm, rc, err, (int)p->ck->config.timeout_ms);
}

/* ---- what this rank reads ---- */

/* Make the reads for @v: runs that are far apart are read one by one. Returns their number; @out:
 * NULL, or room for them. */
static uint32_t make_reads(const struct load_round_part *v, struct load_round_part *out)
{
	uint32_t n = v->step > DCP_FETCH_STRIDE ? v->count : 1;

	for (uint32_t i = 0; i < n && out; i++) {
		out[i] = *v;
		out[i].lo += (uint64_t)i * v->step;
		out[i].run = n == 1 ? (uint32_t)measure_extent(v) : v->run;
	}
	return n;
}

/* Make chunks of the bytes that all ranks need of the stripes of this rank: chunk k is from stripe
 * k * ranks + self. */
static int make_chunks(struct dcpload_plan *p, uint64_t slack)
{
	struct load_rounds *r = p->rounds;
	struct dcp_chunks *c = calloc(1, sizeof(*c));
	size_t parts = 0, total = 0, i = 0;
	struct load_round_part *all;
	const struct dcp_file_id *files =
		dcp_index_files(dcp_version_index(p->ck->of.v), &r->of.nfiles);

	if (!c)
		return -ENOMEM;
	p->chunks = c;
	c->members = r->of.ranks;
	c->slot = r->of.size + slack;
	for (uint32_t d = 0; d < r->of.ranks; d++)
		parts += r->ntheirs[d];
	for (size_t k = 0; k < parts; k++)
		total += make_reads(&r->memory[k], NULL);
	c->n = r->of.base[r->of.nfiles] / r->of.ranks +
	       (r->of.base[r->of.nfiles] % r->of.ranks > r->self);
	c->first = calloc(c->n + 1, sizeof(*c->first));
	c->stretch = calloc(total + 1, sizeof(*c->stretch));
	all = malloc((total + 1) * sizeof(*all));
	if (!c->first || !c->stretch || !all) {
		free(all);
		return -ENOMEM;
	}
	for (size_t k = 0, n = 0; k < parts; k++)
		n += make_reads(&r->memory[k], all + n);
	DCP_SORT(all, total, by_place);
	for (size_t k = 0; k < c->n; k++) {
		uint64_t stripe = k * r->of.ranks + r->self;
		size_t first = c->nstretch;

		c->first[k] = first;
		for (; i < total && all[i].stripe == stripe; i++) {
			uint64_t from = (stripe - r->of.base[all[i].file]) * r->of.size,
				 lo = all[i].lo - all[i].lo % LOAD_BLOCK,
				 hi = all[i].lo + all[i].run;
			struct dcp_chunk_stretch *s =
				c->nstretch > first ? &c->stretch[c->nstretch - 1] : NULL;

			hi += (LOAD_BLOCK - hi % LOAD_BLOCK) % LOAD_BLOCK;
			if (s && lo <= s->hi + DCP_FETCH_STRIDE) {
				s->hi = DCP_MAX(s->hi, hi);
				s->n = (uint32_t)(s->hi - s->lo);
				continue;
			}
			c->stretch[c->nstretch++] =
				(struct dcp_chunk_stretch){ all[i].file, (uint32_t)(hi - lo),
							    lo, hi, lo - from };
		}
	}
	c->first[c->n] = c->nstretch;
	for (size_t k = 0; k < c->nstretch; k++)
		c->unique += c->stretch[k].n;
	dcp_chunks_trim(c, files, r->of.nfiles);
	free(all);
	return 0;
}

/* ---- buffers ---- */

size_t load_round_parts(const struct load_round_part *v, size_t n, size_t next, uint64_t stripe,
			uint64_t *bytes)
{
	size_t i = next;

	*bytes = 0;
	for (; i < n && v[i].stripe == stripe; i++)
		*bytes += (uint64_t)v[i].run * v[i].count;
	return i - next;
}

/* Find the size of the messages of the largest round. @stay: other ranks read them in place. */
static void measure_rounds(struct load_rounds *r, size_t rounds, bool stay)
{
	uint64_t bytes;

	memset(r->next, 0, r->of.ranks * sizeof(*r->next));
	r->next_mine = 0;
	r->npack = r->nin = 0;
	for (size_t k = 0; k < rounds; k++) {
		uint64_t out = 0, in = 0;

		for (uint32_t d = 0; d < r->of.ranks; d++) {
			r->next[d] += load_round_parts(r->theirs[d], r->ntheirs[d], r->next[d],
						       k * r->of.ranks + r->self, &bytes);
			out += d == r->self && !r->device ? 0 : bytes;
			r->next_mine += load_round_parts(r->mine, r->nmine, r->next_mine,
							 k * r->of.ranks + d, &bytes);
			in += d == r->self ? 0 : bytes;
		}
		r->npack = DCP_MAX(r->npack, out);
		r->nin = DCP_MAX(r->nin, in);
	}
	if (stay) /* both halves are aligned for the largest units of the kernel */
		r->npack += (256 - r->npack % 256) % 256;
	r->half = stay ? r->npack : 0;
	r->nin = stay ? r->npack : r->nin;
}

/* Collective: sum the bytes that all ranks read of their stripes, and find out whether all ranks
 * need the same bytes. *@most: the largest number of message bytes of a rank. */
static int compare_ranks(struct dcpload_plan *p, uint64_t *most, struct dcpload_error *err)
{
	struct load_rounds *r = p->rounds;
	struct told {
		uint64_t unique, messages, hash[2];
	} told = { .unique = p->chunks->unique, .messages = r->npack + r->nin };
	struct dcp_hash128 *h = dcp_hash128_new();
	struct load_blobs b;
	uint64_t needed = 0;
	int rc = h ? 0 : load_fail(err, -ENOMEM, "out of memory");

	if (h) {
		dcp_hash128_add(h, r->mine, r->nmine * sizeof(*r->mine));
		dcp_hash128_end(h, told.hash);
	}
	rc = load_agree(p->ck->comm, rc, err, (int)p->ck->config.timeout_ms);
	if (rc == 0)
		rc = load_gather_same(p->ck->comm, &told, sizeof(told), &b, err,
				      (int)p->ck->config.timeout_ms);
	if (rc < 0)
		return rc;
	p->chunks->unique = *most = 0;
	r->same = r->device != NULL;
	for (uint32_t d = 0; d < r->of.ranks; d++) {
		const struct told *of = b.at[d];

		p->chunks->unique += of->unique;
		*most = DCP_MAX(*most, of->messages);
		r->same = r->same && memcmp(of->hash, told.hash, sizeof(told.hash)) == 0;
	}
	load_blobs_free(&b);
	for (size_t i = 0; i < r->nmine; i++)
		needed += (uint64_t)r->mine[i].run * r->mine[i].count;
	r->same = r->same && needed + needed / 8 >= p->chunks->unique;
	if (r->same) {
		r->npack = 0;
		r->half = p->link->kind->in_place ? p->chunks->slot : 0;
		*most = r->nin = (r->half ? 2 : r->of.ranks) * p->chunks->slot;
	}
	return 0;
}

/* If whole stripes are sent, so are the gaps between reads: they are zeroed here. */
static int make_there(struct load_rounds *r)
{
	struct load_device *d = r->device;
	uint64_t n = load_rounds_device_bytes(r);
	void *p;
	int rc = n ? d->kind->alloc(d, n, &p) : 0;

	if (rc < 0 || n == 0)
		return rc;
	r->there = p;
	r->in = (uint8_t *)p + r->npack;
	return r->same ? d->kind->zero(d, p, n) : 0;
}

/* Allocate buffers for the largest round. */
static int make_buffers(struct load_rounds *r)
{
	void *pack, *in;

	if (load_host.alloc(NULL, r->npack + 1, &pack) < 0)
		return -ENOMEM;
	r->pack = pack;
	if (r->device)
		return make_there(r);
	if (load_host.alloc(NULL, r->nin + 1, &in) < 0)
		return -ENOMEM;
	r->in = in;
	return 0;
}

/* Collective: the schedule for stripes of r->of.size bytes. */
static int make_schedule(struct dcpload_plan *p, bool slack, uint64_t *most,
			 struct dcpload_error *err)
{
	struct load_rounds *r = p->rounds;
	size_t nfiles;
	const struct dcp_file_id *files =
		dcp_index_files(dcp_version_index(p->ck->of.v), &nfiles);
	int rc = dcp_stripes_number(&r->of, files, nfiles),
	    timeout = (int)p->ck->config.timeout_ms;

	if (rc == 0)
		rc = split_ranges(r, p->mine, p->nmine, slack);
	if (rc == 0)
		rc = split_packed(r, p);
	if (rc < 0)
		load_fail(err, rc, "out of memory");
	rc = load_agree(p->ck->comm, rc, err, timeout);
	if (rc == 0)
		rc = send_owners(p, err);
	if (rc < 0)
		return rc;
	rc = make_chunks(p, r->slack);
	if (rc == 0)
		measure_rounds(r, dcp_stripe_rounds(&r->of),
			       p->link && p->link->kind->in_place);
	else
		load_fail(err, rc, "out of memory");
	rc = load_agree(p->ck->comm, rc, err, timeout);
	return rc < 0 ? rc : compare_ranks(p, most, err);
}

static void forget_schedule(struct dcpload_plan *p)
{
	struct load_rounds *r = p->rounds;

	dcp_chunks_free(p->chunks);
	free(r->of.base);
	free(r->mine);
	free(r->memory);
	p->chunks = NULL;
	r->of.base = NULL;
	r->mine = r->memory = NULL;
	r->nmine = r->cap_mine = 0;
}

int load_make_rounds(struct dcpload_plan *p, uint64_t staging, bool slack,
		     struct dcpload_error *err)
{
	struct dcpload *ck = p->ck;
	uint32_t n = ck->comm->ranks;
	struct load_rounds *r = calloc(1, sizeof(*r));
	uint64_t most = 0, next = 0;
	int rc = r ? 0 : -ENOMEM;

	if (r) {
		p->rounds = r;
		r->of.ranks = n;
		r->self = ck->comm->rank;
		r->device = p->link ? p->device : NULL;
		r->slack = slack ? LOAD_BLOCK : 0;
		r->theirs = calloc(n, sizeof(*r->theirs));
		r->ntheirs = calloc(n, sizeof(*r->ntheirs));
		r->next = calloc(n, sizeof(*r->next));
		r->send = calloc(n, sizeof(*r->send));
		r->nsend = calloc(n, sizeof(*r->nsend));
		r->nrecv = calloc(n, sizeof(*r->nrecv));
		r->recv = calloc(n, sizeof(*r->recv));
		if (!r->theirs || !r->ntheirs || !r->next || !r->send || !r->nsend ||
		    !r->nrecv || !r->recv)
			rc = -ENOMEM;
	}
	if (rc < 0)
		load_fail(err, rc, "out of memory");
	rc = load_agree(ck->comm, rc, err, (int)ck->config.timeout_ms);
	while (rc == 0 &&
	       (next = dcp_stripe_size(staging, n, r->slack, next, most)) != r->of.size) {
		forget_schedule(p);
		r->of.size = next;
		rc = make_schedule(p, slack, &most, err);
	}
	if (rc < 0)
		return rc;
	rc = make_buffers(r);
	if (rc < 0)
		load_fail(err, rc, "no memory for messages of a round: %llu bytes",
			  (unsigned long long)(r->npack + r->nin));
	return load_agree(ck->comm, rc, err, (int)ck->config.timeout_ms);
}

/*
 * Finds where the bytes of the wants are stored. A view of each want finds them in the stored
 * items, and checks that the files are those of the index. Bytes that must be computed (compressed
 * items, negated elements) are in no file in the wanted form, so the view reads them itself.
 */

struct locating {
	struct dcpload_plan *plan;
	struct load_want *want;
	uint64_t found; /* bytes */
	bool swap, decoded;
};

static int add_need(void *ctx, const struct dcp_strided *s, uint32_t file)
{
	struct locating *l = ctx;
	struct dcpload_plan *p = l->plan;
	struct dcp_chunk_need *need;

	if (p->nneed == l->want->first)
		l->swap = s->piece->swap;
	if (file == DCP_VIEW_NO_FILE || s->piece->swap != l->swap) {
		l->decoded = true;
		return -ECANCELED; /* the view will read the whole want */
	}
	if (DCP_GROW(p->need, p->cap_need, p->nneed) < 0)
		return -ENOMEM;
	need = &p->need[p->nneed++];
	*need = (struct dcp_chunk_need){ *s, file, (uint32_t)(l->want - p->want) };
	need->s.piece = NULL;
	l->found += dcp_strided_bytes(s);
	return 0;
}

static int locate_want(struct dcpload_plan *p, struct load_want *w, struct dcp_err *err)
{
	struct locating l = { .plan = p, .want = w };
	dcp_auto_view struct dcp_view *view = NULL;
	int rc = dcp_view_open(p->ck->of.v, w->id, DCP_AS_RAW, &w->cut, &view, err);

	w->first = p->nneed;
	if (rc < 0)
		return rc;
	rc = dcp_view_strided(view, add_need, &l);
	if (rc == 0 &&
	    l.found <
		    /* the rest is zeros, which only a view can place between strides */
		    w->stored) {
		w->padded = true;
		l.decoded = w->target.stride != NULL;
	}
	if (l.decoded || rc == -ENOTSUP) {
		w->through_view = true;
		p->nneed = w->first;
		rc = 0;
	}
	if (rc == 0 && l.swap && !w->through_view) {
		w->target.swap = dcp_dtype_swap_unit(w->target.dtype, w->target.from);
		w->target.plain &= w->target.swap <= 1;
	}
	w->n = p->nneed - w->first;
	return rc < 0 ? dcp_err_say(err, rc) : 0;
}

/* The error of a view, without the version and the key at its beginning. */
static const char *find_cause(const struct dcpload_plan *p, const char *key,
			      const struct dcp_err *said)
{
	char where[sizeof(said->msg)];
	size_t n;

	snprintf(where, sizeof(where), "%s: %s: ", dcp_version_name(p->ck->of.v), key);
	dcp_printable(where, sizeof(where));
	n = strlen(where);
	return strncmp(said->msg, where, n) ? said->msg : said->msg + n;
}

int load_locate(struct dcpload_plan *p, struct dcpload_error *err)
{
	int rc = 0;

	for (size_t i = 0; i < p->nwant && rc == 0; i++) {
		struct load_want *w = &p->want[i];
		struct dcp_err own = { 0 };

		if (!w->id || w->stored == 0)
			continue;
		rc = locate_want(p, w, &own);
		if (rc == 0)
			continue;
		if (rc == -ENOMEM || !(p->flags & DCPLOAD_PARTIAL))
			return load_fail_err(err, rc, &own);
		w->id = 0;
		p->nneed = w->first;
		w->n = 0;
		rc = load_list(p, DCPLOAD_BROKEN, w->key, "%s", find_cause(p, w->key, &own));
	}
	return rc < 0 ? load_fail(err, rc, "out of memory") : 0;
}
