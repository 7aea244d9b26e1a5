/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the rank of each mp_rank directory, and the directories that should be there.
 *
 *	mp_rank_<TT>[_<PPP>][_<EEE>]/model_optim_rng.pt   tensor, pipeline, expert parallel
 *	mp_rank_<TT>[_<PPP>]/model_rng.pt                 2022, with a distributed optimizer,
 *	mp_rank_<TT>[_<PPP>]_<DDD>/optim.pt               whose data-parallel ranks wrote optim.pt
 *
 * Experts may be cut by fewer tensor-parallel ranks than the other layers (ETP divides TP). The
 * ranks of a stage are numbered in two ways, as (tensor, data) and as (expert tensor, expert,
 * expert data), where the first number counts fastest. So rank r holds part r % TP of a tensor that
 * is not an expert's, and part r % ETP of the experts of expert-parallel rank (r / ETP) % EP. Only
 * one of the ranks with the numbers of a name writes its file, so the name also tells the part of
 * the experts: r % ETP is TT % ETP. But if ETP is greater than TP, ranks with different parts have
 * the same name, and only the file of the last writer is left.
 */
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/megatron/megatron_int.h"
#include "core/origin/dir/dir.h"
#include "core/parse/pickle/pickle.h"

enum { MAX_PARALLEL = 4096 };

static const char *const file_names[] = { "model_optim_rng.pt", "model_rng.pt" };

/* Read the numbers of a name such as "mp_rank_01_002". */
bool dcp_megatron_rank_parse(const char *name, struct dcp_megatron_rank *r)
{
	const char *p = name + 7;

	r->nnumbers = 0;
	if (strncmp(name, "mp_rank", 7) != 0)
		return false;
	while (*p == '_' && r->nnumbers < 3) {
		p++;
		if (!dcp_take_number(&p, NULL, 6, &r->number[r->nnumbers++]))
			return false;
	}
	return r->nnumbers > 0 && !*p;
}

const char *dcp_megatron_rank_file(const struct dcp_dir *dir)
{
	for (size_t i = 0; i < DCP_LEN(file_names); i++)
		if (dcp_dir_find(dir, file_names[i]))
			return file_names[i];
	return NULL;
}

/* A directory without state belongs to a data-parallel rank if directories whose names have fewer
 * numbers have a state. Otherwise its state is missing. */
static void see_missing(struct dcp_megatron_legacy *m)
{
	unsigned fewest = 4;

	m->file = file_names[0];
	for (size_t i = m->n; i-- > 0;)
		if (m->rank[i].file) {
			m->file = m->rank[i].file;
			fewest = DCP_MIN(fewest, m->rank[i].nnumbers);
		}
	for (size_t i = 0; i < m->n; i++)
		if (!m->rank[i].file && m->rank[i].nnumbers <= fewest)
			m->rank[i].file = m->file;
}

int dcp_megatron_legacy_list(struct dcp_megatron_legacy *m)
{
	const struct dcp_dir *dir = m->in->dir;

	m->rank = calloc(dir->n + 1, sizeof(*m->rank));
	if (!m->rank)
		return -ENOMEM;
	for (size_t i = 0; i < dir->n; i++) {
		struct dcp_megatron_rank *r = &m->rank[m->n];
		struct dcp_dir below;

		r->dir = dir->entries[i].name;
		if (!dir->entries[i].is_dir || !dcp_megatron_rank_parse(r->dir, r))
			continue;
		m->n++;
		if (dcp_dir_open_at(dir, r->dir, &below, NULL) < 0)
			continue;
		r->file = dcp_megatron_rank_file(&below);
		dcp_dir_close(&below);
	}
	see_missing(m);
	return 0;
}

/* Two numbers in a name are the tensor- and the pipeline-parallel rank. But if the arguments give
 * one pipeline stage and several expert-parallel ranks, the second is the expert-parallel rank. */
