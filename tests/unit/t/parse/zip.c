/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/parse/zip.h"

#include <stdlib.h>
#include <string.h>

struct t_zip_rec {
	char name[300];
	uint32_t crc;
	uint64_t size;
};

static void put_num(struct dcp_buf *b, unsigned bytes, uint64_t v)
{
	dcp_buf_add(b, &v, bytes); /* the hosts we build for are little-endian */
}

static uint32_t crc32_of(const uint8_t *p, size_t n)
{
	uint32_t crc = UINT32_MAX;

	for (size_t i = 0; i < n; i++) {
		crc ^= p[i];
		for (int k = 0; k < 8; k++)
			crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1)));
	}
	return ~crc;
}

static void *grow_array(void *p, size_t n, size_t size)
{
	p = realloc(p, (n + 1) * size);
	if (!p)
		abort();
	return p;
}

/* Extra field of the local header: zip64 sizes, then padding up to the alignment. */
static void local_extra(struct t_zip *z, size_t header, size_t name_n, uint64_t n)
{
	uint32_t align = z->align ? z->align : z->torch ? 64 : 1;
	size_t len_at = header + 28, start = header + 30 + name_n;

	if (z->zip64) {
		put_num(&z->b, 2, 1);
		put_num(&z->b, 2, 16);
		put_num(&z->b, 8, z->torch ? 0 : n);
		put_num(&z->b, 8, z->torch ? 0 : n);
	}
	if (align > 1) {
		size_t pad = (align - (z->b.n + 4) % align) % align;

		dcp_buf_str(&z->b, "FB");
		put_num(&z->b, 2, pad);
		for (size_t i = 0; i < pad; i++)
			dcp_buf_str(&z->b, "Z");
	}
	t_zip_poke(z, len_at, 2, z->b.n - start);
}

static void put_descriptor(struct t_zip *z, uint32_t crc, uint64_t n)
{
	if (!z->torch || !n)
		return;
	put_num(&z->b, 4, 0x08074b50);
	put_num(&z->b, 4, crc);
	put_num(&z->b, z->zip64 ? 8 : 4, n);
	put_num(&z->b, z->zip64 ? 8 : 4, n);
}

void t_zip_add(struct t_zip *z, const char *name, const void *p, size_t n)
{
	size_t name_n = strlen(name), i = z->n++, at = z->b.n;
	uint32_t crc = z->no_crc ? 0 : crc32_of(p, n);

	z->local = grow_array(z->local, i, sizeof(*z->local));
	z->data = grow_array(z->data, i, sizeof(*z->data));
	z->entry = grow_array(z->entry, i, sizeof(*z->entry));
	z->rec = grow_array(z->rec, i, sizeof(*z->rec));
	if (name_n >= sizeof(z->rec->name))
		abort();
	memcpy(z->rec[i].name, name, name_n + 1);
	z->rec[i].crc = crc;
	z->rec[i].size = n;
	z->local[i] = at;
	put_num(&z->b, 4, 0x04034b50);
	put_num(&z->b, 2, z->torch ? 0 : 20);
	put_num(&z->b, 2, z->torch ? n ? 0x808 : 0x800 : 0);
	put_num(&z->b, 2, 0); /* method */
	put_num(&z->b, 4, 0); /* time */
	put_num(&z->b, 4, z->torch ? 0 : crc);
	put_num(&z->b, 4, z->zip64 ? UINT32_MAX : z->torch ? 0 : n);
	put_num(&z->b, 4, z->zip64 ? UINT32_MAX : z->torch ? 0 : n);
	put_num(&z->b, 2, name_n);
	put_num(&z->b, 2, 0);
	dcp_buf_add(&z->b, name, name_n);
	local_extra(z, at, name_n, n);
	z->data[i] = z->b.n;
	dcp_buf_add(&z->b, p, n);
	put_descriptor(z, crc, n);
}

