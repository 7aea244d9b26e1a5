/* SPDX-License-Identifier: Apache-2.0 */
/* The report of dcpfs load: about the job and about each rank. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/text.h"
#include "core/remote/remote.h"
#include "core/store/version/version.h"
#include "tools/load/load.h"
#include "tools/loading/loading.h"
#include "tools/out.h"

/* The message of a rank to rank 0; its lists follow as another message. */
struct summary {
	struct dcpload_report report;
	uint64_t dumped, undumped, dump_ns; /* bytes; parts left out of the file */
	uint64_t left;                      /* wanted keys in its lists */
	uint64_t unlisted; /* entries of lists that were not sent, as there are too many */
	struct dcp_http_counts http; /* of this process so far */
};

/* An entry of a list; key and reason follow, each with its NUL. */
struct entry {
	uint32_t list, n, nwhy;
};

enum { LISTS = DCPLOAD_BROKEN + 1 };

#define LISTS_ROOM ((uint64_t)64 << 20) /* bytes of entries of all ranks, at rank 0 */

struct report {
	struct loading *l;
	struct load_blobs all;     /* struct summary of each rank */
	struct load_blobs entries; /* struct entry of each rank */
	/* struct out_left, by key: entries of all ranks in each list */
	struct dcp_buf left[LISTS];
	uint64_t nleft, unlisted;
	struct loading_totals total;
	const struct dcpload_report *own;
	struct out out;
};

static const char *const lists[LISTS] = { "missing", "unexpected", "shape", "dtype", "broken" };

static const struct summary *summary_of(const struct report *t, uint32_t rank)
{
	return t->all.at[rank];
}

/* Append the server of the checkpoint and how it is reached. False: there is no server. */
static bool add_origin(const struct loading *l, struct dcp_buf *out)
{
	return l->ck->of.v && dcp_remote_about(dcp_version_place(l->ck->of.v), out) &&
	       dcp_buf_str(out, "") == 0;
}

static void add_up(struct report *t)
{
	struct loading_totals *sum = &t->total;
	uint64_t unique;

	for (uint32_t r = 0; r < t->l->comm->ranks; r++) {
		const struct summary *s = summary_of(t, r);
		const struct dcpload_report *rep = &s->report;

		sum->parts += rep->parts;
		sum->needed += rep->needed;
		sum->read += rep->read;
		sum->exchanged += rep->received;
		sum->http.requests += s->http.requests;
		sum->http.retries += s->http.retries;
		sum->http.bytes += s->http.bytes;
		t->nleft += s->left;
		t->unlisted += s->unlisted;
		sum->dumped += s->dumped;
		sum->undumped += s->undumped;
		sum->dump_ns = DCP_MAX(sum->dump_ns, s->dump_ns);
		sum->open_ns = DCP_MAX(sum->open_ns, rep->open_ns);
		sum->plan_ns = DCP_MAX(sum->plan_ns, rep->plan_ns);
		sum->execute_ns = DCP_MAX(sum->execute_ns, rep->execute_ns);
		sum->staging = DCP_MAX(sum->staging, rep->staging);
	}
	unique = t->own->unique ? t->own->unique : sum->needed;
	sum->amplification = unique ? (double)sum->read / (double)unique : 0;
}

/* ---- keys that are not loaded ---- */

/* Put the lists of this rank. Keys that no rank wants are the same on all ranks: rank 0 reports
 * them. */
static int put_entries(const struct loading *l, struct dcp_buf *b, struct summary *own)
{
	uint64_t room = LISTS_ROOM / l->comm->ranks;
	const char *key, *why;

	for (uint32_t list = 0; list < LISTS; list++) {
		if (list == DCPLOAD_UNEXPECTED && l->comm->rank)
			continue;
		for (uint64_t i = 0; dcpload_plan_list(l->plan, list, i, &key, &why) == 0;
		     i++) {
			struct entry e = { list, (uint32_t)strlen(key) + 1,
					   (uint32_t)strlen(why) + 1 };

			own->left += list != DCPLOAD_UNEXPECTED;
			if (b->n + sizeof(e) + e.n + e.nwhy > room) {
				own->unlisted++;
				continue;
			}
			dcp_buf_add(b, &e, sizeof(e));
			dcp_buf_add(b, key, e.n);
			dcp_buf_add(b, why, e.nwhy);
		}
	}
	return dcp_buf_error(b);
}

static int by_key(const void *a, const void *b)
{
	const struct out_left *x = a, *y = b;
	int rc = strcmp(x->key, y->key);

	return rc ? rc : DCP_CMP(x->why, y->why);
}