static void place_one(struct dcp_megatron_legacy *m, struct dcp_megatron_rank *r)
{
	bool expert = r->nnumbers == 2 && m->args.pp == 1 && m->args.ep > 1;

	r->tp = (uint32_t)r->number[0];
	r->pp = r->nnumbers > 1 && !expert ? (uint32_t)r->number[1] : 0;
	r->ep = expert ? (uint32_t)r->number[1] : r->nnumbers > 2 ? (uint32_t)r->number[2] : 0;
	if (!r->file)
		return;
	m->tp = DCP_MAX(m->tp, r->tp + 1);
	m->pp = DCP_MAX(m->pp, r->pp + 1);
	m->ep = DCP_MAX(m->ep, r->ep + 1);
}

int dcp_megatron_legacy_place(struct dcp_megatron_legacy *m, struct dcp_err *err)
{
	m->tp = (uint32_t)DCP_MAX(m->args.tp, 1u);
	m->pp = (uint32_t)DCP_MAX(m->args.pp, 1u);
	m->ep = (uint32_t)DCP_MAX(m->args.ep, 1u);
	for (size_t i = 0; i < m->n; i++)
		place_one(m, &m->rank[i]);
	m->etp = m->args.etp && m->args.etp != m->args.tp ? (uint32_t)m->args.etp : m->tp;
	if (m->tp > MAX_PARALLEL || m->pp > MAX_PARALLEL || m->ep > MAX_PARALLEL ||
	    m->etp > MAX_PARALLEL)
		return dcp_fail(err, -E2BIG,
				"%u tensor, %u pipeline, %u expert and %u expert tensor "
				"parallel ranks: at most %d of each are possible",
				m->tp, m->pp, m->ep, m->etp, MAX_PARALLEL);
	return 0;
}

bool dcp_megatron_legacy_lost_experts(const struct dcp_megatron_legacy *m)
{
	return m->tp % m->etp != 0;
}

void dcp_megatron_legacy_dir(const struct dcp_megatron_legacy *m, uint32_t tp, uint32_t pp,
			     uint32_t ep, char name[DCP_MEGATRON_DIR])
{
	const struct dcp_megatron_rank *one = dcp_megatron_legacy_rank(
		m, DCP_MEGATRON_ANY, DCP_MEGATRON_ANY, DCP_MEGATRON_ANY, DCP_MEGATRON_ANY);
	unsigned numbers = one ? one->nnumbers : 1;
	int at = snprintf(name, DCP_MEGATRON_DIR, "mp_rank_%02u", tp);

	if (numbers > 1)
		at += snprintf(name + at, (size_t)(DCP_MEGATRON_DIR - at), "_%03u",
			       numbers == 2 && m->pp == 1 ? ep : pp);
	if (numbers > 2)
		snprintf(name + at, (size_t)(DCP_MEGATRON_DIR - at), "_%03u", ep);
}

static bool is_one(uint32_t want, uint32_t is)
{
	return want == DCP_MEGATRON_ANY || want == is;
}

struct dcp_megatron_rank *dcp_megatron_legacy_rank(const struct dcp_megatron_legacy *m,
						   uint32_t tp, uint32_t pp, uint32_t ep,
						   uint32_t etp)
{
	struct dcp_megatron_rank *found = NULL;

	for (size_t i = 0; i < m->n; i++) {
		struct dcp_megatron_rank *r = &m->rank[i];

		if (!r->file || !is_one(tp, r->tp) || !is_one(pp, r->pp) ||
		    !is_one(ep, r->ep) || !is_one(etp, r->tp % m->etp))
			continue;
		if (!r->error)
			return r;
		found = found ? found : r;
	}
	return found;
}

void dcp_megatron_legacy_expected(const struct dcp_megatron_legacy *m, uint32_t tp,
				  uint32_t *first, uint32_t *step)
{
	uint32_t groups = dcp_megatron_legacy_lost_experts(m) ? 1 : m->tp / m->etp;

	/* Ranks tp, tp + TP, tp + 2 TP ... of the stage, as long as there are experts for them. */
	*first = tp / m->etp % m->ep;
	if (groups == 1)
		*first = 0;
	*step = groups >= m->ep ? m->ep : groups;
}

int dcp_megatron_place_print(const struct dcp_megatron_place *p, struct dcp_buf *out)
{
	dcp_buf_reset(out);
	return dcp_buf_printf(out, "%u/%u/%u/%s", p->chunk, p->stage, p->ep, p->key);
}

