/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/system.h"
#include "core/base/text.h"
#include "core/store/index/index.h"
#include "tools/export/export.h"
#include "tools/out.h"

/* Of a version that rules have mapped. */
static const char *const counted[] = { "mapped", "dropped" };

static void put_list(struct dcp_jsonw *w, const char *name, const struct dcp_buf *list)
{
	const struct out_left *l = DCP_ITEMS(*list, struct out_left);

	dcp_jsonw_put_array(w, name);
	for (size_t i = 0; i < DCP_NITEMS(*list, struct out_left); i++) {
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

/* Put the files that would be written. */
static void put_files(const struct exporting *x, struct dcp_jsonw *w)
{
	uint64_t bytes;
	const char *name;

	dcp_jsonw_put_array(w, "dry_run");
	for (size_t i = 0; (name = save_file_at(x->save, i, &bytes)); i++) {
		dcp_jsonw_object(w);
		dcp_jsonw_put_str(w, "name", name);
		dcp_jsonw_put_u64(w, "bytes", bytes);
		dcp_jsonw_end(w);
	}
	dcp_jsonw_end(w);
}

static void list_files(const struct exporting *x, struct out *o)
{
	char size[OUT_SIZE];
	const char *name;
	uint64_t bytes;

	for (size_t i = 0; (name = save_file_at(x->save, i, &bytes)); i++) {
		dcp_buf_printf(&o->buf, "  %8s  ", out_size(size, bytes));
		out_text(&o->buf, name);
		dcp_buf_str(&o->buf, "\n");
	}
}

static void put_json(const struct exporting *x, const struct save_counts *c, double seconds,
		     struct out *o)
{
	struct dcp_jsonw *w = &o->json;
	const struct dcp_index *ix = dcp_version_index(x->pick.ck.v);
	const char *rules = dcp_index_meta(ix, "rules");

	dcp_jsonw_object(w);
	dcp_jsonw_put_str(w, "out", x->out);
	dcp_jsonw_put_str(w, "format", x->format->name);
	dcp_jsonw_put_str(w, "version", x->pick.ck.name);
	dcp_jsonw_put_u64(w, "tensors", x->set.ntensors);
	dcp_jsonw_put_u64(w, "objects", x->set.nobjects);
	dcp_jsonw_put_u64(w, "extras", x->set.nextras);
	dcp_jsonw_put_u64(w, "files", c->files);
	dcp_jsonw_put_u64(w, "bytes", c->bytes);
	dcp_jsonw_put_u64(w, "kept", x->kept);
	dcp_jsonw_put_u64(w, "copied", x->copied);
	dcp_jsonw_put_u64(w, "direct", x->direct);
	dcp_jsonw_put_f64(w, "seconds", seconds);
	dcp_jsonw_put_bool(w, "verified", x->opts->verify && !x->opts->dry);
	if (x->opts->dry)
		put_files(x, w);
	if (rules)
		dcp_jsonw_put_str(w, "rules", rules);
	for (size_t i = 0; rules && i < DCP_LEN(counted); i++)
		dcp_jsonw_put_u64(w, counted[i], dcp_index_meta_number(ix, counted[i]));
	if (rules)
		hf_put_model_json(x->pick.ck.v, w);
	export_put_left_json(x, w);
	dcp_jsonw_end(w);
}

void export_put_left(const struct exporting *x, struct out *o)
{
	out_causes(o, "left out:", DCP_ITEMS(x->left, struct out_left),
		   DCP_NITEMS(x->left, struct out_left));
	out_causes(o, "note:", DCP_ITEMS(x->asks, struct out_left),
		   DCP_NITEMS(x->asks, struct out_left));
}

static void put_text(const struct exporting *x, const struct save_counts *c, double seconds,
		     struct out *o)
{
	char size[OUT_SIZE], rate[OUT_SIZE], kept[OUT_SIZE], a[32], b[32];
	const struct dcp_index *ix = dcp_version_index(x->pick.ck.v);
	const char *rules = dcp_index_meta(ix, "rules");

	out_text(&o->buf, x->out);
	dcp_buf_printf(&o->buf, "%s: %s, %s tensor%s, %s object%s, %s in %llu file%s",
		       x->opts->dry ? " would be written" : "", x->format->name,
		       out_count(a, x->set.ntensors), dcp_s(x->set.ntensors),
		       out_count(b, x->set.nobjects), dcp_s(x->set.nobjects),
		       out_size(size, c->bytes), (unsigned long long)c->files, dcp_s(c->files));
	if (!x->opts->dry)
		dcp_buf_printf(
			&o->buf, ", %.1f s, %s/s%s", seconds,
			out_size(rate, (uint64_t)((double)(c->data - x->kept) / seconds)),
			x->opts->verify ? ", verified" : "");
	if (x->kept)
		dcp_buf_printf(&o->buf, "; %s were there already", out_size(kept, x->kept));
	if (x->copied)
		dcp_buf_printf(&o->buf, "; %s copied by the kernel", out_size(kept, x->copied));
	dcp_buf_str(&o->buf, "\n");
	if (x->opts->dry)
		list_files(x, o);
	if (rules)
		dcp_buf_printf(&o->buf,
			       "rules: by %s %s keys come out, %s are left out, as they are "
			       "not weights\n",
			       rules, out_count(a, dcp_index_meta_number(ix, counted[0])),
			       out_count(b, dcp_index_meta_number(ix, counted[1])));
	if (rules)
		hf_put_model(x->pick.ck.v, &o->buf);
	export_put_left(x, o);
}

enum cmd_exit export_report(const struct exporting *x)
{
	double seconds = (double)(dcp_now_ns(CLOCK_MONOTONIC) - x->start_ns) / 1e9;
	struct save_counts c;
	struct out o;
	enum cmd_exit code;

	save_count(x->save, &c);
	out_init(&o, x->opts->form);
	if (x->opts->form == OUT_JSON)
		put_json(x, &c, seconds, &o);
	else
		put_text(x, &c, seconds > 0 ? seconds : 1e-9, &o);
	code = out_flush(&o);
	out_finish(&o);
	return code;
}
