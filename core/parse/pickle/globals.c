/* SPDX-License-Identifier: Apache-2.0 */
#include "core/parse/pickle/pickle.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/arena.h"
#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/origin/origin.h"
#include "core/parse/pickle/pickle_int.h"

enum {
	WINDOW = 64 << 10,
	MAX_LINE = 1 << 16,
	MAX_TEXTS = 64 << 20, /* bytes of all texts together */
};

/* The kinds of entries on the stack and in the memo. TEXT + i is text number i. */
enum { OTHER, MARK, TEXT };

struct walk {
	const struct dcp_source *src;
	uint64_t off, at; /* offsets of the next byte to read, and of the current opcode */
	uint64_t lo;      /* offset of the first byte in the window */
	size_t n;
	struct dcp_arena arena;
	struct dcp_buf texts; /* const char *; NULL: too long, or out of room */
	struct dcp_buf stack; /* uint32_t */
	struct dcp_buf memo;  /* uint32_t */
	uint32_t memoized;    /* entries that MEMOIZE made; their places are counted */
	bool numbered;        /* an opcode gave a place in the memo by number */
	dcp_globals_fn *fn;
	void *ctx;
	struct dcp_err *err;
	uint8_t window[WINDOW];
};

static int fail_walk(struct walk *w, const char *why)
{
	return dcp_fail_at(w->err, -EBADMSG, w->at, "pickle at byte %llu: %s",
			   (unsigned long long)w->at, why);
}

/* Show @n bytes, at most MAX_LINE, at the offset. Fewer at the end of the source: see @got. */
static int look_ahead(struct walk *w, size_t n, const uint8_t **p, size_t *got)
{
	uint64_t left = w->off < w->src->size ? w->src->size - w->off : 0;
	int rc = 0;

	n = (size_t)DCP_MIN((uint64_t)n, left);
	if (w->off < w->lo || w->off + n > w->lo + w->n) {
		w->lo = w->off;
		w->n = (size_t)DCP_MIN(left, (uint64_t)WINDOW);
		rc = dcp_source_read(w->src, w->lo, w->window, w->n);
		if (rc < 0)
			w->n = 0;
	}
	*p = w->window + (w->off - w->lo);
	*got = n;
	return rc;
}

static int take_bytes(struct walk *w, size_t n, const uint8_t **p)
{
	size_t got;
	int rc = look_ahead(w, n, p, &got);

	if (rc == 0 && got < n)
		return fail_walk(w, "it ends inside an opcode");
	w->off += n;
	return rc;
}

/* Take a line; @n is its length without the newline. */
static int take_line(struct walk *w, const char **p, size_t *n)
{
	const uint8_t *from, *end;
	size_t got;
	int rc = look_ahead(w, MAX_LINE, &from, &got);

	if (rc < 0)
		return rc;
	end = memchr(from, '\n', got);
	if (!end)
		return fail_walk(w, "it ends inside a line, or the line is very long");
	*p = (const char *)from;
	*n = (size_t)(end - from);
	w->off += *n + 1;
	return 0;
}

static int push_kind(struct walk *w, uint32_t what)
{
	if (DCP_NITEMS(w->stack, uint32_t) >= DCP_GLOBALS_MAX_STACK)
		return fail_walk(w, "its stack is very high");
	dcp_buf_add(&w->stack, &what, sizeof(what));
	return dcp_buf_error(&w->stack);
}

static uint32_t pop_kind(struct walk *w)
{
	size_t n = DCP_NITEMS(w->stack, uint32_t);

	if (!n)
		return OTHER;
	w->stack.n -= sizeof(uint32_t);
	return DCP_ITEMS(w->stack, uint32_t)[n - 1];
}

static void pop_mark(struct walk *w)
{
	while (w->stack.n && pop_kind(w) != MARK)
		;
}

static int push_text(struct walk *w, const void *p, size_t n)
{
	const char *text = n <= DCP_GLOBALS_MAX_NAME && !memchr(p, '\0', n)
				   ? dcp_arena_strndup(&w->arena, p, n)
				   : NULL;
	size_t number = DCP_NITEMS(w->texts, const char *);

	if (!text)
		return push_kind(w, OTHER);
	dcp_buf_add(&w->texts, &text, sizeof(text));
	return dcp_buf_error(&w->texts) < 0 ? -ENOMEM : push_kind(w, TEXT + (uint32_t)number);
}

static const char *text_of(const struct walk *w, uint32_t what)
{
	return what >= TEXT ? DCP_ITEMS(w->texts, const char *)[what - TEXT] : NULL;
}

static int put_top(struct walk *w, uint64_t i)
{
	size_t n = DCP_NITEMS(w->stack, uint32_t);
	uint32_t *to, top = n ? DCP_ITEMS(w->stack, uint32_t)[n - 1] : OTHER;

	/* A value other than text needs no place, unless it replaces an entry. */
	if (i >= DCP_GLOBALS_MAX_MEMO || (top < TEXT && i >= DCP_NITEMS(w->memo, uint32_t)))
		return 0;
	to = dcp_buf_at(&w->memo, (size_t)i, sizeof(*to));
	if (!to)
		return -ENOMEM;
	*to = top == MARK ? OTHER : top;
	return 0;
}

