/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/store/view/measure.h"
#include "core/store/view/view.h"
#include "tools/browse/screen.h"
#include "tools/cmd.h"
#include "tools/out.h"
#include "tools/pick.h"
#include "tools/trust/trust.h"

struct browse_opts {
	struct opt_texts keys; /* none */
	struct pick_opts pick;
};

static const struct opt opts[] = { PICK_OPT_VERSION, PICK_OPTS(struct browse_opts),
				   PICK_OPTS_HF(struct browse_opts),
				   PICK_OPT_PARTIAL(struct browse_opts), OPT_END };

static const struct opt_operand operands[] = { PICK_OPERANDS, { 0 } };

enum { LINE = 4, MOST_FIND = 200 };

/* A line of a list: a key, or all keys with one prefix. */
struct entry {
	const struct browse_item *first;
	size_t n, len; /* number of keys; bytes of their common prefix, 0: a key alone */
	uint64_t nbytes;
};

enum page_kind { TREE, FOUND, TEXT, VALUES };

struct page {
	enum page_kind kind;
	size_t at, top;                 /* the chosen line, and the first that is shown */
	size_t len;                     /* bytes of the tree's prefix in a key */
	const struct browse_item *item; /* the item of the page, or a key of the tree */
};

struct browsing {
	struct pick p;
	struct walk_keys keys;
	struct dcp_buf items;   /* struct browse_item, by key */
	struct dcp_buf entries; /* struct entry, of the page that is shown */
	struct dcp_buf pages;   /* struct page: the last is shown */
	struct browse_text text;
	struct dcp_view *view; /* of VALUES */
	struct dcp_measures *known;
	char find[MOST_FIND];
	char said[600]; /* a message at the foot, until a key is pressed */
	struct dcp_arena arena;
	struct out out; /* text is made in its buffer */
	unsigned rows, cols;
	int rc;
};

static struct page *page_shown(struct browsing *b)
{
	return &DCP_ITEMS(b->pages, struct page)[DCP_NITEMS(b->pages, struct page) - 1];
}

/* ---- what there is ---- */

static int add_object(void *ctx, enum dcp_row_kind kind, const struct dcp_row *row)
{
	struct browsing *b = ctx;
	struct browse_item o = { .key = dcp_arena_strdup(&b->arena, row->key),
				 .id = row->id,
				 .nbytes = row->nbytes };

	return o.key ? dcp_buf_add(&b->items, &o, sizeof(o)) : -ENOMEM;
}

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct browse_item *)a)->key,
		      ((const struct browse_item *)b)->key);
}

static int list_items(struct browsing *b)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < WALK_NKEYS(&b->keys); i++) {
		const struct walk_key *k = &WALK_KEYS(&b->keys)[i];

		rc = dcp_buf_add(
			&b->items,
			&(struct browse_item){ k->key, k, k->id, k->alias_of ? 0 : k->nbytes },
			sizeof(struct browse_item));
	}
	if (rc == 0)
		rc = dcp_each_row(dcp_version_index(b->p.ck.v), DCP_ROW_OBJECT, add_object, b);
	if (rc == 0 && b->items.n)
		qsort(b->items.p, DCP_NITEMS(b->items, struct browse_item),
		      sizeof(struct browse_item), by_key);
	return rc;
}

/* layers.2 before layers.10 */
static int by_first(const void *a, const void *b)
{
	return strverscmp(((const struct entry *)a)->first->key,
			  ((const struct entry *)b)->first->key);
}

static void sort_entries(struct browsing *b)
{
	if (b->entries.n)
		qsort(b->entries.p, DCP_NITEMS(b->entries, struct entry), sizeof(struct entry),
		      by_first);
}

static void list_tree(struct browsing *b, const struct page *page)
{
	const struct browse_item *all = DCP_ITEMS(b->items, struct browse_item);
	size_t n = DCP_NITEMS(b->items, struct browse_item), i = 0;
	const char *prefix = page->item ? page->item->key : "";

	for (b->entries.n = 0; i < n && b->rc == 0; i++) {
		const char *key = all[i].key;
		struct entry e = { .first = &all[i], .n = 1, .nbytes = all[i].nbytes };
		size_t len = page->len;

		if (strncmp(key, prefix, len) != 0)
			continue;
		len += strcspn(key + len, "./");
		if (key[len]) {
			e.len = len + 1;
			for (; i + 1 < n && strncmp(all[i + 1].key, key, e.len) == 0; i++) {
				e.n++;
				e.nbytes += all[i + 1].nbytes;
			}
		}
		b->rc = dcp_buf_add(&b->entries, &e, sizeof(e));
	}
	sort_entries(b);
}

