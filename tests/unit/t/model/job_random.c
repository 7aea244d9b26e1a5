/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints made up. */
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "tests/unit/t/model/job.h"

static struct dcp_piece *add_copy(struct t_plan *t, size_t of)
{
	size_t i = t->t.npieces++;

	memcpy(t->lo[i], t->lo[of], sizeof(t->lo[i]));
	memcpy(t->len[i], t->len[of], sizeof(t->len[i]));
	memcpy(t->stride[i], t->stride[of], sizeof(t->stride[i]));
	t->pieces[i] = t->pieces[of];
	t->pieces[i].lo = t->lo[i];
	t->pieces[i].len = t->len[i];
	if (t->pieces[of].stride)
		t->pieces[i].stride = t->stride[i];
	return &t->pieces[i];
}

static void be_zeros(struct dcp_piece *p)
{
	p->filter = DCP_FILTER_ZERO;
	p->stride = NULL;
	p->off = p->nbytes = 0;
}

void t_job_random(struct t_job *w, struct t_choice *c, bool copies)
{
	uint64_t end[T_JOB_FILES] = { 0 };

	w->n = 1 + t_pick(c, T_JOB_TENSORS);
	w->shared = false;
	for (size_t i = 0; i < w->n; i++) {
		struct t_plan *t = &w->plan[i];
		uint64_t base[T_JOB_FILES];
		size_t told;

		t_plan_tensor(t, c);
		snprintf(w->key[i], sizeof(w->key[i]), "%c.%llu.w", (char)('a' + t_pick(c, 4)),
			 (unsigned long long)t_pick(c, 9));
		t->t.key = w->key[i];
		/* behind the tensors before it, or over their bytes */
		for (size_t f = 0; f < T_JOB_FILES; f++) {
			base[f] = end[f];
			if (!copies && t_pick(c, 6) == 1) {
				base[f] = t_pick(c, end[f]);
				w->shared = true;
			}
		}
		told = t->t.npieces;
		for (size_t p = 0; p < told; p++) {
			t->pieces[p].off += base[t->pieces[p].file];
			if (t_pick(c, 8) == 1)
				t->pieces[p].enc = DCP_ENC_TORCH;
			else if (t_pick(c, 8) == 1)
				be_zeros(&t->pieces[p]);
		}
		for (size_t f = 0; f < T_JOB_FILES; f++)
			end[f] = DCP_MAX(end[f], base[f] + t->used[f]);
		for (size_t p = 0; copies && p < told && t->t.npieces < T_PLAN_PIECES; p++) {
			struct dcp_piece *copy;

			if (t_pick(c, 3))
				continue;
			copy = add_copy(t, p);
			copy->file = (uint32_t)t_pick(c, T_JOB_FILES);
			copy->off = end[copy->file];
			end[copy->file] += copy->nbytes;
		}
	}
	for (size_t f = 0; f < T_JOB_FILES; f++)
		w->files[f] = (struct dcp_file_id){ .name = "f", .size = end[f] };
	w->opts.files = w->files;
	w->opts.nfiles = T_JOB_FILES;
	w->opts.group = 1 + (uint32_t)t_pick(c, 5);
	w->opts.staging = (uint64_t)1 << (20 + 2 * t_pick(c, 2));
	w->opts.exchange = (enum dcp_job_exchange)t_pick(c, 3);
	w->opts.direct = t_pick(c, 2);
	w->ranks = dcp_layout_ranks(w->opts.to);
	if (w->opts.from)
		w->ranks = DCP_MAX(w->ranks, dcp_layout_ranks(w->opts.from));
}
