/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/version/version_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/store/version/version.h"

int dcp_made_add(struct dcp_buf *made, const char *name, const char *from, struct dcp_buf *text)
{
	struct dcp_made m = { .name = strdup(name), .from = from, .text = *text };

	*text = (struct dcp_buf)DCP_BUF_INIT;
	if (m.name)
		dcp_buf_add(made, &m, sizeof(m));
	if (m.name && !dcp_buf_error(made))
		return 0;
	free(m.name);
	dcp_buf_finish(&m.text);
	return -ENOMEM;
}

struct dcp_made *dcp_made_named(const struct dcp_buf *made, const char *name)
{
	struct dcp_made *m = DCP_ITEMS(*made, struct dcp_made);

	for (size_t i = 0; i < DCP_NITEMS(*made, struct dcp_made); i++)
		if (strcmp(m[i].name, name) == 0)
			return &m[i];
	return NULL;
}

void dcp_made_forget(struct dcp_made *m)
{
	free(m->name);
	dcp_buf_finish(&m->text);
}

void dcp_made_finish(struct dcp_buf *made)
{
	for (size_t i = 0; i < DCP_NITEMS(*made, struct dcp_made); i++)
		dcp_made_forget(&DCP_ITEMS(*made, struct dcp_made)[i]);
	dcp_buf_finish(made);
}
