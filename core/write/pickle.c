/* SPDX-License-Identifier: Apache-2.0 */
#include "core/write/pickle.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/write/write.h"

enum {
	BATCH = 1000,     /* values between MARK and APPENDS or SETITEMS */
	FRAME = 64 << 10, /* a frame of this length ends before the next value */
	FRAME_HEADER = 9, /* opcode, u64 */
	FRAME_MIN = 4,    /* shorter frames are not written */
};

static void add_bytes(struct dcp_pickler *p, const void *bytes, size_t n)
{
	if (p->rc)
		return;
	if (p->protocol >= 4 && !p->unframed && p->frame == SIZE_MAX) {
		p->frame = p->out->n;
		dcp_buf_add(p->out, "\x95\0\0\0\0\0\0\0\0", FRAME_HEADER);
	}
	dcp_buf_add(p->out, bytes, n);
}

static void put_op(struct dcp_pickler *p, char opcode)
{
	add_bytes(p, &opcode, 1);
}

/* Write an opcode and a number of @n bytes. */
static void op_n(struct dcp_pickler *p, char opcode, uint64_t v, size_t n)
{
	char b[9] = { opcode };

	dcp_store_le64(b + 1, v);
	add_bytes(p, b, 1 + n);
}

/* ---- frames ---- */

static void end_frame(struct dcp_pickler *p)
{
	char *header;
	size_t n;

	if (p->frame == SIZE_MAX || dcp_buf_error(p->out))
		return;
	header = p->out->p + p->frame;
	n = p->out->n - p->frame - FRAME_HEADER;
	if (n >= FRAME_MIN) {
		dcp_store_le64(header + 1, n);
	} else {
		memmove(header, header + FRAME_HEADER, n + 1);
		p->out->n -= FRAME_HEADER;
	}
	p->frame = SIZE_MAX;
}

static void check_frame(struct dcp_pickler *p)
{
	if (p->frame != SIZE_MAX && p->out->n - p->frame - FRAME_HEADER >= FRAME)
		end_frame(p);
}

/* ---- memo ---- */

static uint32_t memoize_top(struct dcp_pickler *p)
{
	if (p->protocol >= 4)
		put_op(p, '\x94');
	else if (p->memo < 256)
		op_n(p, 'q', p->memo, 1);
	else
		op_n(p, 'r', p->memo, 4);
	return p->memo++;
}

static void recall_memo(struct dcp_pickler *p, uint32_t memo)
{
	op_n(p, memo < 256 ? 'h' : 'j', memo, memo < 256 ? 1 : 4);
}

/* ---- containers ---- */

static bool is_pairs(uint8_t kind)
{
	return kind == DCP_PICKLE_DICT || kind == DCP_PICKLE_ITEMS;
}

/* The most values of @kind after one MARK. */
static uint64_t batch_of(uint8_t kind)
{
	return is_pairs(kind) ? 2 * BATCH : BATCH;
}

/* Write the opcodes before value @i of a container that is filled in batches; @i does not count the
 * object of ITEMS. */
static void before_value(struct dcp_pickler *p, uint8_t kind, uint64_t i, uint64_t n)
{
	uint64_t one = is_pairs(kind) ? 2 : 1;

	if (i % batch_of(kind) == 0 &&
	    n - (kind == DCP_PICKLE_ITEMS ? i : 0) != (kind == DCP_PICKLE_SET ? 0 : one))
		put_op(p, '(');
}

static void after_value(struct dcp_pickler *p, uint8_t kind, uint64_t i, uint64_t n)
{
	uint64_t one = is_pairs(kind) ? 2 : 1;
	uint64_t first = i - 1 - (i - 1) % batch_of(kind);

	if (i % batch_of(kind) && i != n)
		return;
	if (kind == DCP_PICKLE_SET)
		put_op(p, '\x90');
	else if (n == one || (kind == DCP_PICKLE_ITEMS && n - first == one))
		put_op(p, is_pairs(kind) ? 's' : 'a');
	else
		put_op(p, is_pairs(kind) ? 'u' : 'e');
	/* CPython notices the end of a dict when it asks for the next item. */
	if (kind == DCP_PICKLE_DICT && i == n && n != one && n % batch_of(kind) == 0)
		add_bytes(p, "(u", 2);
}