static int report_global(struct walk *w, const char *module, const char *name)
{
	return w->fn(w->ctx, module && name ? module : NULL, module && name ? name : NULL,
		     w->at);
}

/* Python's MEMOIZE takes the number of all entries as place, including entries that were put by
 * number. Writers use either MEMOIZE or numbers, so names are not followed through a mixture. */
static int put_at(struct walk *w, uint64_t i)
{
	w->numbered = true;
	return w->memoized ? report_global(w, NULL, NULL) : put_top(w, i);
}

static int memoize_top(struct walk *w)
{
	uint32_t i = w->memoized++;

	return w->numbered ? report_global(w, NULL, NULL) : put_top(w, i);
}

static int get_memo(struct walk *w, uint64_t i)
{
	return push_kind(w, i < DCP_NITEMS(w->memo, uint32_t) ? DCP_ITEMS(w->memo, uint32_t)[i]
							      : OTHER);
}

/* ---- opcodes ---- */

/* Step over an opcode whose payload has its length in front. */
static int step_payload(struct walk *w, uint8_t op, unsigned arg)
{
	const bool is_text = op == PICKLE_SHORT_BINUNICODE || op == PICKLE_BINUNICODE ||
			     op == PICKLE_BINUNICODE8 || op == PICKLE_BINSTRING ||
			     op == PICKLE_SHORT_BINSTRING;
	const size_t head = arg == PICKLE_ARG_LEN1 ? 1 : arg == PICKLE_ARG_LEN8 ? 8 : 4;
	const uint8_t *p;
	uint64_t n;
	int rc = take_bytes(w, head, &p);

	if (rc < 0)
		return rc;
	n = head == 1 ? p[0] : head == 4 ? dcp_load_le32(p) : dcp_load_le64(p);
	if (w->off > w->src->size || n > w->src->size - w->off)
		return fail_walk(w, "bytes are longer than the file");
	if (!is_text || n > DCP_GLOBALS_MAX_NAME) {
		w->off += n;
		return push_kind(w, OTHER);
	}
	rc = take_bytes(w, (size_t)n, &p);
	return rc < 0 ? rc : push_text(w, p, (size_t)n);
}

static int step_line(struct walk *w, uint8_t op)
{
	char module[DCP_GLOBALS_MAX_NAME + 1], name[DCP_GLOBALS_MAX_NAME + 1];
	const char *p;
	size_t n;
	int rc = take_line(w, &p, &n);

	if (rc < 0)
		return rc;
	if (op == PICKLE_GLOBAL || op == PICKLE_INST) {
		bool known = n <= DCP_GLOBALS_MAX_NAME;

		memcpy(module, p, known ? n : 0);
		module[known ? n : 0] = '\0';
		rc = take_line(w, &p, &n);
		if (rc < 0)
			return rc;
		known = known && n <= DCP_GLOBALS_MAX_NAME;
		memcpy(name, p, known ? n : 0);
		name[known ? n : 0] = '\0';
		if (op == PICKLE_INST)
			pop_mark(w);
		rc = report_global(w, known ? module : NULL, name);
		return rc ? rc : push_kind(w, OTHER);
	}
	if (op == PICKLE_PUT || op == PICKLE_GET) {
		uint64_t i = 0;
		size_t k = 0;

		for (; k < n && dcp_is_digit(p[k]); k++)
			if (i < DCP_GLOBALS_MAX_MEMO)
				i = i * 10 + (uint64_t)(p[k] - '0');
		/* Python takes " 1", "+1" and "1_0", too. */
		rc = k == 0 || k < n ? report_global(w, NULL, NULL) : 0;
		return rc ? rc : op == PICKLE_PUT ? put_at(w, i) : get_memo(w, i);
	}
	if (op == PICKLE_STRING && n >= 2) /* with its quotes */
		return push_text(w, p + 1, n - 2);
	return op == PICKLE_UNICODE ? push_text(w, p, n) : push_kind(w, OTHER);
}

/* Step over an opcode without an argument: take as many values from the stack as it takes, or all
 * down to a mark, and put its result there. */