static void list_found(struct browsing *b)
{
	const struct browse_item *all = DCP_ITEMS(b->items, struct browse_item);

	b->entries.n = 0;
	for (size_t i = 0; i < DCP_NITEMS(b->items, struct browse_item) && b->rc == 0; i++)
		if (strcasestr(all[i].key, b->find))
			b->rc = dcp_buf_add(&b->entries,
					    &(struct entry){ &all[i], 1, 0, all[i].nbytes },
					    sizeof(struct entry));
	sort_entries(b);
}

static void show_list(struct browsing *b)
{
	if (page_shown(b)->kind == TREE)
		list_tree(b, page_shown(b));
	else if (page_shown(b)->kind == FOUND)
		list_found(b);
}

static void open_page(struct browsing *b, struct page page)
{
	b->rc = dcp_buf_add(&b->pages, &page, sizeof(page));
	if (b->rc == 0)
		b->rc = dcp_buf_error(&b->text.text);
	if (b->rc == 0)
		show_list(b);
}

static void close_page(struct browsing *b)
{
	if (page_shown(b)->kind == VALUES) {
		dcp_view_close(b->view);
		b->view = NULL;
	}
	b->pages.n -= sizeof(struct page);
	if (b->pages.n)
		show_list(b);
}

/* ---- pages of a key ---- */

static void open_plan(struct browsing *b, const struct browse_item *item)
{
	browse_plan(&b->text, &b->p, item);
	open_page(b, (struct page){ TEXT, .item = item });
}

static void open_object(struct browsing *b, const struct browse_item *item)
{
	browse_object(&b->text, &b->p, item);
	open_page(b, (struct page){ TEXT, .item = item });
}

static void open_numbers_page(struct browsing *b, const struct browse_item *item,
			      bool histogram)
{
	if (browse_numbers(&b->text, &b->p, b->known, item, histogram, b->said,
			   sizeof(b->said)))
		open_page(b, (struct page){ TEXT, .item = item });
}

static void open_numbers(struct browsing *b, const struct browse_item *item)
{
	open_numbers_page(b, item, false);
}

static void open_histogram(struct browsing *b, const struct browse_item *item)
{
	open_numbers_page(b, item, true);
}

static void open_values(struct browsing *b, const struct browse_item *item)
{
	struct dcp_err err = { 0 };

	if (dcp_view_open(b->p.ck.v, item->id, DCP_AS_RAW, NULL, &b->view, &err) < 0)
		snprintf(b->said, sizeof(b->said), "%s", err.msg);
	else
		open_page(b, (struct page){ VALUES, .item = item });
}

/* Elements [LINE * i, LINE * i + LINE), each with all its numbers. */
static void put_values(struct browsing *b, const struct browse_item *item, size_t i,
		       struct dcp_buf *out)
{
	const struct walk_key *k = item->tensor;
	uint64_t first = (uint64_t)i * LINE, n = DCP_MIN((uint64_t)LINE, k->elements - first);
	unsigned values = dcp_stats_values(k->dtype);
	uint64_t buf[LINE * 4] = { 0 };
	const uint8_t *bytes = (const uint8_t *)buf;
	char place[200];
	int rc = k->itemsize * n <= sizeof(buf)
			 ? dcp_view_read(b->view, first * k->itemsize, buf, n * k->itemsize)
			 : -E2BIG;

