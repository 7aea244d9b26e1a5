/* SPDX-License-Identifier: Apache-2.0 */
/* Lists and tables, and names that are shortened to fit them. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/text.h"
#include "core/model/tensor.h"
#include "tools/out.h"

#define FLEX_LEAST 12                 /* columns that the shortened column keeps at least */
#define FLEX_PAD 256                  /* columns that it is padded to if nothing is shortened */
#define TABLE_LIMIT ((size_t)1 << 30) /* cells of ten million rows */

/* A name being shortened, and which of its characters stay. */
struct short_name {
	size_t n, gaps, kept; /* kept: columns */
	bool *keep;
	uint8_t *cols; /* of each character */
	size_t mark;   /* columns of the mark that stands for a gap */
};

static size_t columns_of(const struct short_name *e)
{
	return e->kept + e->gaps * e->mark;
}

/* Keep character @i if there is room. A gap ends, shrinks or becomes two gaps. */
static bool keep_char(struct short_name *e, size_t i, size_t max)
{
	bool before = i > 0 && !e->keep[i - 1], after = i + 1 < e->n && !e->keep[i + 1];
	struct short_name with = *e;

	if (e->keep[i])
		return true;
	with.kept += e->cols[i];
	with.gaps += (size_t)before + after;
	with.gaps--;
	if (columns_of(&with) > max)
		return false;
	*e = with;
	e->keep[i] = true;
	return true;
}

/* Keep digits, from the end on. */
static void keep_digits(struct short_name *e, const bool *digit, size_t max)
{
	for (size_t i = e->n; i-- > 0;)
		if (digit[i])
			keep_char(e, i, max);
}

/* Keep characters from both ends inwards, three at the end for every two at the beginning. An end
 * is done at the first character that does not fit. */
static void keep_ends(struct short_name *e, size_t max)
{
	size_t head = 0, tail = e->n;
	bool more_head = true, more_tail = true;

	for (size_t turn = 0; (more_head || more_tail) && head < tail; turn++) {
		bool at_tail = more_tail && (turn % 5 < 3 || !more_head);

		if (at_tail)
			more_tail = keep_char(e, tail - 1, max) && tail--;
		else if (more_head)
			more_head = keep_char(e, head, max) && ++head;
	}
}

/* Like out_elide(), but the characters that must[0] to must[nmust - 1] mark are kept first. */
static void elide_kept(struct dcp_buf *b, const char *s, size_t max, bool utf8,
		       const bool *must, size_t nmust)
{
	const char *mark = utf8 ? "\xe2\x80\xa6" : "..";
	size_t width = out_width(s), most = strlen(s), bytes, cols;
	dcp_auto_free bool *keep = NULL, *digit = NULL;
	dcp_auto_free uint8_t *taken = NULL;
	struct short_name e = { .gaps = 1, .mark = out_width(mark) };

	if (width <= max || max <= e.mark) {
		dcp_buf_add(b, s, out_fit(s, max));
		return;
	}
	e.keep = keep = calloc(most, sizeof(*keep));
	e.cols = taken = calloc(most, sizeof(*taken));
	digit = calloc(most, sizeof(*digit));
	if (!keep || !taken || !digit) {
		b->failed = true;
		return;
	}
	for (const char *p = s; (bytes = out_char(p, &cols)); p += bytes) {
		digit[e.n] = *p >= '0' && *p <= '9';
		taken[e.n++] = (uint8_t)cols;
	}
	for (size_t i = 0; i < DCP_MIN(nmust, e.n); i++)
		if (must[i])
			keep_char(&e, i, max);
	keep_digits(&e, digit, max);
	keep_ends(&e, max);
	for (size_t i = 0; i < e.n; i++, s += bytes) {
		bytes = out_char(s, &cols);
		if (keep[i])
			dcp_buf_add(b, s, bytes);
		else if (i == 0 || keep[i - 1])
			dcp_buf_str(b, mark);
	}
}

void out_elide(struct dcp_buf *b, const char *s, size_t max, bool utf8)
{
	elide_kept(b, s, max, utf8, NULL, 0);
}

void out_table_init(struct out_table *t, const struct out_col *cols, size_t ncols)
{
	*t = (struct out_table){ .cols = cols, .ncols = ncols };
	dcp_arena_init(&t->arena, TABLE_LIMIT);
}

void out_table_finish(struct out_table *t)
{
	dcp_arena_finish(&t->arena);
	free(t->cells);
	t->cells = NULL;
}