static void begin_value(struct dcp_pickler *p)
{
	uint8_t kind;
	uint64_t i, n;

	check_frame(p);
	if (p->rc || p->depth == 0)
		return;
	kind = p->level[p->depth - 1].kind;
	i = p->level[p->depth - 1].i;
	n = p->level[p->depth - 1].n;
	if (kind == DCP_PICKLE_LIST || kind == DCP_PICKLE_DICT || kind == DCP_PICKLE_SET)
		before_value(p, kind, i, n);
	else if (kind == DCP_PICKLE_ITEMS && i > 0)
		before_value(p, kind, i - 1, n - 1);
}

static void close_level(struct dcp_pickler *p, uint8_t kind, uint64_t n)
{
	static const char tuple[] = { ')', '\x85', '\x86', '\x87' };

	if (kind == DCP_PICKLE_TUPLE) {
		put_op(p, n < 4 ? tuple[n] : 't');
		if (n)
			memoize_top(p);
	} else if (kind == DCP_PICKLE_REDUCE || kind == DCP_PICKLE_NEWOBJ) {
		put_op(p, kind == DCP_PICKLE_REDUCE ? 'R' : '\x81');
		memoize_top(p);
	} else if (kind == DCP_PICKLE_BUILD) {
		put_op(p, 'b');
	} else if (kind == DCP_PICKLE_PERSID) {
		put_op(p, 'Q');
	}
}

/* End a value, and the containers that it completes. */
static void end_value(struct dcp_pickler *p)
{
	while (p->rc == 0 && p->depth) {
		uint8_t kind = p->level[p->depth - 1].kind;
		uint64_t i = ++p->level[p->depth - 1].i, n = p->level[p->depth - 1].n;

		if (kind == DCP_PICKLE_LIST || kind == DCP_PICKLE_DICT ||
		    kind == DCP_PICKLE_SET)
			after_value(p, kind, i, n);
		else if (kind == DCP_PICKLE_ITEMS && i > 1)
			after_value(p, kind, i - 1, n - 1);
		if (i < n)
			return;
		p->depth--;
		close_level(p, kind, n);
	}
}

static void push_level(struct dcp_pickler *p, enum dcp_pickle_open kind, uint64_t n)
{
	if (p->depth == DCP_PICKLER_DEPTH) {
		p->rc = p->rc ? p->rc : -E2BIG;
		return;
	}
	p->level[p->depth].kind = (uint8_t)kind;
	p->level[p->depth].i = 0;
	p->level[p->depth++].n = n;
}

/* set([...]): how protocols without an opcode for sets write one. */
static void open_old_set(struct dcp_pickler *p, uint64_t n)
{
	dcp_pickler_put(p, "R c (1 [*", "builtins", "set", n);
}

void dcp_pickler_open(struct dcp_pickler *p, enum dcp_pickle_open kind, uint64_t n)
{
	uint64_t values = n;

	if (kind == DCP_PICKLE_SET && p->protocol < 4) {
		open_old_set(p, n);
		return;
	}
	begin_value(p);
	if (kind == DCP_PICKLE_LIST || kind == DCP_PICKLE_DICT || kind == DCP_PICKLE_SET) {
		put_op(p, kind == DCP_PICKLE_LIST   ? ']'
			  : kind == DCP_PICKLE_DICT ? '}'
						    : '\x8f');
		memoize_top(p);
	}
	if (kind == DCP_PICKLE_TUPLE && n > 3)
		put_op(p, '(');
	if (kind == DCP_PICKLE_TUPLE && n == 0)
		put_op(p, ')');
	if (kind == DCP_PICKLE_DICT)
		values = 2 * n;
	else if (kind == DCP_PICKLE_ITEMS)
		values = 1 + 2 * n;
	else if (kind == DCP_PICKLE_PERSID)
		values = 1;
	else if (kind == DCP_PICKLE_REDUCE || kind == DCP_PICKLE_NEWOBJ ||
		 kind == DCP_PICKLE_BUILD)
		values = 2;
	if (values)
		push_level(p, kind, values);
	else
		end_value(p);
}

