/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/buf.h"

struct line {
	time_t when;
	char *text;
};

struct dcpfs_log {
	struct dcp_log sink;
	const struct dcp_log *next;
	pthread_mutex_t lock; /* those below */
	struct line lines[DCPFS_LOG_LINES];
	size_t n; /* logged so far: line i is at i % DCPFS_LOG_LINES */
};

static void emit(void *ctx, enum dcp_log_level level, const char *text)
{
	struct dcpfs_log *l = ctx;
	char *copy = strdup(text);
	struct line *line;

	if (!copy)
		return;
	if (l->next)
		dcp_log(l->next, level, "%s", copy);
	pthread_mutex_lock(&l->lock);
	line = &l->lines[l->n++ % DCPFS_LOG_LINES];
	free(line->text);
	*line = (struct line){ time(NULL), copy };
	pthread_mutex_unlock(&l->lock);
}

struct dcpfs_log *dcpfs_log_create(const struct dcp_log *next)
{
	struct dcpfs_log *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->sink = (struct dcp_log){ DCP_LOG_INFO, emit, l };
	l->next = next;
	pthread_mutex_init(&l->lock, NULL);
	return l;
}

void dcpfs_log_destroy(struct dcpfs_log *l)
{
	if (!l)
		return;
	for (size_t i = 0; i < DCPFS_LOG_LINES; i++)
		free(l->lines[i].text);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

const struct dcp_log *dcpfs_log_sink(const struct dcpfs_log *l)
{
	return &l->sink;
}

void dcpfs_log_text(struct dcpfs_log *l, struct dcp_buf *b)
{
	pthread_mutex_lock(&l->lock);
	for (size_t i = l->n > DCPFS_LOG_LINES ? l->n - DCPFS_LOG_LINES : 0; i < l->n; i++) {
		const struct line *line = &l->lines[i % DCPFS_LOG_LINES];
		char when[32];
		struct tm tm;

		gmtime_r(&line->when, &tm);
		strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm);
		dcp_buf_printf(b, "%s %s\n", when, line->text);
	}
	pthread_mutex_unlock(&l->lock);
}
