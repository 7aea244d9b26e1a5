/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emitter: what emits the keys of a checkpoint: numbers of files, and its end.
 */
#include "core/format/dcp/dcp_int.h"

int dcp_tdcp_file_number(struct dcp_tdcp_emitter *w, uint32_t file, uint32_t *number)
{
	uint32_t *known = dcp_buf_at(&w->emitted, file, sizeof(*known));
	int rc = known ? 0 : -ENOMEM;

	if (known && *known)
		*number = *known - 1;
	else if (known)
		rc = dcp_emit_file(w->sink, dcp_intern_text(&w->m->files, file), number);
	if (rc == 0)
		*known = *number + 1;
	return rc;
}

void dcp_tdcp_emitter_finish(struct dcp_tdcp_emitter *w)
{
	dcp_titem_files_finish(&w->files);
	dcp_buf_finish(&w->emitted);
	dcp_buf_finish(&w->path_text);
	dcp_buf_finish(&w->path_ptrs);
	dcp_buf_finish(&w->containers);
	dcp_buf_finish(&w->dims);
	dcp_buf_finish(&w->places);
	dcp_join_finish(&w->join);
	dcp_buf_finish(&w->blocks);
}