/* The arguments of a Megatron-LM run, as each of its files has them: an argparse.Namespace. */

static bool is_said(struct dcp_pv args, const char *name)
{
	return dcp_pv_at(args, name).type != DCP_PV_NONE;
}

static uint64_t number_of(struct dcp_pv args, const char *name)
{
	uint64_t n = 0;

	return dcp_pv_u64(dcp_pv_at(args, name), &n) && n <= INT32_MAX ? n : 0;
}

static bool is_true(struct dcp_pv args, const char *name)
{
	return number_of(args, name) != 0;
}

/* Each group of queries has one key and one value; with an output gate, queries count twice.
 * Returns 0 for arguments that are older than groups: forks had other layouts at that time. */
static uint64_t count_qkv_heads(struct dcp_pv args, uint64_t heads)
{
	uint64_t groups = heads;

	if (!is_said(args, "group_query_attention"))
		return 0;
	if (is_true(args, "group_query_attention"))
		groups = number_of(args, "num_query_groups");
	if (!heads || !groups)
		return 0;
	return heads * (is_true(args, "attention_output_gate") ? 2 : 1) + 2 * groups;
}

static void take_args(struct dcp_margs *a, struct dcp_pv args)
{
	*a = (struct dcp_margs){
		.tp = number_of(args, "tensor_model_parallel_size"),
		.pp = number_of(args, "pipeline_model_parallel_size"),
		.ep = number_of(args, "expert_model_parallel_size"),
		.etp = number_of(args, "expert_tensor_parallel_size"),
		.layers = number_of(args, "num_layers"),
		.hidden = number_of(args, "hidden_size"),
		.ffn = number_of(args, "ffn_hidden_size"),
		.heads = number_of(args, "num_attention_heads"),
		.vocab = number_of(args, "padded_vocab_size"),
		.experts = number_of(args, "num_experts"),
		.kv_channels = number_of(args, "kv_channels"),
		.varied = is_said(args, "heterogeneous_layers_config_path") ||
			  is_said(args, "heterogeneous_layers_config_encoded_json"),
	};
	a->moe_ffn = number_of(args, "moe_ffn_hidden_size");
	if (!a->moe_ffn)
		a->moe_ffn = a->ffn;
	if (!a->tp) /* before checkpoint_version 3 */
		a->tp = number_of(args, "model_parallel_size");
	a->value_channels = a->kv_channels;
	if (is_true(args, "multi_latent_attention"))
		a->value_channels = number_of(args, "v_head_dim");
	a->q_rank = number_of(args, "q_lora_rank");
	a->kv_rank = number_of(args, "kv_lora_rank");
	if (a->kv_rank)
		a->kv_rank += number_of(args, "qk_pos_emb_head_dim");
	a->qkv_heads = count_qkv_heads(args, a->heads);
}

void dcp_megatron_legacy_read_args(struct dcp_megatron_legacy *m, struct dcp_pv root)
{
	const struct dcp_pv *args = dcp_pv_get(root, "args");
	const struct dcp_pv version = dcp_pv_at(root, "checkpoint_version");
	uint64_t n;

	/* Megatron reads a file without a version as version 0. */
	m->version = 0;
	if (version.type == DCP_PV_FLOAT)
		m->version = version.f;
	else if (dcp_pv_u64(version, &n))
		m->version = (double)n;
	if (args)
		take_args(&m->args, *args);
}

enum { MAX_STARS = 8 }; /* in a glob: each star multiplies the ways to match it */

/* A rule of the file, and where its glob starts in text. */
struct entry {
	struct dcp_megatron_rule rule;
	size_t glob;
};

#define REPLICATE                                                                              \
	{                                                                                      \
		.replicate = true                                                              \
	}
#define CUT(d)                                                                                 \
	{                                                                                      \
		.dim = (d), .groups = 1                                                        \
	}
#define GATED(d)                                                                               \
	{                                                                                      \
		.gated = true, .dim = (d), .groups = 1                                         \
	}
/* The order of each rank's rows: in old versions (parts, heads, head size), later (heads, parts,
 * head size). */