/* ---- atoms ---- */

void dcp_pickler_init(struct dcp_pickler *p, struct dcp_buf *out, unsigned protocol)
{
	char proto[2] = { '\x80', (char)protocol };

	*p = (struct dcp_pickler){ .out = out, .protocol = protocol, .frame = SIZE_MAX };
	dcp_buf_add(out, proto, 2);
}

int dcp_pickler_end(struct dcp_pickler *p)
{
	if (p->rc == 0 && p->depth)
		p->rc = -EINVAL;
	put_op(p, '.');
	end_frame(p);
	return p->rc ? p->rc : dcp_buf_error(p->out);
}

static void put_atom(struct dcp_pickler *p, const void *bytes, size_t n)
{
	begin_value(p);
	add_bytes(p, bytes, n);
	end_value(p);
}

void dcp_pickler_none(struct dcp_pickler *p)
{
	put_atom(p, "N", 1);
}

void dcp_pickler_bool(struct dcp_pickler *p, bool v)
{
	put_atom(p, v ? "\x88" : "\x89", 1);
}

void dcp_pickler_bigint(struct dcp_pickler *p, const uint8_t *le, size_t n)
{
	while (n > 1 && ((le[n - 1] == 0 && le[n - 2] < 0x80) ||
			 (le[n - 1] == 0xff && le[n - 2] >= 0x80)))
		n--;
	begin_value(p);
	op_n(p, n < 256 ? '\x8a' : '\x8b', n, n < 256 ? 1 : 4);
	add_bytes(p, le, n);
	end_value(p);
}

void dcp_pickler_int(struct dcp_pickler *p, int64_t v)
{
	uint8_t le[8];

	dcp_store_le64(le, (uint64_t)v);
	if (v < INT32_MIN || v > INT32_MAX) {
		dcp_pickler_bigint(p, le, 8);
		return;
	}
	begin_value(p);
	if (v >= 0 && v < 65536)
		op_n(p, v < 256 ? 'K' : 'M', (uint64_t)v, v < 256 ? 1 : 2);
	else
		op_n(p, 'J', (uint64_t)v, 4);
	end_value(p);
}

void dcp_pickler_u64(struct dcp_pickler *p, uint64_t v)
{
	uint8_t le[9] = { 0 };

	dcp_store_le64(le, v);
	if (v <= INT64_MAX)
		dcp_pickler_int(p, (int64_t)v);
	else
		dcp_pickler_bigint(p, le, 9);
}

void dcp_pickler_float(struct dcp_pickler *p, double v)
{
	uint64_t bits;
	char b[9] = { 'G' };

	memcpy(&bits, &v, sizeof(bits));
	dcp_store_le64(b + 1, __builtin_bswap64(bits));
	put_atom(p, b, sizeof(b));
}

/* Write a long value, with its header, outside of frames. */
static void put_long(struct dcp_pickler *p, char opcode, size_t width, const void *bytes,
		     uint64_t n)
{
	bool out = n >= FRAME, before = p->unframed;

	if (out)
		end_frame(p);
	p->unframed |= out;
	op_n(p, opcode, n, width);
	if (bytes)
		add_bytes(p, bytes, n);
	p->unframed = before;
}

static void put_str(struct dcp_pickler *p, const char *s, size_t n)
{
	if (p->protocol >= 4 && n < 256)
		put_long(p, '\x8c', 1, s, n);
	else if (n <= UINT32_MAX)
		put_long(p, 'X', 4, s, n);
	else if (p->protocol >= 4)
		put_long(p, '\x8d', 8, s, n);
	else
		p->rc = p->rc ? p->rc : -E2BIG;
}

void dcp_pickler_str_n(struct dcp_pickler *p, const char *s, size_t n)
{
	begin_value(p);
	put_str(p, s, n);
	memoize_top(p);
	end_value(p);
}

