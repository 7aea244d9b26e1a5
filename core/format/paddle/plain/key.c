/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key: a key with the label of its file in front, where several files have it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/format/paddle/plain/plain_int.h"

int dcp_pdkey_init(struct dcp_pdkey *k, const struct dcp_pdpart *part, const char *key,
		   const char *const *path, size_t npath)
{
	int how = part->choose ? part->choose(part->ctx, key) : 0;
	size_t n = strlen(key), label = strlen(part->label);

	*k = (struct dcp_pdkey){ .key = key, .path = path, .npath = npath };
	if (how == 0)
		return 1;
	if (how == 2)
		return 0;
	k->text = malloc(label + n + 2);
	k->list = calloc(npath + 1, sizeof(*k->list));
	if (!k->text || !k->list)
		return -ENOMEM;
	snprintf(k->text, label + n + 2, "%s.%s", part->label, key);
	k->list[0] = part->label;
	for (size_t i = 0; i < npath; i++)
		k->list[i + 1] = path[i];
	k->key = k->text;
	k->path = k->list;
	k->npath = npath + 1;
	return 1;
}

void dcp_pdkey_finish(struct dcp_pdkey *k)
{
	free(k->text);
	free(k->list);
}