void out_table_cell(struct out_table *t, const char *s)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	char *copy;

	out_text(&b, s);
	copy = dcp_arena_strndup(&t->arena, b.p ? b.p : "", b.n);
	if (!copy || dcp_buf_error(&b) || DCP_GROW(t->cells, t->cap, t->ncells) < 0)
		t->failed = true;
	else
		t->cells[t->ncells++] = copy;
}

void out_table_printf(struct out_table *t, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	out_table_cell(t, text);
}

/* Widths of a table: columns are padded to pad, and cells cut to at most cut. */
struct widths {
	size_t pad[OUT_MAX_COLS], cut[OUT_MAX_COLS];
	bool skip[OUT_MAX_COLS]; /* the column is empty, and its room is needed */
};

static int by_shown(const void *a, const void *b)
{
	const struct out_short *x = *(struct out_short *const *)a,
			       *y = *(struct out_short *const *)b;
	int rc = strcmp(x->shown, y->shown);

	return rc ? rc : strcmp(x->whole, y->whole);
}

/* The end of the names that look like @i. */
static size_t end_of_alike(struct out_short *const *names, size_t n, size_t i)
{
	size_t next = i + 1;

	while (next < n && strcmp(names[next]->shown, names[i]->shown) == 0)
		next++;
	return next;
}

/* Are all of these sorted names the same text? */
static bool are_one(struct out_short *const *names, size_t n)
{
	return strcmp(names[0]->whole, names[n - 1]->whole) == 0;
}

/* Characters that @a and @b begin with alike. */
static size_t common_chars(const char *a, const char *b)
{
	size_t n = 0, bytes, cols;

	for (; (bytes = out_char(a, &cols)) && strncmp(a, b, bytes) == 0; n++) {
		a += bytes;
		b += bytes;
	}
	return n;
}

/* The shortened @name; NULL: no memory. */
static const char *shorten_name(struct dcp_arena *arena, const struct out_short *name,
				bool utf8, const bool *must, size_t nmust)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;

	if (out_width(name->whole) <= name->max)
		return name->whole;
	elide_kept(&b, name->whole, name->max, utf8, must, nmust);
	return dcp_buf_error(&b) ? NULL : dcp_arena_strndup(arena, b.p ? b.p : "", b.n);
}

/* Show sorted names that look the same by where they differ. -ENOMEM. */
static int show_differences(struct dcp_arena *arena, struct out_short *const *names, size_t n,
			    bool utf8)
{
	enum { POINTS = 1024 };
	bool must[POINTS] = { false };

	for (size_t i = 1; i < n; i++) {
		size_t at = common_chars(names[i - 1]->whole, names[i]->whole);

		if (at < POINTS && strcmp(names[i - 1]->whole, names[i]->whole) != 0)
			must[at] = true;
	}
	for (size_t i = 0; i < n; i++) {
		names[i]->shown = shorten_name(arena, names[i], utf8, must, POINTS);
		if (!names[i]->shown)
			return -ENOMEM;
	}
	return 0;
}

int out_shorten(struct dcp_arena *arena, struct out_short *names, size_t n, bool utf8)
{
	dcp_auto_free struct out_short **sorted = calloc(n + 1, sizeof(*sorted));

	if (!sorted)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		sorted[i] = &names[i];
		names[i].shown = shorten_name(arena, &names[i], utf8, NULL, 0);
		if (!names[i].shown)
			return -ENOMEM;
	}
	DCP_SORT(sorted, n, by_shown);
	for (size_t i = 0, next; i < n; i = next) {
		next = end_of_alike(sorted, n, i);
		if (!are_one(sorted + i, next - i) &&
		    show_differences(arena, sorted + i, next - i, utf8) < 0)
			return -ENOMEM;
	}
	DCP_SORT(sorted, n, by_shown);
	for (size_t i = 0, next; i < n; i = next) {
		next = end_of_alike(sorted, n, i);
		if (!are_one(sorted + i, next - i))
			for (size_t k = i; k < next; k++)
				sorted[k]->shown = sorted[k]->whole;
	}
	return 0;
}