	dcp_buf_printf(out, "%-16s", walk_place(place, sizeof(place), k, first));
	if (rc < 0)
		dcp_buf_printf(out, " cannot be read: %s", dcp_err_noted(rc));
	else if (dcp_stats_is_opaque(k->dtype))
		for (size_t j = 0; j < n * k->itemsize; j++)
			dcp_buf_printf(out, " %02x", bytes[j]);
	else if (k->dtype == DCP_DTYPE_I64)
		for (size_t j = 0; j < n; j++)
			dcp_buf_printf(out, " %20" PRId64, (int64_t)buf[j]);
	else if (k->dtype == DCP_DTYPE_U64)
		for (size_t j = 0; j < n; j++)
			dcp_buf_printf(out, " %20" PRIu64, buf[j]);
	else
		for (size_t j = 0; j < n * values; j++)
			dcp_buf_printf(out, " %14.8g", dcp_stats_number(k->dtype, buf, j));
}

/* ---- drawing ---- */

static size_t count_lines(struct browsing *b)
{
	const struct page *page = page_shown(b);

	switch (page->kind) {
	case TEXT:
		return DCP_NITEMS(b->text.lines, uint64_t);
	case VALUES:
		return (size_t)((page->item->tensor->elements + LINE - 1) / LINE);
	case TREE:
	case FOUND:
		break;
	}
	return DCP_NITEMS(b->entries, struct entry);
}

static void put_entry(struct browsing *b, const struct entry *e, struct dcp_buf *out)
{
	dcp_auto_buf struct dcp_buf name = DCP_BUF_INIT, right = DCP_BUF_INIT;
	const struct page *page = page_shown(b);
	size_t from = page->kind == TREE ? page->len : 0, room, taken;
	dcp_auto_free char *text = e->len ? strndup(e->first->key + from, e->len - from)
					  : strdup(e->first->key + from);
	const struct walk_key *k = e->first->tensor;
	char size[OUT_SIZE], count[32], shape[200];

	if (e->len)
		dcp_buf_printf(&right, "%s keys", out_count(count, e->n));
	else if (k)
		dcp_buf_printf(&right, "%s %s", k->dtype_name,
			       dcp_dims_text(shape, sizeof(shape), k->shape, k->ndim));
	else
		dcp_buf_str(&right, "object");
	dcp_buf_printf(&right, "  %9s", out_size(size, e->nbytes));
	taken = out_width(right.p ? right.p : "") + 5; /* with the characters around the name */
	room = b->cols > taken + 8 ? b->cols - taken : b->cols;
	dcp_buf_str(out, e->len ? "+ " : "  ");
	out_text(&name, text && *text ? text : "(empty)");
	out_elide(out, name.p ? name.p : "", room, b->out.utf8);
	for (size_t w = out_width(out->p); w < room + 3; w++)
		dcp_buf_str(out, " ");
	if (room < b->cols)
		out_text(out, right.p ? right.p : "");
}

static void put_title(struct browsing *b, struct dcp_buf *out)
{
	const struct page *page = page_shown(b);

	dcp_buf_str(out, " ");
	out_text(out, b->p.ck.name);
	dcp_buf_str(out, "  ");
	if (page->kind == FOUND) {
		dcp_buf_str(out, "keys with ");
		out_text(out, b->find);
	} else if (page->item && page->kind != TREE) {
		out_text(out, page->item->key);
	} else if (page->item) {
		dcp_auto_free char *prefix = strndup(page->item->key, page->len);

		out_text(out, prefix ? prefix : "");
	}
}

/* One line of the screen, cut to its width. */
static void draw_line(struct browsing *b, unsigned row, struct dcp_buf *text, bool reversed)
{
	if (text->p)
		text->p[out_fit(text->p, b->cols ? b->cols - 1 : 0)] = '\0';
	screen_line(row, text->p ? text->p : "", reversed);
}

