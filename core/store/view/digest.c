/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/view/digest.h"

#include <errno.h>
#include <inttypes.h>
#include <nettle/sha2.h>
#include <nettle/version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/cleanup.h"
#include "core/base/endian.h"
#include "core/base/err.h"
#include "core/base/hash.h"
#include "core/format/format.h"
#include "core/store/view/view.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

enum { CHUNK = 1 << 20 };

/* One of the two. */
struct hash {
	struct dcp_hash128 *xxh3; /* NULL: it is sha */
	struct sha256_ctx sha;
};

static void add(struct hash *h, const void *p, size_t n)
{
	if (h->xxh3)
		dcp_hash128_add(h->xxh3, p, n);
	else
		sha256_update(&h->sha, n, p);
}

static void add_u64(struct hash *h, uint64_t v)
{
	uint8_t bytes[8];

	dcp_store_le64(bytes, v);
	add(h, bytes, sizeof(bytes));
}

static void add_head(struct hash *h, const struct dcp_tensor *t)
{
	add(h, t->dtype_name, strlen(t->dtype_name) + 1);
	add_u64(h, t->ndim);
	for (uint32_t d = 0; d < t->ndim; d++)
		add_u64(h, t->shape[d]);
}

static void end(struct hash *h, char text[DCP_DIGEST_TEXT])
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
	for (size_t i = 0; i < sizeof(bytes); i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

int dcp_digest(const struct dcp_view *view, enum dcp_digest_kind kind,
	       const struct dcp_progress *progress, char text[DCP_DIGEST_TEXT],
	       struct dcp_err *err)
{
	dcp_auto_free void *chunk = malloc(CHUNK);
	uint64_t size = dcp_view_size(view);
	struct hash h = { 0 };
	int rc = chunk ? 0 : -ENOMEM;

	sha256_init(&h.sha);
	if (rc == 0 && kind == DCP_DIGEST_XXH3 && !(h.xxh3 = dcp_hash128_new()))
		rc = -ENOMEM;
	if (rc < 0)
		return rc;
	add_head(&h, dcp_view_tensor(view));
	for (uint64_t at = 0; rc == 0 && at < size;) {
		size_t n = (size_t)DCP_MIN(size - at, (uint64_t)CHUNK);

		rc = dcp_view_read(view, at, chunk, n);
		if (rc == 0)
			add(&h, chunk, n);
		else
			dcp_fail_at(err, rc, at, "reading at byte %" PRIu64 ": %s", at,
				    strerror(-rc));
		at += n;
		if (progress)
			progress->report(progress->ctx, at, size, dcp_view_tensor(view)->key);
	}
	end(&h, text);
	return rc;
}

const char *dcp_digest_nettle_version(void)
{
	return TEXT(NETTLE_VERSION_MAJOR) "." TEXT(NETTLE_VERSION_MINOR);
}
