/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input is first a run of numbers, then the orders of a JSON writer: numbers must survive
 * writing and reading, and whatever is ordered, the text must stay printable and closed.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/base/jsonw.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
	if (!ok)
		abort();
}

static void numbers(const uint8_t *data, size_t size)
{
	struct dcp_cur in = dcp_cur(data, size);

	while (dcp_cur_left(&in) && dcp_cur_ok(&in)) {
		uint64_t v = dcp_cur_varint(&in);
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct dcp_cur again;

		dcp_buf_varint(&b, v);
		must(dcp_buf_error(&b) == 0);
		again = dcp_cur(b.p, b.n);
		must(dcp_cur_varint(&again) == v && dcp_cur_ok(&again));
		must(dcp_cur_left(&again) == 0);
	}
}

/* One order: a byte that says what, and a length where one is needed. */
static void order(struct dcp_jsonw *w, struct dcp_cur *in, unsigned *open)
{
	uint8_t what = dcp_cur_u8(in);
	size_t n = dcp_cur_left(in) < what / 8u ? dcp_cur_left(in) : what / 8u;
	double f;

	switch (what % 8) {
	case 0:
		dcp_jsonw_array(w);
		++*open;
		break;
	case 1:
		if (*open > 1) {
			dcp_jsonw_end(w);
			--*open;
		}
		break;
	case 2:
		dcp_jsonw_str_n(w, (const char *)dcp_cur_take(in, n), n);
		break;
	case 3:
		dcp_jsonw_bigint(w, dcp_cur_take(in, n), n);
		break;
	case 4:
		dcp_jsonw_base64(w, dcp_cur_take(in, n), n);
		break;
	case 5:
		n = dcp_cur_left(in) < sizeof(f) ? dcp_cur_left(in) : sizeof(f);
		f = 0;
		memcpy(&f, dcp_cur_take(in, n), n);
		dcp_jsonw_f64(w, f);
		break;
	case 6:
		dcp_jsonw_i64(w, (int64_t)dcp_cur_le64(in));
		break;
	default:
		dcp_jsonw_u64(w, dcp_cur_varint(in));
	}
}

/* Outside strings brackets match, inside no control characters; all strings are closed. */
static void closed(const char *p, size_t n)
{
	long depth = 0;
	bool quoted = false;

	for (size_t i = 0; i < n; i++) {
		must((unsigned char)p[i] >= 0x20 && p[i] != 0x7f);
		if (quoted && p[i] == '\\')
			i++;
		else if (p[i] == '"')
			quoted = !quoted;
		else if (!quoted && (p[i] == '[' || p[i] == '{'))
			depth++;
		else if (!quoted && (p[i] == ']' || p[i] == '}'))
			must(--depth >= 0);
	}
	must(!quoted && depth == 0);
}

static void json(const uint8_t *data, size_t size)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_cur in = dcp_cur(data, size);
	struct dcp_jsonw w;
	unsigned open = 1;

	dcp_jsonw_init(&w, &b, false);
	dcp_jsonw_array(&w);
	while (dcp_cur_left(&in) && dcp_cur_ok(&in) && open < DCP_JSONW_MAX_DEPTH)
		order(&w, &in, &open);
	while (open--)
		dcp_jsonw_end(&w);
	must(dcp_buf_error(&b) == 0);
	closed(b.p, b.n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	numbers(data, size);
	json(data, size);
	return 0;
}