/* The cells of column @c, as they are shown. -ENOMEM. */
static int shorten_column(struct out_table *t, const struct out *o, const struct widths *w,
			  size_t c)
{
	size_t n = t->ncells / t->ncols;
	dcp_auto_free struct out_short *all = calloc(n + 1, sizeof(*all));

	for (size_t i = 0; all && i < n; i++)
		all[i] = (struct out_short){ .whole = t->cells[i * t->ncols + c],
					     .max = w->cut[c] };
	if (!all || out_shorten(&t->arena, all, n, o->utf8) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		t->cells[i * t->ncols + c] = all[i].shown;
	return 0;
}

static void print_line(const struct out_table *t, struct out *o, const struct widths *w,
		       const char *const *cells, unsigned indent)
{
	size_t owed = indent; /* spaces, written only when something follows them */

	for (size_t c = 0; c < t->ncols; c++) {
		const char *s = cells ? cells[c] : t->cols[c].head;
		size_t n = out_width(s);
		const char *paint;
		size_t fill = n < w->pad[c] ? w->pad[c] - n : 0;

		if (w->skip[c])
			continue;
		if (t->cols[c].right)
			owed += fill;
		if (n)
			dcp_buf_printf(&o->buf, "%*s", (int)owed, "");
		owed = n ? 0 : owed;
		paint = cells && t->cols[c].state ? out_paint(o, s) : "";
		dcp_buf_printf(&o->buf, "%s%s%s", paint, s, *paint ? OUT_PLAIN : "");
		owed += (t->cols[c].right ? 0 : fill) + 2;
	}
	dcp_buf_str(&o->buf, "\n");
}

/* Take up to @over columns from column @c, but leave it @least. */
static size_t narrow_column(struct widths *w, size_t c, size_t least, size_t over)
{
	size_t room = w->pad[c] > least ? w->pad[c] - least : 0, gone = DCP_MIN(room, over);

	w->pad[c] -= gone;
	w->cut[c] = w->pad[c];
	return over - gone;
}

/* Make the table @over columns narrower: drop empty columns, then shorten columns that matter less
 * than flex. */
static void squeeze_table(const struct out_table *t, struct widths *w, const bool *empty,
			  size_t over)
{
	for (size_t c = 0; c < t->ncols; c++) {
		w->skip[c] = empty[c] && c > 0;
		if (w->skip[c])
			over -= DCP_MIN(over, w->pad[c] + 2);
	}
	for (size_t c = t->ncols; c-- > 0;)
		if (t->cols[c].least)
			over = narrow_column(w, c, t->cols[c].least, over);
	for (size_t c = 0; c < t->ncols; c++)
		if (t->cols[c].flex)
			over = narrow_column(w, c, FLEX_LEAST, over);
}

/* Nothing is cut for a pipe, but a very long key must not widen every other line. */
static void measure_columns(const struct out_table *t, const struct out *o, unsigned indent,
			    struct widths *w)
{
	bool empty[OUT_MAX_COLS];
	size_t total = indent;

	for (size_t c = 0; c < t->ncols; c++) {
		size_t widest = 0;

		for (size_t i = c; i < t->ncells; i += t->ncols)
			widest = DCP_MAX(widest, out_width(t->cells[i]));
		empty[c] = widest == 0;
		w->pad[c] = t->cols[c].head ? out_width(t->cols[c].head) : 0;
		w->pad[c] = DCP_MAX(w->pad[c], widest);
		w->cut[c] = w->pad[c];
		total += w->pad[c] + (c ? 2 : 0);
		if (t->cols[c].flex && !o->width)
			w->pad[c] = DCP_MIN(w->pad[c], FLEX_PAD);
	}
	if (o->width && total > o->width)
		squeeze_table(t, w, empty, total - o->width);
}

void out_table_print(struct out_table *t, struct out *o, unsigned indent)
{
	struct widths w = { 0 };

	measure_columns(t, o, indent, &w);
	for (size_t c = 0; o->width && c < t->ncols; c++)
		t->failed |= !w.skip[c] && shorten_column(t, o, &w, c) < 0;
	o->buf.failed = o->buf.failed || t->failed;
	if (t->cols[0].head) {
		if (o->color)
			dcp_buf_str(&o->buf, "\033[1m");
		print_line(t, o, &w, NULL, indent);
		if (o->color)
			dcp_buf_str(&o->buf, "\033[0m");
	}
	for (size_t i = 0; i + t->ncols <= t->ncells; i += t->ncols)
		print_line(t, o, &w, t->cells + i, indent);
}

/* ---- lists ---- */

/*
 * Add a cell of CSV, quoted where needed, with quotation marks doubled. Control characters are
 * spelled out, as everywhere. An apostrophe keeps a spreadsheet from computing a text; numbers have
 * none.
 */
static void add_csv(struct out *o, const char *text)
{
	dcp_auto_buf struct dcp_buf safe = DCP_BUF_INIT;
	const char *s;
	bool quoted;

	if (*text && strchr("=+-@", *text) && text[strspn(text, "0123456789.+-einfa")])
		dcp_buf_str(&safe, "'");
	dcp_buf_shown(&safe, text, strlen(text), "");
	dcp_buf_add(&safe, "", 1);
	s = dcp_buf_error(&safe) ? "" : safe.p;
	quoted = s[strcspn(s, ",\"")];
	dcp_buf_str(&o->buf, quoted ? "\"" : "");
	for (; *s; s++) {
		dcp_buf_str(&o->buf, *s == '"' ? "\"" : "");
		dcp_buf_add(&o->buf, s, 1);
	}
	dcp_buf_str(&o->buf, quoted ? "\"" : "");
}

void out_tsv(struct out *o, const char *s)
{
	if (o->in_line)
		dcp_buf_str(&o->buf, o->form == OUT_CSV ? "," : "\t");
	o->in_line = true;
	if (o->form == OUT_CSV) {
		add_csv(o, s);
		return;
	}
	while (*s) {
		size_t n = strcspn(s, "\\");

		dcp_buf_shown(&o->buf, s, n, "");
		s += n;
		if (*s == '\\') {
			dcp_buf_str(&o->buf, "\\\\");
			s++;
		}
	}
}

static void end_line(struct out *o)
{
	dcp_buf_str(&o->buf, "\n");
	o->in_line = false;
}

static bool is_end(const struct out_field *f)
{
	return !f->name && !f->head;
}

/* Does the form of @o have the field @f? */
static bool has_field(const struct out *o, const struct out_field *f)
{
	switch (o->form) {
	case OUT_JSON:
		return f->name && f->only != OUT_ONLY_TSV;
	case OUT_TSV:
	case OUT_CSV:
		return f->name && f->only != OUT_ONLY_JSON;
	case OUT_TEXT:
		return f->head && (f->only != OUT_LONG || o->lengthy);
	case OUT_NAMES:
		return f->kind == OUT_NAME;
	case OUT_SVG:
	case OUT_HTML:
		break;
	}
	return false;
}

void out_list(struct out *o, const char *key, const struct out_field *fields)
{
	size_t ncols = 0;

	if (o->form == OUT_JSON && key)
		dcp_jsonw_key(&o->json, key);
	if (o->form == OUT_JSON)
		dcp_jsonw_array(&o->json);
	o->fields = fields;
	for (const struct out_field *f = fields; !is_end(f); f++) {
		if (has_field(o, f) && (o->form == OUT_TSV || o->form == OUT_CSV))
			out_tsv(o, f->name);
		if (!has_field(o, f) || o->form != OUT_TEXT)
			continue;
		assert(ncols < OUT_MAX_COLS);
		o->cols[ncols++] = (struct out_col){ .head = f->head,
						     .right = f->kind >= OUT_NUMBER,
						     .flex = f->kind == OUT_NAME,
						     .state = f->kind == OUT_STATE,
						     .least = f->least };
	}
	if (o->in_line)
		end_line(o);
	out_table_init(&o->table, o->cols, ncols);
}

void out_list_end(struct out *o, bool heads)
{
	if (o->form == OUT_JSON)
		dcp_jsonw_end(&o->json);
	if (o->form == OUT_TEXT && o->table.ncols && (heads || o->table.ncells))
		out_table_print(&o->table, o, o->indent);
	out_table_finish(&o->table);
	o->fields = NULL;
}

void out_row(struct out *o)
{
	if (o->form == OUT_JSON)
		dcp_jsonw_object(&o->json);
	o->next = o->fields;
}

/* Put the mark for a missing value, in forms with columns. */
static void put_none(struct out *o, const struct out_field *f)
{
	if (!has_field(o, f))
		return;
	if (o->form == OUT_TSV || o->form == OUT_CSV)
		out_tsv(o, "");
	else if (o->form == OUT_TEXT)
		out_table_cell(&o->table, f->none ? f->none : "");
}

/* Find the field @name; the row has no values for fields skipped before it. NULL: this form does
 * not have it. */
static const struct out_field *take_field(struct out *o, const char *name)
{
	static const struct out_field member = { "", NULL };
	const struct out_field *f;

	if (!o->fields)
		return o->form == OUT_JSON ? &member : NULL;
	while (!is_end(o->next)) {
		f = o->next++;
		if (strcmp(f->name ? f->name : f->head, name) == 0)
			return has_field(o, f) ? f : NULL;
		put_none(o, f);
	}
	assert(false && "the value comes out of turn");
	return NULL;
}

void out_row_end(struct out *o)
{
	for (; o->fields && !is_end(o->next); o->next++)
		put_none(o, o->next);
	if (o->form == OUT_JSON)
		dcp_jsonw_end(&o->json);
	else if (o->in_line)
		end_line(o);
}

/* The value of a field as text, everywhere but in JSON. */
static void put_cell(struct out *o, const struct out_field *f, const char *s)
{
	if (o->form == OUT_TEXT) {
		out_table_cell(&o->table, s);
	} else if (o->form == OUT_NAMES) {
		out_text(&o->buf, s);
		dcp_buf_str(&o->buf, "\n");
	} else {
		out_tsv(o, s);
	}
}

void out_put_str(struct out *o, const char *name, const char *s)
{
	const struct out_field *f = take_field(o, name);

	if (f && o->form == OUT_JSON)
		dcp_jsonw_put_str_or_null(&o->json, name, s);
	else if (f && s)
		put_cell(o, f, s);
	else if (f)
		put_none(o, f);
}

void out_put_bool(struct out *o, const char *name, bool v)
{
	if (o->form != OUT_JSON)
		out_put_str(o, name, v ? "true" : "false");
	else if (take_field(o, name))
		dcp_jsonw_put_bool(&o->json, name, v);
}

void out_put_dims(struct out *o, const char *name, const uint64_t *dims, uint32_t n)
{
	char text[2048];

	if (o->form != OUT_JSON)
		out_put_str(o, name, dcp_dims_text(text, sizeof(text), dims, n));
	else if (take_field(o, name))
		dcp_jsonw_put_u64s(&o->json, name, dims, n);
}

/* A number as people read it. */
static const char *count_text(char buf[32], enum out_kind kind, uint64_t n)
{
	if (kind == OUT_BYTES)
		return out_size(buf, n);
	if (kind == OUT_PARAMS)
		return out_params(buf, n);
	if (kind == OUT_COUNT || kind == OUT_SOME)
		return n || kind == OUT_COUNT ? out_count(buf, n) : "";
	snprintf(buf, 32, "%llu", (unsigned long long)n);
	return buf;
}

void out_put_u64(struct out *o, const char *name, uint64_t n)
{
	const struct out_field *f = take_field(o, name);
	char text[32];

	if (f && o->form == OUT_JSON)
		dcp_jsonw_put_u64(&o->json, name, n);
	else if (f)
		put_cell(o, f, count_text(text, o->form == OUT_TEXT ? f->kind : OUT_NUMBER, n));
}

void out_put_f64(struct out *o, const char *name, double v)
{
	const struct out_field *f = take_field(o, name);
	char text[DCP_FLOAT_CHARS];

	if (!f)
		return;
	if (!isfinite(v) && o->form == OUT_JSON)
		dcp_jsonw_put_str_or_null(&o->json, name, NULL);
	else if (o->form == OUT_JSON)
		dcp_jsonw_put_f64(&o->json, name, v);
	else if (isnan(v) || (isinf(v) && o->form != OUT_TEXT))
		put_none(o, f);
	else if (o->form != OUT_TEXT)
		out_tsv(o, (dcp_print_float(text, v), text));
	else if (f->kind == OUT_PART)
		out_table_printf(&o->table, "%.3g%%", 100 * v);
	else
		out_table_printf(&o->table, f->kind == OUT_COSINE ? "%.8f" : "%.4g", v);
}

void out_put_seconds(struct out *o, const char *name, double s)
{
	const struct out_field *f = take_field(o, name);
	char text[32];

	snprintf(text, sizeof(text), "%.*f%s", o->form == OUT_TEXT ? 3 : 9, s,
		 f && o->form == OUT_TEXT && f->kind == OUT_SECONDS ? " s" : "");
	if (f && o->form == OUT_JSON)
		dcp_jsonw_put_f64(&o->json, name, s);
	else if (f)
		put_cell(o, f, text);
}

void out_finish(struct out *o)
{
	out_table_finish(&o->table);
	dcp_buf_finish(&o->buf);
}
