/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/view/digest.h"

#include <errno.h>
#include <inttypes.h>
#include <nettle/base16.h>
#include <nettle/sha2.h>
#include <nettle/version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/bytes.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/format/format.h"
#include "core/store/view/view.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

enum { CHUNK = 1 << 20 };

/* Exactly one of the two is in use. */
struct dcp_digesting {
	struct dcp_hash128 *xxh3; /* NULL: it is sha */
	struct sha256_ctx sha;
};

void dcp_digest_add(struct dcp_digesting *h, const void *p, size_t n)
{
	if (h->xxh3)
		dcp_hash128_add(h->xxh3, p, n);
	else
		sha256_update(&h->sha, n, p);
}

static void add_u64(struct dcp_digesting *h, uint64_t v)
{
	uint8_t bytes[8];

	dcp_store_le64(bytes, v);
	dcp_digest_add(h, bytes, sizeof(bytes));
}

struct dcp_digesting *dcp_digest_begin(enum dcp_digest_kind kind, const char *dtype_name,
				       uint32_t ndim, const uint64_t *shape)
{
	struct dcp_digesting *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	sha256_init(&h->sha);
	if (kind == DCP_DIGEST_XXH3 && !(h->xxh3 = dcp_hash128_new())) {
		free(h);
		return NULL;
	}
	dcp_digest_add(h, dtype_name, strlen(dtype_name) + 1);
	add_u64(h, ndim);
	for (uint32_t d = 0; d < ndim; d++)
		add_u64(h, shape[d]);
	return h;
}

static void write_text(struct dcp_digesting *h, char text[DCP_DIGEST_TEXT])
{
	uint8_t bytes[SHA256_DIGEST_SIZE];
	uint64_t value[2];

	if (h->xxh3) {
		dcp_hash128_end(h->xxh3, value);
		snprintf(text, DCP_DIGEST_TEXT, "%016" PRIx64 "%016" PRIx64, value[0],
			 value[1]);
		return;
	}
	sha256_digest(&h->sha, sizeof(bytes), bytes);
	base16_encode_update(text, sizeof(bytes), bytes);
	text[2 * sizeof(bytes)] = '\0';
}

void dcp_digest_end(struct dcp_digesting *h, char text[DCP_DIGEST_TEXT])
{
	write_text(h, text);
	free(h);
}

int dcp_digest(const struct dcp_view *view, enum dcp_digest_kind kind,
	       const struct dcp_progress *progress, char text[DCP_DIGEST_TEXT],
	       struct dcp_err *err)
{
	dcp_auto_free void *chunk = malloc(CHUNK);
	const struct dcp_tensor *t = dcp_view_tensor(view);
	uint64_t size = dcp_view_size(view);
	struct dcp_digesting *h = dcp_digest_begin(kind, t->dtype_name, t->ndim, t->shape);
	int rc = chunk && h ? 0 : -ENOMEM;

	for (uint64_t at = 0; rc == 0 && at < size;) {
		size_t n = (size_t)DCP_MIN(size - at, (uint64_t)CHUNK);

		rc = dcp_view_read(view, at, chunk, n);
		if (rc == 0)
			dcp_digest_add(h, chunk, n);
		else
			dcp_fail_at(err, rc, at, "reading at byte %" PRIu64 ": %s", at,
				    dcp_err_noted(rc));
		at += n;
		if (progress)
			progress->report(progress->ctx, at, size, dcp_view_tensor(view)->key);
	}
	if (h)
		dcp_digest_end(h, text);
	return rc;
}

const char *dcp_digest_nettle_version(void)
{
	return TEXT(NETTLE_VERSION_MAJOR) "." TEXT(NETTLE_VERSION_MINOR);
}