void dcp_pickler_str(struct dcp_pickler *p, const char *s)
{
	dcp_auto_buf struct dcp_buf plain = DCP_BUF_INIT;
	const char *nul;

	if (!strstr(s, "\xc0\x80")) {
		dcp_pickler_str_n(p, s, strlen(s));
		return;
	}
	for (; (nul = strstr(s, "\xc0\x80")); s = nul + 2) {
		dcp_buf_add(&plain, s, (size_t)(nul - s));
		dcp_buf_add(&plain, "", 1);
	}
	if (dcp_buf_str(&plain, s) < 0)
		p->rc = -ENOMEM;
	else
		dcp_pickler_str_n(p, plain.p, plain.n);
}

/* Write the memo number of a word or global. False: it is new, and will be memoized after @ahead
 * other objects. */
static bool find_shared(struct dcp_pickler *p, const char *module, const char *name,
			uint32_t *memo)
{
	for (unsigned i = 0; i < p->nshared; i++)
		if (strcmp(p->shared[i].name, name) == 0 && !module == !p->shared[i].module &&
		    (!module || strcmp(module, p->shared[i].module) == 0)) {
			*memo = p->shared[i].memo;
			return true;
		}
	return false;
}

static void note_shared(struct dcp_pickler *p, const char *module, const char *name)
{
	uint32_t memo = memoize_top(p);

	if (p->nshared == DCP_PICKLER_SHARED) {
		p->rc = p->rc ? p->rc : -E2BIG;
		return;
	}
	p->shared[p->nshared].module = module;
	p->shared[p->nshared].name = name;
	p->shared[p->nshared++].memo = memo;
}

static void put_word(struct dcp_pickler *p, const char *s)
{
	uint32_t memo;

	if (find_shared(p, NULL, s, &memo)) {
		recall_memo(p, memo);
		return;
	}
	put_str(p, s, strlen(s));
	note_shared(p, NULL, s);
}

void dcp_pickler_word(struct dcp_pickler *p, const char *s)
{
	begin_value(p);
	put_word(p, s);
	end_value(p);
}

void dcp_pickler_global(struct dcp_pickler *p, const char *module, const char *name)
{
	uint32_t memo;

	if (p->protocol < 3 && strcmp(module, "builtins") == 0)
		module = "__builtin__";
	begin_value(p);
	if (find_shared(p, module, name, &memo)) {
		recall_memo(p, memo);
	} else if (p->protocol >= 4) {
		put_word(p, module);
		check_frame(p);
		put_word(p, name);
		put_op(p, '\x93');
		note_shared(p, module, name);
	} else {
		put_op(p, 'c');
		add_bytes(p, module, strlen(module));
		put_op(p, '\n');
		add_bytes(p, name, strlen(name));
		put_op(p, '\n');
		note_shared(p, module, name);
	}
	end_value(p);
}

/* _codecs.encode("...", "latin1") */
static void put_encoded(struct dcp_pickler *p, const uint8_t *bytes, size_t n)
{
	dcp_auto_buf struct dcp_buf text = DCP_BUF_INIT;

	for (size_t i = 0; i < n; i++) {
		char two[2] = { (char)(0xc0 | bytes[i] >> 6),
				(char)(0x80 | (bytes[i] & 0x3f)) };

		if (bytes[i] < 0x80)
			dcp_buf_add(&text, &bytes[i], 1);
		else
			dcp_buf_add(&text, two, 2);
	}
	if (n == 0) {
		dcp_pickler_put(p, "R c (0", "builtins", "bytes");
		return;
	}
	if (dcp_buf_error(&text))
		p->rc = -ENOMEM;
	dcp_pickler_put(p, "R c (2", "_codecs", "encode");
	dcp_pickler_str_n(p, text.p, text.n);
	dcp_pickler_word(p, "latin1");
}

static void put_bytes(struct dcp_pickler *p, const void *bytes, uint64_t n)
{
	if (n < 256)
		put_long(p, 'C', 1, bytes, n);
	else if (n <= UINT32_MAX)
		put_long(p, 'B', 4, bytes, n);
	else if (p->protocol >= 4)
		put_long(p, '\x8e', 8, bytes, n);
	else
		p->rc = p->rc ? p->rc : -E2BIG;
}