/* Sort by key, and keep the entry of the lowest rank for each key. */
static void sort_left(struct dcp_buf *b)
{
	struct out_left *v = DCP_ITEMS(*b, struct out_left);
	size_t n = DCP_NITEMS(*b, struct out_left), kept = 0;

	DCP_SORT(v, n, by_key);
	for (size_t i = 0; i < n; i++)
		if (!kept || strcmp(v[kept - 1].key, v[i].key) != 0)
			v[kept++] = v[i];
	b->n = kept * sizeof(*v);
}

static int take_entries(struct report *t, uint32_t rank)
{
	const char *p = t->entries.at[rank], *end = p + t->entries.n[rank];
	struct entry e;

	for (; (size_t)(end - p) >= sizeof(e); p += e.n + e.nwhy) {
		struct out_left left = { .what = "tensor" };

		memcpy(&e, p, sizeof(e));
		p += sizeof(e);
		left.key = p;
		left.why = p + e.n;
		if (e.list >= LISTS || !e.n || !e.nwhy ||
		    (uint64_t)e.n + e.nwhy > (uint64_t)(end - p) || p[e.n - 1] ||
		    left.why[e.nwhy - 1])
			return -EPROTO;
		dcp_buf_add(&t->left[e.list], &left, sizeof(left));
	}
	return p == end ? 0 : -EPROTO;
}

/* Rank 0 takes the lists of all ranks. */
static int take_lists(struct report *t)
{
	struct loading *l = t->l;
	int rc = 0;

	for (uint32_t r = 0; r < l->comm->ranks && rc == 0; r++)
		if (take_entries(t, r) < 0)
			rc = load_fail(&l->err, -EPROTO,
				       "ranks 0 and %u run different releases of dcpfs", r);
	for (uint32_t list = 0; list < LISTS && rc == 0; list++) {
		rc = load_say(&l->err, dcp_buf_error(&t->left[list]));
		sort_left(&t->left[list]);
	}
	return rc;
}

static double seconds_of(uint64_t ns)
{
	return (double)ns / 1e9;
}

/* "1.02 GB/s" */
static const char *rate_text(char buf[OUT_SIZE + 4], uint64_t bytes, uint64_t ns)
{
	char size[OUT_SIZE];

	if (!ns || !bytes)
		return "";
	out_size(size, (uint64_t)((double)bytes / seconds_of(ns)));
	snprintf(buf, OUT_SIZE + 4, "%s/s", size);
	return buf;
}

/* ---- ranks ---- */

/* clang-format off */
static const struct out_field rank_fields[] = {
	{ "rank", "rank", OUT_NUMBER }, { "parts", "parts", OUT_NUMBER },
	{ "needed", "needed", OUT_BYTES }, { "read", "read", OUT_BYTES }, { "sent" },
	{ "received", "received", OUT_BYTES }, { "staging", "staging", OUT_BYTES }, { "calls" },
	{ "open_s" }, { "plan_s" }, { NULL, "waited", OUT_NUMBER }, { "execute_s", "seconds", OUT_NUMBER },
	{ "read_s" }, { "wait_s" }, { "place_s" }, { "cpu_s" }, { "dumped" }, { "dump_s" },
	{ NULL, "reading", OUT_NUMBER }, { NULL, "loading", OUT_NUMBER }, { NULL }
};
/* clang-format on */

/* Put bytes; people see nothing for 0. */
static void put_bytes(struct out *o, const char *name, uint64_t n)
{
	if (n || o->form != OUT_TEXT)
		out_put_u64(o, name, n);
}

static void put_rank(struct out *o, uint32_t rank, const struct summary *s)
{
	const struct dcpload_report *rep = &s->report;
	char speed[OUT_SIZE + 4];

	out_row(o);
	out_put_u64(o, "rank", rank);
	out_put_u64(o, "parts", rep->parts);
	put_bytes(o, "needed", rep->needed);
	put_bytes(o, "read", rep->read);
	out_put_u64(o, "sent", rep->sent);
	put_bytes(o, "received", rep->received);
	put_bytes(o, "staging", rep->staging);
	out_put_u64(o, "calls", rep->calls);
	out_put_seconds(o, "open_s", seconds_of(rep->open_ns));
	out_put_seconds(o, "plan_s", seconds_of(rep->plan_ns));
	if (rep->wait_ns)
		out_put_seconds(o, "waited", seconds_of(rep->wait_ns));
	out_put_seconds(o, "execute_s", seconds_of(rep->execute_ns));
	out_put_seconds(o, "read_s", seconds_of(rep->read_ns));
	out_put_seconds(o, "wait_s", seconds_of(rep->wait_ns));
	out_put_seconds(o, "place_s", seconds_of(rep->place_ns));
	out_put_seconds(o, "cpu_s", seconds_of(rep->cpu_ns));
	out_put_u64(o, "dumped", s->dumped);
	out_put_seconds(o, "dump_s", seconds_of(s->dump_ns));
	out_put_str(o, "reading", rate_text(speed, rep->read, rep->read_ns));
	out_put_str(o, "loading", rate_text(speed, rep->needed, rep->execute_ns));
	out_row_end(o);
}

