/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/parse/tar.h"

#include <stdio.h>
#include <string.h>

#include "tests/unit/t.h"

static void put_sum(char *h)
{
	unsigned total = 0;
	char text[24];

	memset(h + 148, ' ', 8);
	for (int i = 0; i < 512; i++)
		total += (unsigned char)h[i];
	snprintf(text, sizeof(text), "%06o", total);
	memcpy(h + 148, text, 7); /* its NUL too; the space stays */
}

static void put_size(const struct t_tar *t, char *h, uint64_t size)
{
	char text[32];

	if (!t->base256 && size < 077777777777ull) {
		snprintf(text, sizeof(text), "%011llo", (unsigned long long)size);
		memcpy(h + 124, text, 12);
		return;
	}
	h[124] = (char)0x80;
	for (int i = 0; i < 8; i++)
		h[135 - i] = (char)(size >> 8 * i);
}

static void pad_block(struct dcp_buf *b)
{
	static const char zeros[512];

	dcp_buf_add(b, zeros, -b->n % 512);
}

void t_tar_raw(struct t_tar *t, char type, const char *name, uint64_t size, const void *p,
	       size_t n)
{
	char h[512] = { 0 };

	assert_true(t->n < 64);
	memcpy(h, name, DCP_MIN(strlen(name), (size_t)100));
	memcpy(h + 100,
	       "0000644\0"
	       "0001750\0"
	       "0001750\0",
	       24);
	put_size(t, h, size);
	memcpy(h + 136, "14700000000", 12);
	h[156] = type;
	if (!t->old)
		memcpy(h + 257, t->gnu ? "ustar  \0" : "ustar\00000", 8);
	put_sum(h);
	t->header[t->n] = t->b.n;
	dcp_buf_add(&t->b, h, sizeof(h));
	t->data[t->n++] = t->b.n;
	dcp_buf_add(&t->b, p, n);
	pad_block(&t->b);
	assert_int_equal(dcp_buf_error(&t->b), 0);
}

void t_tar_record(struct dcp_buf *out, const char *name, const char *value)
{
	size_t n = strlen(name) + strlen(value) + 3, digits = 1;

	for (size_t limit = 10; n + digits >= limit; limit *= 10)
		digits++;
	dcp_buf_printf(out, "%zu %s=%s\n", n + digits, name, value);
}

void t_tar_add(struct t_tar *t, const char *name, const void *p, size_t n)
{
	dcp_auto_buf struct dcp_buf extra = DCP_BUF_INIT;

	if (strlen(name) > 100 && t->gnu) {
		t_tar_raw(t, 'L', "././@LongLink", strlen(name) + 1, name, strlen(name) + 1);
	} else if (strlen(name) > 100) {
		t_tar_record(&extra, "mtime", "1700000000.5");
		t_tar_record(&extra, "path", name);
		t_tar_raw(t, 'x', "PaxHeaders/x", extra.n, extra.p, extra.n);
	}
	t_tar_raw(t, '0', name, n, p, n);
}

void t_tar_end(struct t_tar *t)
{
	static const char zeros[512];

	dcp_buf_add(&t->b, zeros, 512);
	dcp_buf_add(&t->b, zeros, 512);
	while (t->b.n % 10240)
		dcp_buf_add(&t->b, zeros, 512);
	assert_int_equal(dcp_buf_error(&t->b), 0);
}

void t_tar_poke(struct t_tar *t, size_t header, size_t at, const void *p, size_t n)
{
	char *h = t->b.p + t->header[header];

	memcpy(h + at, p, n);
	put_sum(h);
}