#define FUSED(parts)                                                                           \
	{                                                                                      \
		.dim = 0, .groups = 1, .old = (parts)                                          \
	}

/*
 * Column-parallel layers are cut along their outputs (dim 0), and so is their bias. Row-parallel
 * layers are cut along their inputs (dim 1), and every rank has their whole bias. Sources:
 * megatron/core/transformer and tensor_parallel/layers.py, and megatron/model of 2019 to 2023.
 */
/* clang-format off */
static const struct {
	const char *glob;
	struct dcp_megatron_rule rule;
} known[] = {
	{ "*._extra_state*", REPLICATE }, /* Megatron itself keeps the first rank's */
	/* norms first: some are parts of linear layers (linear_qkv.layer_norm_weight) */
	{ "*.mixer.norm.weight", CUT(0) }, /* Mamba's, over the inner dimension, which is cut */
	{ "*norm*", REPLICATE },
	{ "*position_embeddings.weight", REPLICATE },
	{ "*tokentype_embeddings.weight", REPLICATE },
	{ "*rotary_pos_emb*", REPLICATE },
	{ "*router.*", REPLICATE },
	{ "*shared_experts.gate_weight", REPLICATE },
	{ "*pooler.*", REPLICATE },
	{ "*binary_head.*", REPLICATE },
	{ "*lm_head.dense.*", REPLICATE },
	{ "*_down_proj.*", REPLICATE }, /* multi-latent attention; but see dcp_megatron_join_see_latent() */
	{ "*_latent_proj.*", REPLICATE }, /* experts in a smaller space */
	/* column-parallel */
	{ "*word_embeddings.weight", CUT(0) },
	{ "word_embeddings_for_head.weight", CUT(0) },
	{ "*output_layer.weight", CUT(0) },
	{ "*output_layer.bias", CUT(0) },
	{ "*lm_head.weight", CUT(0) },
	{ "*lm_head.bias", CUT(0) },
	{ "*linear_qkv.weight", CUT(0) },
	{ "*linear_qkv.bias", CUT(0) },
	{ "*linear_q.weight", CUT(0) },
	{ "*linear_q.bias", CUT(0) },
	{ "*linear_kv.weight", CUT(0) },
	{ "*linear_kv.bias", CUT(0) },
	{ "*linear_q_proj.*", CUT(0) },
	{ "*_up_proj.*", CUT(0) },
	{ "*query_key_value.*", FUSED(3) },
	{ "*attention.query.*", CUT(0) },
	{ "*attention.key_value.*", FUSED(2) },
	{ "*.softmax_offset", CUT(0) },
	{ "*.eh_proj.weight", CUT(0) },
	{ "*.mixer.A_log", CUT(0) },
	{ "*.mixer.D", CUT(0) },
	{ "*.mixer.dt_bias", CUT(0) },
	{ "*linear_fc1.weight*", GATED(0) },
	{ "*linear_fc1.bias*", GATED(0) },
	{ "*dense_h_to_4h.weight", GATED(0) },
	{ "*dense_h_to_4h.bias", GATED(0) },
	/* experts of a grouped GEMM in one matrix, as [experts, inputs, outputs] */
	{ "*.experts.weight1", GATED(2) },
	{ "*.experts.weight2", CUT(1) },
	/* row-parallel */
	{ "*linear_proj.weight", CUT(1) },
	{ "*attention.dense.weight", CUT(1) },
	{ "*linear_fc2.weight*", CUT(1) },
	{ "*.mixer.out_proj.weight", CUT(1) },
	{ "*dense_4h_to_h.weight", CUT(1) },
	{ "*linear_proj.bias", REPLICATE },
	{ "*attention.dense.bias", REPLICATE },
	{ "*linear_fc2.bias*", REPLICATE },
	{ "*dense_4h_to_h.bias", REPLICATE },
};
/* clang-format on */

bool dcp_megatron_rules_find(const struct dcp_megatron_rules *r, const char *key,
			     struct dcp_megatron_rule *out)
{
	const struct entry *own = DCP_ITEMS(r->list, struct entry);