/* A row a rank. */
static void put_ranks(struct report *t)
{
	out_list(&t->out, "per_rank", rank_fields);
	for (uint32_t r = 0; r < t->l->comm->ranks; r++)
		put_rank(&t->out, r, summary_of(t, r));
	out_list_end(&t->out, true);
}

/* ---- JSON ---- */

static void put_lists(const struct report *t, struct dcp_jsonw *w)
{
	for (uint32_t list = 0; list < LISTS; list++) {
		const struct out_left *left = DCP_ITEMS(t->left[list], struct out_left);

		dcp_jsonw_put_array(w, lists[list]);
		for (size_t i = 0; i < DCP_NITEMS(t->left[list], struct out_left); i++) {
			dcp_jsonw_object(w);
			dcp_jsonw_put_str(w, "key", left[i].key);
			dcp_jsonw_put_str(w, "why", left[i].why);
			dcp_jsonw_end(w);
		}
		dcp_jsonw_end(w);
	}
	dcp_jsonw_put_u64(w, "unlisted", t->unlisted);
}

static void put_ignored(const struct loading *l, struct dcp_jsonw *w)
{
	dcp_jsonw_put_object(w, "ignored");
	for (size_t i = 0; i < l->opts->ignore.n; i++)
		dcp_jsonw_put_u64(w, l->opts->ignore.v[i], l->ignored[i]);
	dcp_jsonw_end(w);
}

static void put_dump(const struct report *t, struct dcp_jsonw *w)
{
	dcp_jsonw_key(w, "dump");
	if (!t->l->opts->dump) {
		dcp_jsonw_null(w);
		return;
	}
	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "dir", t->l->opts->dump);
	dcp_jsonw_put_u64(w, "bytes", t->total.dumped);
	dcp_jsonw_put_u64(w, "left_out", t->total.undumped);
	dcp_jsonw_put_f64(w, "seconds", seconds_of(t->total.dump_ns));
	dcp_jsonw_end(w);
}

static void print_json(struct report *t)
{
	const struct loading *l = t->l;
	struct dcp_jsonw *w = &t->out.json;
	dcp_auto_buf struct dcp_buf origin = DCP_BUF_INIT;
	uint32_t n = t->own->nccl;
	char nccl[16];

	snprintf(nccl, sizeof(nccl), "%u.%u.%u", n / 10000 % 100, n / 100 % 100, n % 100);
	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "version", dcpload_version(l->ck));
	dcp_jsonw_put_str_or_null(w, "format", dcpload_fact(l->ck, "format"));
	dcp_jsonw_put_str(w, "layout", l->layout);
	dcp_jsonw_put_u64(w, "ranks", t->own->ranks);
	dcp_jsonw_put_u64(w, "nodes", t->own->nodes);
	dcp_jsonw_put_str(w, "comm", t->own->comm);
	dcp_jsonw_put_str(w, "io", loading_ios[t->own->io]);
	dcp_jsonw_put_str(w, "io_why", t->own->io_why);
	dcp_jsonw_put_str(w, "exchange", loading_exchanges[t->own->exchange]);
	dcp_jsonw_put_str(w, "exchange_why", t->own->exchange_why);
	dcp_jsonw_put_str_or_null(w, "nccl", t->own->nccl ? nccl : NULL);
	dcp_jsonw_put_str_or_null(w, "device", *t->own->device ? t->own->device : NULL);
	dcp_jsonw_put_str(w, "device_why", t->own->device_why);
	dcp_jsonw_put_str_or_null(w, "again", t->own->again);
	dcp_jsonw_put_u64(w, "parts", t->total.parts);
	dcp_jsonw_put_u64(w, "needed", t->total.needed);
	dcp_jsonw_put_u64(w, "read", t->total.read);
	dcp_jsonw_put_u64(w, "exchanged", t->total.exchanged);
	dcp_jsonw_key(w, "unique");
	if (t->own->unique)
		dcp_jsonw_u64(w, t->own->unique);
	else
		dcp_jsonw_null(w);
	dcp_jsonw_put_f64(w, "amplification", t->total.amplification);
	dcp_jsonw_put_str_or_null(w, "origin", add_origin(l, &origin) ? origin.p : NULL);
	dcp_jsonw_put_u64(w, "requests", t->total.http.requests);
	dcp_jsonw_put_u64(w, "retries", t->total.http.retries);
	dcp_jsonw_put_u64(w, "wire", t->total.http.bytes);
	dcp_jsonw_put_u64(w, "staging", t->total.staging);
	dcp_jsonw_put_u64(w, "pinned", t->own->pinned);
	dcp_jsonw_put_u64(w, "device_staging", t->own->device_staging);
	dcp_jsonw_put_u64(w, "registered", t->own->registered);
	dcp_jsonw_put_f64(w, "open_s", seconds_of(t->total.open_ns));
	dcp_jsonw_put_f64(w, "plan_s", seconds_of(t->total.plan_ns));
	dcp_jsonw_put_f64(w, "seconds", seconds_of(t->total.execute_ns));
	dcp_jsonw_put_bool(w, "checked", l->opts->check);
	put_dump(t, w);
	put_ignored(l, w);
	put_lists(t, w);
	put_ranks(t);
	dcp_jsonw_end(w);
}