static void put_entry(struct dcp_buf *b, const struct t_zip_rec *r, uint64_t off, bool torch,
		      bool zip64)
{
	size_t name_n = strlen(r->name);

	put_num(b, 4, 0x02014b50);
	put_num(b, 4, torch ? 0 : 20 << 16 | 20);
	put_num(b, 2, torch ? r->size ? 0x808 : 0x800 : 0);
	put_num(b, 2, 0);
	put_num(b, 4, 0);
	put_num(b, 4, r->crc);
	put_num(b, 4, zip64 ? UINT32_MAX : r->size);
	put_num(b, 4, zip64 ? UINT32_MAX : r->size);
	put_num(b, 2, name_n);
	put_num(b, 2, zip64 ? 28 : 0);
	put_num(b, 2, 0); /* comment */
	put_num(b, 2, 0); /* disk */
	put_num(b, 2, 0);
	put_num(b, 4, 0);
	put_num(b, 4, zip64 ? UINT32_MAX : off);
	dcp_buf_add(b, r->name, name_n);
	if (!zip64)
		return;
	put_num(b, 2, 1);
	put_num(b, 2, 24);
	put_num(b, 8, r->size);
	put_num(b, 8, r->size);
	put_num(b, 8, off);
}

void t_zip_entry64(struct dcp_buf *b, const char *name, uint64_t size, uint64_t header_off)
{
	struct t_zip_rec r = { .size = size };

	strncpy(r.name, name, sizeof(r.name) - 1);
	put_entry(b, &r, header_off, true, true);
}

static void put_eocd(struct dcp_buf *b, uint64_t n, uint64_t dir_size, uint64_t dir,
		     const char *comment)
{
	put_num(b, 4, 0x06054b50);
	put_num(b, 4, 0);
	put_num(b, 2, n);
	put_num(b, 2, n);
	put_num(b, 4, dir_size);
	put_num(b, 4, dir);
	put_num(b, 2, strlen(comment));
	dcp_buf_str(b, comment);
}

void t_zip_tail64(struct dcp_buf *b, uint64_t at, uint64_t n, uint64_t dir_size, uint64_t dir)
{
	put_num(b, 4, 0x06064b50);
	put_num(b, 8, 44);
	put_num(b, 4, 0x1e031e03);
	put_num(b, 8, 0);
	put_num(b, 8, n);
	put_num(b, 8, n);
	put_num(b, 8, dir_size);
	put_num(b, 8, dir);
	put_num(b, 4, 0x07064b50);
	put_num(b, 4, 0);
	put_num(b, 8, at);
	put_num(b, 4, 1);
	put_eocd(b, 0xffff, UINT32_MAX, UINT32_MAX, "");
}

void t_zip_end(struct t_zip *z)
{
	const char *comment = z->comment ? z->comment : "";
	uint64_t size;

	z->dir = z->b.n;
	for (size_t i = 0; i < z->n; i++) {
		z->entry[i] = z->b.n;
		put_entry(&z->b, &z->rec[i], z->local[i], z->torch, z->zip64);
	}
	size = z->b.n - z->dir;
	z->eocd64 = z->b.n;
	if (z->torch || z->zip64) {
		t_zip_tail64(&z->b, z->eocd64, z->n, size, z->dir);
		z->locator = z->eocd64 + 56;
		z->b.n -= 22; /* torch's end record holds the true numbers */
	}
	z->eocd = z->b.n;
	if (z->zip64)
		put_eocd(&z->b, 0xffff, UINT32_MAX, UINT32_MAX, comment);
	else
		put_eocd(&z->b, z->n, size, z->dir, comment);
	if (dcp_buf_error(&z->b))
		abort();
}

void t_zip_free(struct t_zip *z)
{
	dcp_buf_finish(&z->b);
	free(z->local);
	free(z->data);
	free(z->entry);
	free(z->rec);
}

void t_zip_poke(struct t_zip *z, size_t at, unsigned bytes, uint64_t v)
{
	if (at + bytes > z->b.n)
		abort();
	memcpy(z->b.p + at, &v, bytes);
}