static int step_stack(struct walk *w, uint8_t op)
{
	enum { TO_MARK = -1 };
	int takes = 0, gives = 1;

	switch (op) {
	case PICKLE_MARK:
		return push_kind(w, MARK);
	case PICKLE_MEMOIZE:
		return memoize_top(w);
	case PICKLE_DUP: {
		uint32_t top = pop_kind(w);
		int rc = push_kind(w, top);

		return rc ? rc : push_kind(w, top);
	}
	case PICKLE_STACK_GLOBAL: {
		const char *name = text_of(w, pop_kind(w)), *module = text_of(w, pop_kind(w));
		int rc = report_global(w, module, name);

		return rc ? rc : push_kind(w, OTHER);
	}
	case PICKLE_POP:
		takes = 1;
		gives = 0;
		break;
	case PICKLE_POP_MARK:
	case PICKLE_APPENDS:
	case PICKLE_SETITEMS:
	case PICKLE_ADDITEMS:
		takes = TO_MARK;
		gives = 0;
		break;
	case PICKLE_TUPLE:
	case PICKLE_LIST:
	case PICKLE_DICT:
	case PICKLE_FROZENSET:
	case PICKLE_OBJ:
		takes = TO_MARK;
		break;
	case PICKLE_APPEND:
	case PICKLE_BUILD:
		takes = 1;
		gives = 0;
		break;
	case PICKLE_SETITEM:
		takes = 2;
		gives = 0;
		break;
	case PICKLE_TUPLE1:
	case PICKLE_BINPERSID:
		takes = 1;
		break;
	case PICKLE_TUPLE2:
	case PICKLE_REDUCE:
	case PICKLE_NEWOBJ:
		takes = 2;
		break;
	case PICKLE_TUPLE3:
	case PICKLE_NEWOBJ_EX:
		takes = 3;
		break;
	case PICKLE_READONLY_BUFFER:
		return 0;
	default: /* NONE, EMPTY_LIST, NEXT_BUFFER, ... */
		break;
	}
	if (takes == TO_MARK)
		pop_mark(w);
	for (int i = 0; i < takes; i++)
		pop_kind(w);
	return gives ? push_kind(w, OTHER) : 0;
}

static int step_refused(struct walk *w, uint8_t op)
{
	size_t n = op == PICKLE_EXT1 ? 1 : op == PICKLE_EXT2 ? 2 : op == PICKLE_EXT4 ? 4 : 0;
	const uint8_t *p;
	int rc = take_bytes(w, n, &p);

	if (rc == 0 && n)
		rc = report_global(w, NULL, NULL);
	return rc ? rc : step_stack(w, op);
}

/* Step over one opcode. 1: it was the last one. */
static int step_op(struct walk *w)
{
	const uint8_t *p;
	uint8_t op;
	int rc;

	w->at = w->off;
	rc = take_bytes(w, 1, &p);
	if (rc < 0)
		return rc;
	op = *p;
	switch ((enum pickle_arg)dcp_pkl_arg[op]) {
	case PICKLE_ARG_STOP:
		return 1;
	case PICKLE_ARG_NONE:
		return step_stack(w, op);
	case PICKLE_ARG_REFUSED:
		return step_refused(w, op);
	case PICKLE_ARG_PROTO:
		return take_bytes(w, 1, &p);
	case PICKLE_ARG_FRAME:
		return take_bytes(w, 8, &p);
	case PICKLE_ARG_1:
	case PICKLE_ARG_GET1:
		rc = take_bytes(w, 1, &p);
		if (rc < 0)
			return rc;
		return op == PICKLE_BINPUT   ? put_at(w, *p)
		       : op == PICKLE_BINGET ? get_memo(w, *p)
					     : push_kind(w, OTHER);
	case PICKLE_ARG_4:
	case PICKLE_ARG_GET4:
		rc = take_bytes(w, 4, &p);
		if (rc < 0)
			return rc;
		return op == PICKLE_LONG_BINPUT   ? put_at(w, dcp_load_le32(p))
		       : op == PICKLE_LONG_BINGET ? get_memo(w, dcp_load_le32(p))
						  : push_kind(w, OTHER);
	case PICKLE_ARG_2:
	case PICKLE_ARG_8:
		rc = take_bytes(w, dcp_pkl_arg[op] == PICKLE_ARG_2 ? 2 : 8, &p);
		return rc < 0 ? rc : push_kind(w, OTHER);
	case PICKLE_ARG_LEN1:
	case PICKLE_ARG_LEN4:
	case PICKLE_ARG_LEN8:
	case PICKLE_ARG_SLEN4:
		return step_payload(w, op, dcp_pkl_arg[op]);
	case PICKLE_ARG_GETLINE:
	case PICKLE_ARG_LINE:
	case PICKLE_ARG_LINE2:
		return step_line(w, op);
	case PICKLE_ARG_UNKNOWN:
	default:
		return fail_walk(w, "an opcode is unknown");
	}
}

int dcp_globals(const struct dcp_source *src, uint64_t off, uint64_t *end, dcp_globals_fn *fn,
		void *ctx, struct dcp_err *err)
{
	struct walk *w = malloc(sizeof(*w));
	int rc;

	*end = off;
	if (!w)
		return -ENOMEM;
	/* the window is larger than most pickles, so it is not cleared */
	memset(w, 0, offsetof(struct walk, window));
	w->src = src;
	w->off = off;
	w->fn = fn;
	w->ctx = ctx;
	w->err = err;
	w->arena = (struct dcp_arena)DCP_ARENA_INIT(MAX_TEXTS);
	do
		rc = step_op(w);
	while (rc == 0);
	*end = w->off;
	dcp_buf_finish(&w->stack);
	dcp_buf_finish(&w->memo);
	dcp_buf_finish(&w->texts);
	dcp_arena_finish(&w->arena);
	free(w);
	return rc == 1 ? 0 : rc;
}
