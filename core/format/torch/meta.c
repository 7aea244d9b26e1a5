/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Meta's Llama, a file for each rank that it was cut for: nothing in them says how, but the names
 * of fairscale's layers do.
 *
 *	ColumnParallelLinear      wq wk wv w1 w3 output        rows of the weight
 *	RowParallelLinear         wo w2                        columns
 *	VocabParallelEmbedding    tok_embeddings               rows, in Llama 3
 *	ParallelEmbedding         tok_embeddings               columns, in Llama 1 and 2: all rows, less wide than the model
 *	RMSNorm and rope.freqs                                 each rank has all of it
 */
#include <errno.h>
#include <fnmatch.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/ckd.h"
#include "core/base/number.h"
#include "core/format/torch/ranks.h"
#include "core/model/tensor.h"

enum cut { ROWS, COLUMNS, EMBEDDING, WHOLE };

static const struct {
	const char *key;
	enum cut cut;
} cuts[] = {
	{ "layers.*.attention.w[qkv].weight", ROWS },
	{ "layers.*.feed_forward.w[13].weight", ROWS },
	{ "output.weight", ROWS },
	{ "layers.*.attention.wo.weight", COLUMNS },
	{ "layers.*.feed_forward.w2.weight", COLUMNS },
	{ "tok_embeddings.weight", EMBEDDING },
	{ "layers.*.attention_norm.weight", WHOLE },
	{ "layers.*.ffn_norm.weight", WHOLE },
	{ "norm.weight", WHOLE },
	{ "rope.freqs", WHOLE },
};

bool dcp_rank_is_meta(const struct dcp_rank_name *name)
{
	return name->len == 12 && strncmp(name->set, "consolidated.", 13) == 0;
}

/* What rank number @who holds of a matrix, all of them cut along @dim. */
static int add_part(struct dcp_meta *m, const struct dcp_tensor *t, uint32_t dim, uint32_t who,
		    const char *file)
{
	uint64_t shape[2], lo[2] = { 0 };
	struct dcp_tensor part = *t;
	struct dcp_piece piece;

	if (t->ndim != 2 || t->error)
		return dcp_copies_add(m->whole, t, who, file);
	memcpy(shape, t->shape, sizeof(shape));
	if (dcp_ckd_mul(&lo[dim], shape[dim], who) ||
	    dcp_ckd_mul(&shape[dim], shape[dim], m->nranks))
		return -E2BIG;
	part.shape = shape;
	if (t->npieces) {
		piece = t->pieces[0];
		piece.lo = lo;
		part.pieces = &piece;
	}
	return dcp_copies_add(m->whole, &part, who, file);
}

int dcp_meta_add(struct dcp_meta *m, const struct dcp_tensor *t, uint32_t who, const char *file)
{
	size_t i = 0;

	while (i < DCP_LEN(cuts) && fnmatch(cuts[i].key, t->key, 0) != 0)
		i++;
	if (i == DCP_LEN(cuts))
		return 1;
	if (strcmp(t->key, "norm.weight") == 0 && t->ndim == 1)
		m->width = t->shape[0];
	if (cuts[i].cut == EMBEDDING)
		return dcp_copies_add(&m->embeddings, t, who, file);
	if (cuts[i].cut == WHOLE)
		return dcp_copies_add(m->whole, t, who, file);
	return add_part(m, t, cuts[i].cut == COLUMNS, who, file);
}

int dcp_meta_end(struct dcp_meta *m)
{
	const struct dcp_copy *c =
		m->embeddings.names.n ? dcp_copies_at(&m->embeddings, 0)->first : NULL;
	int rc = 0;

	for (; c && rc == 0; c = c->next)
		rc = add_part(m, &c->t, c->t.ndim == 2 && c->t.shape[1] != m->width, c->who,
			      c->file);
	return rc;
}