void dcp_pickler_bytes(struct dcp_pickler *p, const void *bytes, size_t n)
{
	if (p->protocol < 3) {
		put_encoded(p, bytes, n);
		return;
	}
	begin_value(p);
	put_bytes(p, n ? bytes : "", n);
	memoize_top(p);
	end_value(p);
}

/* A short value would be inside a frame, which cannot be ended here, so it is written outside of
 * frames. */
static void leave_frame(struct dcp_pickler *p)
{
	begin_value(p);
	end_frame(p);
	p->unframed = true;
}

void dcp_pickler_bytes_open(struct dcp_pickler *p, uint64_t n)
{
	if (p->protocol < 3)
		p->rc = p->rc ? p->rc : -EINVAL;
	leave_frame(p);
	put_bytes(p, NULL, n);
}

void dcp_pickler_text_open(struct dcp_pickler *p, uint64_t n)
{
	leave_frame(p);
	put_str(p, NULL, n);
}

void dcp_pickler_bytes_close(struct dcp_pickler *p)
{
	p->unframed = false;
	memoize_top(p);
	end_value(p);
}

void dcp_pickler_get(struct dcp_pickler *p, uint32_t memo)
{
	begin_value(p);
	recall_memo(p, memo);
	end_value(p);
}

static void put_numbers(struct dcp_pickler *p, uint32_t n, const uint64_t *v)
{
	dcp_pickler_open(p, DCP_PICKLE_TUPLE, n);
	for (uint32_t i = 0; i < n; i++)
		dcp_pickler_u64(p, v[i]);
}

/* Letter *@f of a format; returns the last letter that belongs to it. */
static const char *put_letter(struct dcp_pickler *p, const char *f, va_list *args)
{
	static const char opens[] = "[({"; /* by enum dcp_pickle_open */
	static const char calls[] = { [DCP_PICKLE_REDUCE] = 'R',
				      [DCP_PICKLE_NEWOBJ] = 'O',
				      [DCP_PICKLE_BUILD] = 'B',
				      [DCP_PICKLE_PERSID] = 'P' };
	const char *text, *open = strchr(opens, *f), *call = memchr(calls, *f, sizeof(calls));
	uint32_t n;

	if (open) {
		f++;
		dcp_pickler_open(p, (enum dcp_pickle_open)(open - opens),
				 *f == '*' ? va_arg(*args, uint64_t) : (uint64_t)(*f - '0'));
	} else if (call) {
		dcp_pickler_open(p, (enum dcp_pickle_open)(call - calls), 0);
	} else if (*f == 'N') {
		dcp_pickler_none(p);
	} else if (*f == '0' || *f == '1') {
		dcp_pickler_bool(p, *f == '1');
	} else if (*f == 'i') {
		dcp_pickler_int(p, va_arg(*args, int));
	} else if (*f == 'u') {
		dcp_pickler_u64(p, va_arg(*args, uint64_t));
	} else if (*f == 'w') {
		dcp_pickler_word(p, va_arg(*args, const char *));
	} else if (*f == 's') {
		dcp_pickler_str(p, va_arg(*args, const char *));
	} else if (*f == 'c') {
		text = va_arg(*args, const char *);
		dcp_pickler_global(p, text, va_arg(*args, const char *));
	} else if (*f == 'g') {
		dcp_pickler_get(p, va_arg(*args, uint32_t));
	} else if (*f == 'v') {
		n = va_arg(*args, uint32_t);
		put_numbers(p, n, va_arg(*args, const uint64_t *));
	}
	return f;
}

void dcp_pickler_put(struct dcp_pickler *p, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	for (const char *f = format; *f; f++)
		f = put_letter(p, f, &args);
	va_end(args);
}

void dcp_pickler_flush(struct dcp_pickler *p, struct dcp_writer *w)
{
	struct dcp_buf *b = p->out;
	size_t done = p->frame == SIZE_MAX ? b->n : p->frame;

	if (p->rc || dcp_buf_error(b) || done == 0)
		return;
	dcp_writer_bytes(w, b->p, done);
	memmove(b->p, b->p + done, b->n - done);
	b->n -= done;
	if (p->frame != SIZE_MAX)
		p->frame -= done;
}