static void draw_page(struct browsing *b)
{
	static const char *const feet[] = {
		[TREE] = " Enter: open  Left: back  /: search  v: values  s: stats  "
			 "h: histogram  q: quit",
		[FOUND] = " Enter: open  Left: back  /: search  v: values  s: stats  "
			  "h: histogram  q: quit",
		[TEXT] = " Left: back  v: values  s: stats  h: histogram  p: plan  q: quit",
		[VALUES] = " Left: back  s: stats  h: histogram  p: plan  q: quit",
	};
	struct page *page = page_shown(b);
	size_t n = count_lines(b), room;

	screen_size(&b->rows, &b->cols);
	room = b->rows > 2 ? b->rows - 2 : 1;
	page->at = DCP_MIN(page->at, n ? n - 1 : 0);
	if (page->at < page->top)
		page->top = page->at;
	if (page->at >= page->top + room)
		page->top = page->at - room + 1;
	for (unsigned row = 0; row < b->rows; row++) {
		dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;
		size_t i = page->top + row - 1;

		if (row == 0)
			put_title(b, &text);
		else if (row == b->rows - 1)
			dcp_buf_str(&text, *b->said ? b->said : feet[page->kind]);
		else if (i < n && page->kind == TEXT)
			dcp_buf_str(&text,
				    b->text.text.p + DCP_ITEMS(b->text.lines, uint64_t)[i]);
		else if (i < n && page->kind == VALUES)
			put_values(b, page->item, i, &text);
		else if (i < n)
			put_entry(b, &DCP_ITEMS(b->entries, struct entry)[i], &text);
		draw_line(b, row, &text,
			  row == 0 || row == b->rows - 1 ||
				  (i == page->at && i < n && page->kind < TEXT));
	}
	screen_show();
}

/* ---- keys ---- */

/* The item that v, s, h and p are for: that of the page, or of the chosen line. */
static const struct browse_item *item_chosen(struct browsing *b)
{
	const struct page *page = page_shown(b);
	const struct entry *e = &DCP_ITEMS(b->entries, struct entry)[page->at];

	if (page->kind >= TEXT)
		return page->item;
	return page->at < DCP_NITEMS(b->entries, struct entry) && !e->len ? e->first : NULL;
}

static void open_chosen(struct browsing *b)
{
	const struct page *page = page_shown(b);
	const struct entry *e = &DCP_ITEMS(b->entries, struct entry)[page->at];
	const struct browse_item *item = item_chosen(b);

	if (page->kind >= TEXT || page->at >= DCP_NITEMS(b->entries, struct entry))
		return;
	if (e->len)
		open_page(b, (struct page){ TREE, .len = e->len, .item = e->first });
	else if (item->tensor)
		open_plan(b, item);
	else
		open_object(b, item);
}

/* Open a page of a key in place of another page of a key. */
static void open_of(struct browsing *b,
		    void (*open)(struct browsing *b, const struct browse_item *item))
{
	const struct browse_item *item = item_chosen(b);

	if (!item || !item->tensor) {
		snprintf(b->said, sizeof(b->said), " choose a tensor");
		return;
	}
	if (page_shown(b)->kind >= TEXT)
		close_page(b);
	open(b, item);
}

/* Read text at the foot, and list the keys that contain it while it is typed. */
static void search_keys(struct browsing *b)
{
	int key = 0;

	*b->find = '\0';
	if (page_shown(b)->kind >= TEXT) /* there is one text at a time */
		close_page(b);
	if (page_shown(b)->kind != FOUND)
		open_page(b, (struct page){ FOUND });
	while (b->rc == 0 && key != SCREEN_ENTER) {
		size_t n = strlen(b->find);

		show_list(b);
		page_shown(b)->at = 0;
		snprintf(b->said, sizeof(b->said), " search: %s", b->find);
		dcp_printable(b->said, sizeof(b->said));
		draw_page(b);
		key = screen_key(-1);
		if (key == SCREEN_ESCAPE || key == SCREEN_INTERRUPT || key == SCREEN_NOTHING) {
			close_page(b);
			break;
		}
		while (key == SCREEN_BACK && n > 1 &&
		       ((unsigned char)b->find[n - 1] & 0xc0) == 0x80)
			n--; /* to where the last character begins */
		if (key == SCREEN_BACK && n)
			b->find[n - 1] = '\0';
		else if (key >= ' ' && key < 256 && n + 1 < sizeof(b->find))
			memcpy(b->find + n, (char[]){ (char)key, '\0' }, 2);
	}
	*b->said = '\0';
}

