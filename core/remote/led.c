/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a server led requests for its files, as long as the signed URLs there can be used. In
 * memory only.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/base.h"
#include "core/remote/remote.h"
#include "core/remote/url.h"

enum {
	MOST = 1024,  /* files */
	EARLY_S = 10, /* before its end, a URL is not used for another request */
};

struct led {
	char *name, *url;
	int64_t until_s;
};

static struct led *find(struct dcp_remote *r, const char *name)
{
	struct led *l = DCP_ITEMS(r->led, struct led);

	for (size_t i = 0; i < DCP_NITEMS(r->led, struct led); i++)
		if (strcmp(l[i].name, name) == 0)
			return &l[i];
	return NULL;
}

char *dcp_led_find(struct dcp_remote *r, const char *name)
{
	const struct led *l;
	char *url;

	pthread_mutex_lock(&r->lock);
	l = find(r, name);
	url = l && time(NULL) < l->until_s - EARLY_S ? strdup(l->url) : NULL;
	pthread_mutex_unlock(&r->lock);
	return url;
}

void dcp_led_keep(struct dcp_remote *r, const char *name, const char *url)
{
	int64_t until_s = url ? dcp_url_until(url) : 0;
	struct led new = { .until_s = until_s }, *l;

	if (!until_s)
		return;
	new.name = strdup(name);
	new.url = strdup(url);
	pthread_mutex_lock(&r->lock);
	l = find(r, name);
	if (!l && DCP_NITEMS(r->led, struct led) == MOST)
		l = DCP_ITEMS(r->led, struct led) + (size_t)until_s % MOST;
	if (new.name &&new.url && l) {
		struct led old = *l;

		*l = new;
		new = old;
	} else if (new.name &&new.url && dcp_buf_add(&r->led, &new, sizeof(new)) == 0) {
		new = (struct led){ 0 };
	}
	pthread_mutex_unlock(&r->lock);
	free(new.name);
	free(new.url);
}
