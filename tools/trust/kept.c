/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/trust/kept.h"

#include <errno.h>
#include <string.h>

#include "core/base/hash.h"
#include "core/store/cache/cache.h"
#include "tools/trust/walk.h"

static uint64_t hash_of(const struct walk_key *k)
{
	return dcp_hash64(k->key, strlen(k->key));
}

int kept_read(const struct dcp_version *v, const char *name, size_t size, struct dcp_buf *out)
{
	int rc = dcp_kept_read(v, name, out);

	if (rc < 0 || out->n % size)
		dcp_buf_reset(out);
	return rc == -ENOMEM ? rc : 0;
}

const void *kept_at(const struct dcp_buf *all, size_t size, const struct walk_key *k)
{
	uint64_t at = (uint64_t)k->id - 1; /* ids count from 1 */
	const struct kept_head *head;

	if (k->id <= 0 || at >= all->n / size)
		return NULL;
	head = (const void *)(all->p + at * size);
	return head->done && head->id == k->id && head->key == hash_of(k) ? head : NULL;
}

int kept_put(struct dcp_buf *all, size_t size, const struct walk_key *k, const void *record)
{
	struct kept_head *head = dcp_buf_at(all, (size_t)k->id - 1, size);

	if (!head)
		return -ENOMEM;
	memcpy(head, record, size);
	*head = (struct kept_head){ k->id, hash_of(k), 1 };
	return 0;
}
