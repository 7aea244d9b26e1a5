/* SPDX-License-Identifier: Apache-2.0 */
/* Taking in tensors: one item for each of a tensor's pieces. */
#include <errno.h>
#include <string.h>

#include "core/base/ckd.h"
#include "core/base/hash.h"
#include "core/model/job/job_int.h"

/* Bytes that hold a piece, from @p->off on; false: a number that does not fit. */
static bool stored_bytes(const struct dcp_tensor *t, const struct dcp_piece *p, uint64_t *out)
{
	uint64_t last = 0;

	*out = dcp_job_is_zeros(p) ? 0 : p->nbytes;
	if (dcp_job_is_opaque(p) || dcp_job_is_zeros(p))
		return true;
	for (uint32_t d = 0; p->stride && d < t->ndim; d++) {
		uint64_t reach;

		if (dcp_ckd_mul(&reach, p->len[d] - 1, p->stride[d]) ||
		    dcp_ckd_add(&last, last, reach))
			return false;
	}
	if (!p->stride)
		last = p->run_n - 1;
	return !dcp_ckd_add(out, last, 1) && !dcp_ckd_mul(out, *out, t->itemsize);
}

static int add_piece(struct dcp_job *job, const struct dcp_tensor *t, const struct job_kind *k,
		     size_t i, uint32_t first, uint64_t *emitted, struct dcp_err *err)
{
	const struct dcp_piece *p = &t->pieces[i];
	struct job_item *item;
	uint64_t n, off = p->off;

	if (k->pattern_of[i] == JOB_NONE)
		return 0;
	if (dcp_job_is_zeros(p) && p->file < job->opts.nfiles)
		off = dcp_job_file_size(job, p->file); /* after every item that has bytes */
	if (p->file >= job->opts.nfiles || !stored_bytes(t, p, &n) ||
	    !dcp_range_ok(off, n, dcp_job_file_size(job, p->file)))
		return dcp_fail_at(err, -EBADMSG, p->off,
				   "%.160s: a piece ends after the end of its file, %.160s",
				   t->key,
				   p->file < job->opts.nfiles ? job->opts.files[p->file].name
							      : "which is missing");
	item = JOB_AT(job->item, struct job_item, first + k->pattern_of[i]);
	*emitted = (*emitted ^ (p->off + ((uint64_t)p->file << 40))) * 0x9e3779b97f4a7c15;
	*emitted ^= *emitted >> 29;
	if (k->copies) {
		if (dcp_job_room(job, &job->copy, 1, sizeof(struct job_copy)) < 0)
			return dcp_job_no_memory(job, err);
		*JOB_AT(job->copy, struct job_copy, job->copy.n++) =
			(struct job_copy){ off, n, p->file, first + k->pattern_of[i] };
	}
	*item = (struct job_item){ off, n, p->file, k->first + k->pattern_of[i] };
	return 0;
}

int dcp_job_add(struct dcp_job *job, const struct dcp_tensor *t, struct dcp_err *err)
{
	struct dcp_err mine = { 0 };
	const struct job_kind *k;
	uint64_t emitted = 0;
	uint32_t kind = 0;
	size_t first = job->item.n, copies = job->copy.n;
	int rc;

	err = err ? err : &mine;
	err->code = 0;
	rc = dcp_job_kind(job, t, &kind, err);
	if (rc < 0)
		return rc;
	k = JOB_AT(job->kind, struct job_kind, kind);
	if (first + k->t.npieces >= JOB_NONE)
		return dcp_fail(err, -E2BIG, "more than 2^32 pieces");
	if (dcp_job_room(job, &job->item, k->t.npieces, sizeof(struct job_item)) < 0 ||
	    dcp_job_room(job, &job->tensor, 1, sizeof(struct job_tensor)) < 0)
		return dcp_job_no_memory(job, err);
	for (size_t i = 0; rc == 0 && k->t.npieces && i < t->npieces; i++)
		rc = add_piece(job, t, k, i, (uint32_t)first, &emitted, err);
	if (rc < 0) {
		job->copy.n = copies;
		return rc;
	}
	job->item.n = first + k->t.npieces;
	*JOB_AT(job->tensor, struct job_tensor, job->tensor.n++) =
		(struct job_tensor){ kind, (uint32_t)first };
	JOB_AT(job->kind, struct job_kind, kind)->ntensors++;
	emitted = dcp_hash64_more(emitted, &k->hash, sizeof(k->hash));
	job->emitted += dcp_hash64_more(emitted, t->key, strlen(t->key));
	return 0;
}
