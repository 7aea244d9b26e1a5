/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opcodes that push what is written after them: text lines of protocol 0, and payloads
 * with a length in front.
 */
#include <errno.h>
#include <string.h>

#include "core/origin/source.h"
#include "core/parse/pickle/pickle_int.h"

/* ---- integers ---- */

/* Two's complement of any length, in as few bytes as it needs. */
static int push_int(struct dcp_pkl_vm *vm, const uint8_t *le, size_t n, uint64_t src_off)
{
	uint8_t sign = n && le[n - 1] & 0x80 ? 0xff : 0;
	uint64_t v = sign ? UINT64_MAX : 0;
	struct dcp_pnode *node;

	while (n > 1 && le[n - 1] == sign && !((le[n - 2] ^ sign) & 0x80))
		n--;
	if (n <= 8) {
		memcpy(&v, le, n);
		return dcp_pkl_push(vm, (struct dcp_pv){ .type = DCP_PV_INT, .i = (int64_t)v });
	}
	if (n > DCP_PICKLE_MAX_INT)
		return dcp_pkl_fail(vm, -E2BIG, "is an integer of %zu bytes, the limit is %d",
				    n, DCP_PICKLE_MAX_INT);
	node = dcp_pkl_text(vm->mem, n, src_off);
	if (node) {
		memcpy(node->data, le, n);
		node->data[n] = '\0';
	}
	return dcp_pkl_push_node(vm, DCP_PV_BIGINT, node);
}

static int push_decimal(struct dcp_pkl_vm *vm, const char *s, size_t n)
{
	uint8_t le[DCP_PKL_DECIMAL_BYTES];

	if (*vm->p == PICKLE_INT && n == 2 && s[0] == '0' && (s[1] == '0' || s[1] == '1'))
		return dcp_pkl_push(vm,
				    (struct dcp_pv){ .type = DCP_PV_BOOL, .i = s[1] == '1' });
	if (*vm->p == PICKLE_LONG && n && s[n - 1] == 'L')
		n--;
	switch (dcp_pkl_decimal(s, n, le, &n)) {
	case DCP_PKL_NUMBER_OK:
		return push_int(vm, le, n, DCP_PICKLE_NO_SRC);
	case DCP_PKL_NUMBER_LONG:
		return dcp_pkl_fail(vm, -E2BIG,
				    "is an integer of %zu digits, the limit is %d bytes", n,
				    DCP_PICKLE_MAX_INT);
	case DCP_PKL_NUMBER_BAD:
		break;
	}
	return dcp_pkl_fail(vm, -EBADMSG, "has no decimal integer after it");
}

/* ---- lines ---- */

static int push_text(struct dcp_pkl_vm *vm, enum dcp_pv_type type, const void *s, size_t n,
		     uint64_t src_off)
{
	struct dcp_pnode *node = dcp_pkl_text(vm->mem, n, src_off);

	if (node) {
		if (n)
			memcpy(node->data, s, n);
		node->data[n] = '\0';
	}
	return dcp_pkl_push_node(vm, type, node);
}

/* What the escapes of @s made, in scratch; it lies in the source only if there were none. */
static int push_unescaped(struct dcp_pkl_vm *vm, enum dcp_pv_type type, const char *s, size_t n)
{
	const struct dcp_buf *b = &vm->scratch;
	bool same = b->n == n && (n == 0 || !memcmp(b->p, s, n));

	if (dcp_buf_error(b) < 0)
		return dcp_pkl_fail(vm, -ENOMEM, "ran out of memory");
	return push_text(vm, type, b->p, b->n,
			 same ? dcp_pkl_off(&vm->w, (const uint8_t *)s) : DCP_PICKLE_NO_SRC);
}

static int push_quoted(struct dcp_pkl_vm *vm, const char *s, size_t n)
{
	bool utf8;

	if (!dcp_pkl_unquote(s, n, &vm->scratch))
		return dcp_pkl_fail(vm, -EBADMSG, "has no well-formed quoted string after it");
	utf8 = dcp_pkl_utf8(vm->scratch.p, vm->scratch.n, false);
	return push_unescaped(vm, utf8 ? DCP_PV_STR : DCP_PV_BYTES, s + 1, n - 2);
}

static int push_float(struct dcp_pkl_vm *vm, const char *s, size_t n)
{
	double f;

	if (!dcp_pkl_float(s, n, &f))
		return dcp_pkl_fail(vm, -EBADMSG, "has no decimal number after it");
	return dcp_pkl_push(vm, (struct dcp_pv){ .type = DCP_PV_FLOAT, .f = f });
}

static int push_persid(struct dcp_pkl_vm *vm, const char *s, size_t n)
{
	int r;

	if (!dcp_pkl_utf8(s, n, false))
		return dcp_pkl_fail(vm, -EBADMSG, "is not UTF-8");
	r = push_text(vm, DCP_PV_STR, s, n, dcp_pkl_off(&vm->w, (const uint8_t *)s));
	return r < 0 ? r : dcp_pkl_build_persid(vm);
}

