/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/text.h"
#include "tools/export/export.h"
#include "tools/out.h"

enum { NAMED = 3 }; /* of those left out for one reason; JSON has all */

static void put_list(struct dcp_jsonw *w, const char *name, const struct dcp_buf *list)
{
	const struct export_left *l = DCP_ITEMS(*list, struct export_left);

	dcp_jsonw_key(w, name);
	dcp_jsonw_array(w);
	for (size_t i = 0; i < DCP_NITEMS(*list, struct export_left); i++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "kind", l[i].what);
		dcp_jsonw_put_str(w, "key", l[i].key);
		dcp_jsonw_put_str(w, "why", l[i].why);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
}

void export_put_left_json(const struct exporting *x, struct dcp_jsonw *w)
{
	put_list(w, "left_out", &x->left);
	put_list(w, "asks", &x->asks);
}

static void put_json(const struct exporting *x, const struct save_counts *c, double seconds,
		     struct out *o)
{
	struct dcp_jsonw *w = &o->json;

	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "out", x->out);
	dcp_jsonw_put_str(w, "format", x->format->name);
	dcp_jsonw_put_str(w, "version", x->pick.found->name);
	dcp_jsonw_put_u64(w, "tensors", x->set.ntensors);
	dcp_jsonw_put_u64(w, "objects", x->set.nobjects);
	dcp_jsonw_put_u64(w, "extras", x->set.nextras);
	dcp_jsonw_put_u64(w, "files", c->files);
	dcp_jsonw_put_u64(w, "bytes", c->bytes);
	dcp_jsonw_put_u64(w, "kept", x->kept);
	dcp_jsonw_put_u64(w, "copied", x->copied);
	dcp_jsonw_put_u64(w, "direct", x->direct);
	dcp_jsonw_key(w, "seconds");
	dcp_jsonw_f64(w, seconds);
	dcp_jsonw_put_bool(w, "verified", x->opts->verify);
	export_put_left_json(x, w);
	dcp_jsonw_end(w);
}

static int by_cause(const void *a, const void *b)
{
	const struct export_left *const *x = a, *const *y = b;
	int rc = strcmp((*y)->what, (*x)->what);

	if (rc == 0)
		rc = strcmp((*x)->why, (*y)->why);
	return rc ? rc : (*x > *y) - (*x < *y);
}

/* Many are left out for one reason: a line for each reason, tensors first. */
static void put_left(const char *what, const struct dcp_buf *list, struct out *o)
{
	const struct export_left *all = DCP_ITEMS(*list, struct export_left);
	size_t n = DCP_NITEMS(*list, struct export_left);
	const struct export_left **l = calloc(n + 1, sizeof(*l));
	char count[32];

	for (size_t i = 0; l && i < n; i++)
		l[i] = &all[i];
	if (l)
		qsort(l, n, sizeof(*l), by_cause);
	for (size_t i = 0, next; l && i < n; i = next) {
		for (next = i + 1; next < n && strcmp(l[next]->why, l[i]->why) == 0 &&
				   strcmp(l[next]->what, l[i]->what) == 0;)
			next++;
		dcp_buf_printf(&o->buf, "%s: %s %s%s", what, out_count(count, next - i),
			       l[i]->what, dcp_s(next - i));
		for (size_t k = i; k < next && k < i + NAMED; k++) {
			dcp_buf_str(&o->buf, k > i ? ", " : " ");
			out_text(&o->buf, l[k]->key);
		}
		dcp_buf_printf(&o->buf, "%s: ", next - i > NAMED ? ", ..." : "");
		out_text(&o->buf, l[i]->why);
		dcp_buf_str(&o->buf, "\n");
	}
	if (!l)
		dcp_buf_printf(&o->buf, "%s: %s in all\n", what, out_count(count, n));
	free((void *)l);
}

void export_put_left(const struct exporting *x, struct out *o)
{
	put_left("left out", &x->left, o);
	put_left("note", &x->asks, o);
}

static void put_text(const struct exporting *x, const struct save_counts *c, double seconds,
		     struct out *o)
{
	char size[OUT_SIZE], rate[OUT_SIZE], kept[OUT_SIZE], a[32], b[32];

	out_text(&o->buf, x->out);
	dcp_buf_printf(
		&o->buf, ": %s, %s tensor%s, %s object%s, %s in %llu file%s, %.1f s, %s/s%s",
		x->format->name, out_count(a, x->set.ntensors), dcp_s(x->set.ntensors),
		out_count(b, x->set.nobjects), dcp_s(x->set.nobjects), out_size(size, c->bytes),
		(unsigned long long)c->files, dcp_s(c->files), seconds,
		out_size(rate, (uint64_t)((double)(c->data - x->kept) / seconds)),
		x->opts->verify ? ", verified" : "");
	if (x->kept)
		dcp_buf_printf(&o->buf, "; %s were there already", out_size(kept, x->kept));
	if (x->copied)
		dcp_buf_printf(&o->buf, "; %s copied by the kernel", out_size(kept, x->copied));
	dcp_buf_str(&o->buf, "\n");
	export_put_left(x, o);
}

enum cmd_exit export_report(const struct exporting *x)
{
	double seconds = (double)(dcp_now_ns(CLOCK_MONOTONIC) - x->start_ns) / 1e9;
	struct save_counts c;
	struct out o;
	enum cmd_exit code;

	save_count(x->save, &c);
	out_init(&o);
	if (x->opts->form == OUT_JSON) {
		put_json(x, &c, seconds, &o);
		code = out_json(&o);
	} else {
		put_text(x, &c, seconds > 0 ? seconds : 1e-9, &o);
		code = out_flush(&o);
	}
	out_finish(&o);
	return code;
}