static void move_line(struct browsing *b, int key)
{
	struct page *page = page_shown(b);
	size_t n = count_lines(b), room = b->rows > 2 ? b->rows - 2 : 1, most = n ? n - 1 : 0;

	if (page->kind >= TEXT) /* pages have no chosen line: their last line moves */
		page->at = key == SCREEN_UP || key == SCREEN_PAGE_UP ? page->top
								     : page->top + room - 1;
	if (key == SCREEN_UP || key == SCREEN_PAGE_UP)
		page->at -= DCP_MIN(page->at, key == SCREEN_UP ? 1 : room);
	else if (key == SCREEN_DOWN || key == SCREEN_PAGE_DOWN)
		page->at += key == SCREEN_DOWN ? 1 : room;
	else
		page->at = key == SCREEN_HOME ? 0 : most;
	page->at = DCP_MIN(page->at, most);
}

static void browse_source(struct browsing *b)
{
	open_page(b, (struct page){ TREE });
	while (b->rc == 0 && b->pages.n) {
		int key;

		if (!*b->said)
			screen_held(b->said, sizeof(b->said));
		dcp_printable(b->said, sizeof(b->said));
		draw_page(b);
		key = screen_key(-1);
		*b->said = '\0';
		switch (key) {
		case 'q':
		case SCREEN_INTERRUPT:
			return;
		case SCREEN_ENTER:
		case SCREEN_RIGHT:
			open_chosen(b);
			break;
		case SCREEN_LEFT:
		case SCREEN_BACK:
		case SCREEN_ESCAPE:
			if (b->pages.n > sizeof(struct page))
				close_page(b);
			break;
		case '/':
			search_keys(b);
			break;
		case 'v':
			open_of(b, open_values);
			break;
		case 's':
			open_of(b, open_numbers);
			break;
		case 'h':
			open_of(b, open_histogram);
			break;
		case 'p':
			open_of(b, open_plan);
			break;
		case SCREEN_UP:
		case SCREEN_DOWN:
		case SCREEN_PAGE_UP:
		case SCREEN_PAGE_DOWN:
		case SCREEN_HOME:
		case SCREEN_END:
			move_line(b, key);
			break;
		default: /* a lost terminal */
			if (key == SCREEN_NOTHING)
				return;
		}
	}
}

static enum cmd_exit run_browse(const void *opts_in, const struct opt_args *args)
{
	const struct browse_opts *o = opts_in;
	struct browsing b = { .arena = DCP_ARENA_INIT((size_t)1 << 32) };
	enum cmd_exit code = CMD_OK;
	const char *why;

	if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
		code = cmd_fail(CMD_USAGE,
				"browse: it is used on a terminal; dcpfs ls and show "
				"print");
	out_init(&b.out, OUT_TEXT);
	if (code == CMD_OK)
		code = walk_open(&b.p, args, &o->pick, "browse");
	if (code == CMD_OK)
		code = walk_keys(&b.p, &o->keys, &b.keys);
	if (code == CMD_OK)
		b.rc = list_items(&b);
	if (code == CMD_OK && b.rc == 0)
		b.rc = dcp_measures_open(b.p.ck.v, &b.known);
	if (code == CMD_OK && b.rc == 0) {
		if (screen_open(&why)) {
			browse_source(&b);
			screen_close();
		} else {
			code = cmd_fail(CMD_ENV, "browse: %s", why);
		}
	}
	if (b.rc < 0)
		code = cmd_fail(CMD_ENV, "browse: %s", strerror(-b.rc));
	dcp_view_close(b.view);
	dcp_measures_close(b.known);
	dcp_buf_finish(&b.items);
	dcp_buf_finish(&b.entries);
	dcp_buf_finish(&b.pages);
	dcp_buf_finish(&b.text.text);
	dcp_buf_finish(&b.text.lines);
	walk_keys_finish(&b.keys);
	dcp_arena_finish(&b.arena);
	out_finish(&b.out);
	pick_finish(&b.p);
	return code;
}

const struct cmd cmd_browse = {
	.name = "browse",
	.what = "look through a version on the terminal",
	.about =
		"Show the keys of a version as a tree, to be searched and opened: what a "
		"tensor "
		"is, its values, statistics, a histogram, and where its bytes are stored. Left "
		"goes back, q ends.",
	.operands = operands,
	.opts = opts,
	.size = sizeof(struct browse_opts),
	.run = run_browse,
	.examples = { "dcpfs browse /data/run1", "dcpfs browse /data/run1 2000 --hf" },
};