int dcp_pkl_push_line(struct dcp_pkl_vm *vm)
{
	const char *s;
	size_t n;
	int r = dcp_pkl_win_line(&vm->w, &vm->p, 1, &n);

	if (r < 0)
		return r;
	s = (const char *)vm->p + 1;
	switch (*vm->p) {
	case PICKLE_INT:
	case PICKLE_LONG:
		r = push_decimal(vm, s, n);
		break;
	case PICKLE_FLOAT:
		r = push_float(vm, s, n);
		break;
	case PICKLE_STRING:
		r = push_quoted(vm, s, n);
		break;
	case PICKLE_UNICODE:
		if (!dcp_pkl_unescape(s, n, &vm->scratch))
			return dcp_pkl_fail(vm, -EBADMSG, "has a malformed escape");
		r = push_unescaped(vm, DCP_PV_STR, s, n);
		break;
	default:
		r = push_persid(vm, s, n);
	}
	vm->p += 1 + n + 1;
	return r;
}

int dcp_pkl_push_global(struct dcp_pkl_vm *vm)
{
	struct dcp_pnode *node;
	size_t size;
	int r = dcp_pkl_read_global(vm, &node, &size);

	if (r < 0)
		return r;
	r = dcp_pkl_push_node(vm, DCP_PV_GLOBAL, node);
	vm->p += size;
	return r;
}

/* ---- payloads ---- */

static enum dcp_pv_type payload_type(uint8_t op)
{
	switch (op) {
	case PICKLE_SHORT_BINUNICODE:
	case PICKLE_BINUNICODE:
	case PICKLE_BINUNICODE8:
	case PICKLE_SHORT_BINSTRING: /* or bytes, as its content says */
	case PICKLE_BINSTRING:
		return DCP_PV_STR;
	case PICKLE_BYTEARRAY8:
		return DCP_PV_BYTEARRAY;
	default:
		return DCP_PV_BYTES;
	}
}

static bool is_string(uint8_t op)
{
	return op == PICKLE_SHORT_BINSTRING || op == PICKLE_BINSTRING;
}

/* The @n bytes at @off, through the window when they are few. */
static int read_text(struct dcp_pkl_vm *vm, size_t head, uint64_t n, uint64_t off,
		     struct dcp_pnode **out)
{
	struct dcp_pnode *node = dcp_pkl_text(vm->mem, n, off);
	int r;

	if (!node)
		return dcp_pkl_no_memory(vm);
	if (n <= DCP_PICKLE_INLINE) {
		r = dcp_pkl_win_need(&vm->w, &vm->p, head + (size_t)n);
		if (r < 0)
			return r;
		memcpy(node->data, vm->p + head, (size_t)n);
	} else {
		r = dcp_source_read(vm->w.src, off, node->data, (size_t)n);
		if (r < 0)
			return dcp_pkl_fail(vm, r, "needs %zu bytes: %s", (size_t)n,
					    strerror(-r));
	}
	node->data[n] = '\0';
	*out = node;
	return 0;
}

/* Text: copied whatever its length, because it must be looked at; unless the reader says that
 * such a long one is none. */
static int push_str(struct dcp_pkl_vm *vm, size_t head, uint64_t n, uint64_t off)
{
	struct dcp_pnode *node = NULL;
	bool string = is_string(*vm->p);
	int r;

	if (n > vm->far_text)
		return dcp_pkl_push_node(vm, DCP_PV_BYTES, dcp_pkl_far_text(vm->mem, n, off));
	r = read_text(vm, head, n, off, &node);
	if (r < 0)
		return r;
	if (dcp_pkl_utf8(node->data, (size_t)n, !string))
		return dcp_pkl_push_node(vm, DCP_PV_STR, node);
	if (!string)
		return dcp_pkl_fail(vm, -EBADMSG, "is not UTF-8");
	if (n > DCP_PICKLE_INLINE) {
		dcp_pkl_drop(vm->mem, dcp_pkl_node(DCP_PV_BYTES, node));
		node = dcp_pkl_far_text(vm->mem, n, off);
	}
	return dcp_pkl_push_node(vm, DCP_PV_BYTES, node);
}

int dcp_pkl_push_payload(struct dcp_pkl_vm *vm)
{
	enum dcp_pv_type type = payload_type(*vm->p);
	struct dcp_pnode *node = NULL;
	uint64_t n, off;
	size_t head;
	int r = dcp_pkl_win_length(&vm->w, vm->p, &head, &n);

	if (r < 0)
		return r;
	off = dcp_pkl_off(&vm->w, vm->p) + head;
	if (*vm->p == PICKLE_LONG1 || *vm->p == PICKLE_LONG4) {
		r = dcp_pkl_win_need(&vm->w, &vm->p, head + (size_t)n);
		if (r == 0)
			r = push_int(vm, vm->p + head, (size_t)n, off);
	} else if (type == DCP_PV_STR) {
		r = push_str(vm, head, n, off);
	} else if (n > vm->far_bytes) {
		r = dcp_pkl_push_node(vm, type, dcp_pkl_far_text(vm->mem, n, off));
	} else {
		r = read_text(vm, head, n, off, &node);
		if (r == 0)
			r = dcp_pkl_push_node(vm, type, node);
	}
	vm->p = dcp_pkl_win_seek(&vm->w, off + n);
	return r;
}
