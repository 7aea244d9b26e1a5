/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bytes: what Python pickles bytes as.
 */
#include "core/parse/latin1.h"
#include "core/parse/pyjson/pyjson_int.h"

/* Length of bytes kept as Latin-1 text; false: other characters are in it. */
static bool latin1_length(struct dcp_pv str, uint64_t *n)
{
	size_t count = 0;

	if (str.type != DCP_PV_STR || dcp_latin1_narrow(str.node->data, str.node->n, NULL,
							&count) != (ptrdiff_t)str.node->n)
		return false;
	*n = count;
	return true;
}

uint64_t dcp_pyjson_bytes_len(struct dcp_pv v)
{
	uint64_t n = 0;

	if (v.type == DCP_PV_BYTES || v.type == DCP_PV_BYTEARRAY)
		return v.node->n;
	return latin1_length(v, &n) ? n : 0;
}

static bool is_latin1_name(struct dcp_pv v)
{
	return dcp_pv_is_str(v, "latin1") || dcp_pv_is_str(v, "latin-1");
}

/*
 * bytes and bytearray in all their disguises: protocol 2 knows neither and calls
 * _codecs.encode(text, "latin1"), bytes() or bytearray(text, "latin-1") instead, where
 * the text may be bytes again: once, which is what @inner is for.
 */
static bool look_bytes(struct dcp_pv v, struct dcp_pv *out, bool inner)
{
	bool bytes, array, encode;
	const struct dcp_pv *arg;
	uint64_t len;
	size_t n = 0;

	if (v.type == DCP_PV_BYTES || v.type == DCP_PV_BYTEARRAY) {
		*out = v;
		return true;
	}
	if (v.type != DCP_PV_OBJECT || !v.node->obj->called)
		return false;
	encode = dcp_pv_is_object(v, "_codecs", "encode");
	array = dcp_pv_is_object(v, "builtins", "bytearray");
	bytes = dcp_pv_is_object(v, "builtins", "bytes");
	arg = dcp_pv_items(v.node->obj->args, &n);
	if ((array || bytes) && n == 0) {
		*out = (struct dcp_pv){ .type = DCP_PV_NONE };
		return true;
	}
	if ((array || bytes) && n == 1 && !inner)
		return look_bytes(arg[0], out, true);
	if ((array || bytes || encode) && n == 2 && is_latin1_name(arg[1]) &&
	    latin1_length(arg[0], &len)) {
		*out = arg[0];
		return true;
	}
	return false;
}

bool dcp_pyjson_look_bytes(struct dcp_pv v, struct dcp_pv *out)
{
	return look_bytes(v, out, false);
}
