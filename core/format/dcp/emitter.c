/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emitter: what emits the keys of a checkpoint: numbers of files, and its end.
 */
#include <stdlib.h>

#include "core/format/dcp/dcp_int.h"

int dcp_tdcp_file_number(struct dcp_tdcp_emitter *w, uint32_t file, uint32_t *number)
{
	int rc;

	if (w->emitted[file] == DCP_TDCP_NOT_EMITTED) {
		rc = dcp_emit_file(w->sink, dcp_intern_text(&w->m->files, file),
				   &w->emitted[file]);
		if (rc < 0)
			return rc;
	}
	*number = w->emitted[file];
	return 0;
}

void dcp_tdcp_emitter_finish(struct dcp_tdcp_emitter *w)
{
	dcp_titem_files_finish(&w->files);
	free(w->emitted);
	dcp_buf_finish(&w->path_text);
	dcp_buf_finish(&w->path_ptrs);
	dcp_buf_finish(&w->containers);
	dcp_buf_finish(&w->dims);
	dcp_buf_finish(&w->chunks);
	dcp_buf_finish(&w->places);
	dcp_buf_finish(&w->pieces);
	dcp_buf_finish(&w->blocks);
}