	for (size_t i = 0; i < r->list.n / sizeof(*own); i++)
		if (fnmatch(r->text.p + own[i].glob, key, 0) == 0) {
			*out = own[i].rule;
			return true;
		}
	for (size_t i = 0; i < DCP_LEN(known); i++)
		if (fnmatch(known[i].glob, key, 0) == 0) {
			*out = known[i].rule;
			return true;
		}
	return false;
}

/* Read "4:1:1)", after which nothing may follow. */
static bool read_sizes(const char *s, struct dcp_megatron_rule *rule)
{
	int end = 0;

	for (rule->nsizes = 0; rule->nsizes < DCP_MEGATRON_MAX_SIZES; s++) {
		uint32_t *size = &rule->size[rule->nsizes];

		if (sscanf(s, " %7u %n", size, &end) != 1 || *size == 0)
			return false;
		rule->nsizes++;
		s += end;
		if (*s != ':')
			return strcmp(s, ")") == 0;
	}
	return false;
}

static bool read_placement(const char *s, struct dcp_megatron_rule *rule)
{
	int end = 0;

	rule->groups = 1;
	if (strcmp(s, "replicate") == 0) {
		rule->replicate = true;
		return true;
	}
	if (sscanf(s, "shard( %2u %n", &rule->dim, &end) != 1)
		return false;
	s += end;
	if (strcmp(s, ")") == 0)
		return true;
	end = 0;
	if (sscanf(s, ", groups = %4u )%n", &rule->groups, &end) == 1 && end && !s[end])
		return rule->groups > 0;
	rule->groups = 1;
	end = 0;
	sscanf(s, ", parts =%n", &end);
	return end && read_sizes(s + end, rule);
}

static int count_stars(const char *glob)
{
	int n = 0;

	for (; *glob; glob++)
		n += *glob == '*';
	return n;
}

static int read_line(struct dcp_megatron_rules *r, char *line, unsigned number,
		     struct dcp_err *err)
{
	char *end = line + strcspn(line, "#"), *space;
	struct entry e = { .rule = { .line = number }, .glob = r->text.n };

	while (end > line && strchr(" \t\r", end[-1]))
		end--;
	*end = '\0';
	line += strspn(line, " \t");
	if (!*line)
		return 0;
	space = line + strcspn(line, " \t");
	if (*space)
		*space++ = '\0';
	space += strspn(space, " \t");
	if (count_stars(line) > MAX_STARS)
		return dcp_fail(err, -EBADMSG,
				DCP_MEGATRON_RULES ":%u: a glob of more than %d stars", number,
				MAX_STARS);
	if (!read_placement(space, &e.rule))
		return dcp_fail(err, -EBADMSG,
				DCP_MEGATRON_RULES ":%u: \"%.80s\" does not say how it is cut: "
						   "expected replicate, shard(D), "
						   "shard(D, groups=N) or "
						   "shard(D, parts=N:N...)",
				number, line);
	dcp_buf_add(&r->text, line, strlen(line) + 1);
	dcp_buf_add(&r->list, &e, sizeof(e));
	return dcp_buf_error(&r->text) | dcp_buf_error(&r->list);
}

int dcp_megatron_rules_parse(struct dcp_megatron_rules *r, const char *text, size_t n,
			     struct dcp_err *err)
{
	const char *end = text + n;
	int rc = 0;

	for (unsigned number = 1; text < end && rc == 0; number++) {
		const char *stop = memchr(text, '\n', (size_t)(end - text));
		size_t len = (size_t)((stop ? stop : end) - text);
		char line[1024];

		if (len >= sizeof(line) || memchr(text, '\0', len))
			return dcp_fail(err, -EBADMSG,
					DCP_MEGATRON_RULES
					":%u: a line of at most %zu characters "
					"is expected",
					number, sizeof(line) - 1);
		memcpy(line, text, len);
		line[len] = '\0';
		rc = read_line(r, line, number, err);
		text += len + 1;
	}
	return rc;
}

void dcp_megatron_rules_finish(struct dcp_megatron_rules *r)
{
	dcp_buf_finish(&r->text);
	dcp_buf_finish(&r->list);
}