/* ---- text ---- */

static void print_lists(struct report *t)
{
	char head[16], count[32];

	for (uint32_t list = 0; list < LISTS; list++) {
		snprintf(head, sizeof(head), "  %-9s", lists[list]);
		if (list != DCPLOAD_UNEXPECTED)
			out_causes(&t->out, head, DCP_ITEMS(t->left[list], struct out_left),
				   DCP_NITEMS(t->left[list], struct out_left));
	}
	if (t->unlisted)
		dcp_buf_printf(&t->out.buf, "  and       %s more of these\n",
			       out_count(count, t->unlisted));
}

static void print_ignored(struct report *t)
{
	const struct opt_texts *globs = &t->l->opts->ignore;
	char count[32];

	for (size_t i = 0; i < globs->n; i++) {
		uint64_t n = t->l->ignored[i];

		dcp_buf_printf(&t->out.buf, "  ignored   %s key%s by ", out_count(count, n),
			       dcp_s(n));
		out_text(&t->out.buf, globs->v[i]);
		dcp_buf_str(&t->out.buf, n ? "\n" : ": no path is called so\n");
	}
}

static void print_dump(struct report *t)
{
	struct dcp_buf *b = &t->out.buf;
	char size[OUT_SIZE], speed[OUT_SIZE + 4], count[32];

	dcp_buf_printf(b, "  dumped    %s in %.3f s (%s) to ", out_size(size, t->total.dumped),
		       seconds_of(t->total.dump_ns),
		       rate_text(speed, t->total.dumped, t->total.dump_ns));
	out_text(b, t->l->opts->dump);
	if (t->total.undumped)
		dcp_buf_printf(b,
			       "; %s parts left out: they cannot be read, or safetensors "
			       "cannot hold their dtype "
			       "or key",
			       out_count(count, t->total.undumped));
	dcp_buf_str(b, "\n");
}

static void print_device(struct report *t)
{
	const struct dcpload_report *own = t->own;
	struct dcp_buf *b = &t->out.buf;
	char pinned[OUT_SIZE], there[OUT_SIZE];

	dcp_buf_str(b, "  device    ");
	out_text(b, *own->device ? own->device : "host");
	dcp_buf_str(b, ": ");
	out_text(b, own->device_why);
	if (*own->device)
		dcp_buf_printf(b, "; %s of staging pinned, %s on the device",
			       out_size(pinned, own->pinned),
			       out_size(there, own->device_staging));
	dcp_buf_str(b, "\n");
}

static void print_text(struct report *t)
{
	const struct loading *l = t->l;
	const struct dcpload_report *own = t->own;
	struct dcp_buf *b = &t->out.buf;
	char size[OUT_SIZE], speed[OUT_SIZE + 4], count[32];
	dcp_auto_buf struct dcp_buf origin = DCP_BUF_INIT;

	out_text(b, dcpload_version(l->ck));
	dcp_buf_str(b, " as ");
	out_text(b, l->layout);
	dcp_buf_printf(b, ": %s part%s, %s in %.3f s (%s) on %u rank%s, %u node%s\n",
		       out_count(count, t->total.parts), dcp_s(t->total.parts),
		       out_size(size, t->total.needed), seconds_of(t->total.execute_ns),
		       rate_text(speed, t->total.needed, t->total.execute_ns), own->ranks,
		       dcp_s(own->ranks), own->nodes, dcp_s(own->nodes));
	dcp_buf_printf(b, "  before    open %.3f s, plan %.3f s\n",
		       seconds_of(t->total.open_ns), seconds_of(t->total.plan_ns));
	dcp_buf_printf(b, "  read      %s, %.2f times %s; exchanged ",
		       out_size(size, t->total.read), t->total.amplification,
		       own->unique ? "the distinct pages that ranks need"
				   : "what each rank needs");
	dcp_buf_printf(b, "%s\n", out_size(size, t->total.exchanged));
	dcp_buf_printf(b, "  io        %s: %s\n", loading_ios[own->io], own->io_why);
	if (add_origin(l, &origin)) {
		dcp_buf_str(b, "  origin    ");
		out_text(b, origin.p);
		dcp_buf_printf(b, "\n  requests  %s, ",
			       out_count(count, t->total.http.requests));
		dcp_buf_printf(b, "%s of them again; ",
			       out_count(count, t->total.http.retries));
		dcp_buf_printf(b, "%s on the wire\n", out_size(size, t->total.http.bytes));
	}
	dcp_buf_printf(b, "  exchange  %s: %s\n", loading_exchanges[own->exchange],
		       own->exchange_why);
	dcp_buf_printf(b, "  staging   %s a rank\n", out_size(size, t->total.staging));
	if (own->ranks > 1)
		dcp_buf_printf(b, "  messages  by %s\n",
			       strcmp(own->comm, "mpi") == 0   ? "MPI"
			       : strcmp(own->comm, "tcp") == 0 ? "TCP"
							       : own->comm);
	if (l->opts->device)
		print_device(t);
	if (own->again) {
		dcp_buf_str(b, "  again     ");
		out_text(b, own->again);
		dcp_buf_str(b, "\n");
	}
	if (l->opts->check)
		dcp_buf_str(b, "  checked   every part is the same when read another way\n");
	if (l->opts->dump)
		print_dump(t);
	print_ignored(t);
	print_lists(t);
	if (own->ranks > 1) {
		dcp_buf_str(b, "\n");
		put_ranks(t);
	}
}

/* Collective. */
static int gather_summaries(struct report *t, struct summary *own)
{
	struct loading *l = t->l;
	dcp_auto_buf struct dcp_buf mine = DCP_BUF_INIT;
	int rc = loading_agree(l, load_say(&l->err, put_entries(l, &mine, own)));

	if (rc == 0)
		rc = load_gather_same(l->comm, own, sizeof(*own), &t->all, &l->err,
				      loading_timeout(l));
	if (rc == 0)
		rc = load_gather_first(l->comm, mine.p, mine.n, &t->entries, &l->err,
				       loading_timeout(l));
	return rc == 0 && l->comm->rank == 0 ? take_lists(t) : rc;
}

static enum cmd_exit print_report(struct report *t)
{
	enum cmd_exit code;

	out_init(&t->out, t->l->opts->form);
	t->out.indent = 2; /* of ranks */
	if (t->out.form == OUT_JSON)
		print_json(t);
	else if (t->out.form == OUT_TSV)
		put_ranks(t);
	else
		print_text(t);
	out_restore(t->l->out);
	code = out_flush(&t->out);
	t->l->out = t->l->out < 0 ? -1 : out_divert();
	out_finish(&t->out);
	return code;
}

enum cmd_exit loading_report(struct loading *l)
{
	struct report t = { .l = l };
	struct summary own = { .report.size = sizeof(own.report),
			       .dumped = l->dump.bytes,
			       .undumped = l->dump.left_out,
			       .dump_ns = l->dump_ns };
	enum cmd_exit code = CMD_OK;
	struct dcpload_part part;

	dcpload_plan_report(l->plan, &own.report);
	own.http = dcp_http_counted();
	own.report.parts = 0;
	for (uint64_t i = 0; dcpload_part(l->plan, i, &part) == 0; i++)
		own.report.parts += part.complete;
	t.own = &own.report;
	l->doing = "reporting";
	if (gather_summaries(&t, &own) < 0) {
		code = loading_fail(l, cmd_exit_of(l->err.code));
	} else {
		add_up(&t);
		l->total = t.total;
		l->reported = true;
		if (t.total.parts == 0 && !t.nleft && l->opts->keys.n) {
			code = loading_matches_nothing(l);
		} else if (l->comm->rank == 0) {
			code = print_report(&t);
		}
	}
	for (size_t i = 0; i < LISTS; i++)
		dcp_buf_finish(&t.left[i]);
	load_blobs_free(&t.entries);
	load_blobs_free(&t.all);
	return code;
}
