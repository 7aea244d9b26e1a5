/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of config.json. Families of models have different names for the same number. */
#include "core/rules/rules_int.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/base/buf.h"
#include "core/base/bytes.h"
#include "core/parse/json.h"

/* The numbers: the name in rules, and the names in config.json, of which the first that is found
 * counts. */
static const struct {
	const char *word;
	size_t at;
	const char *name[4];
} numbers[] = {
/* clang-format off */
#define NUMBER(field, ...) { #field, offsetof(struct dcp_rules_config, field), { __VA_ARGS__ } }
	/* clang-format on */
	NUMBER(heads, "num_attention_heads", "n_head", "n_heads", "num_heads"),
	NUMBER(kv_heads, "num_key_value_heads", "multi_query_group_num", "num_kv_heads"),
	NUMBER(head_dim, "head_dim", "kv_channels"),
	NUMBER(hidden, "hidden_size", "n_embd", "d_model", "dim"),
	NUMBER(intermediate, "intermediate_size", "n_inner", "ffn_hidden_size", "hidden_dim"),
	NUMBER(layers, "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
	NUMBER(vocab, "vocab_size", "padded_vocab_size"),
	NUMBER(positions, "max_position_embeddings", "n_positions", "max_seq_len"),
	NUMBER(experts, "num_local_experts", "num_experts", "n_routed_experts"),
	NUMBER(moe_intermediate, "moe_intermediate_size"),
	NUMBER(shared_experts, "n_shared_experts"),
	NUMBER(shared_intermediate, "shared_expert_intermediate_size"),
	NUMBER(q_rank, "q_lora_rank"),
	NUMBER(kv_rank, "kv_lora_rank"),
	NUMBER(nope_dim, "qk_nope_head_dim"),
	NUMBER(rope_dim, "qk_rope_head_dim"),
	NUMBER(v_dim, "v_head_dim"),
	NUMBER(vision_heads, "num_heads", "num_attention_heads"),
	NUMBER(vision_patch, "patch_size"),
	NUMBER(dense_layers, "first_k_dense_replace"),
	NUMBER(moe_step, "decoder_sparse_step", "moe_layer_freq"),
	NUMBER(mtp_layers, "num_nextn_predict_layers"),
};

enum { SILENT = 3 }; /* this many numbers at the end have no name in rules */

const size_t dcp_rules_nwords = DCP_LEN(numbers) - SILENT;

static void read_number(const struct dcp_json *o, size_t i, struct dcp_rules_config *out)
{
	uint64_t v = 0;

	for (size_t k = 0; k < DCP_LEN(numbers[i].name) && numbers[i].name[k]; k++)
		if (dcp_json_u64(dcp_json_get(o, numbers[i].name[k]), &v))
			break;
	memcpy((char *)out + numbers[i].at, &v, sizeof(v));
}

static void read_text(const struct dcp_json *o, char out[64])
{
	const char *text = dcp_json_str(o);

	if (text)
		snprintf(out, 64, "%s", text);
}

int dcp_rules_config_parse(const char *text, size_t n, struct dcp_rules_config *out,
			   struct dcp_err *err)
{
	const struct dcp_json *o, *inner, *vision;
	dcp_auto_json struct dcp_json *root = NULL;
	const char *type;
	int rc = dcp_json_parse(text, n, &root, err);

	if (rc < 0)
		return rc;
	/* Models of text and images have the config of the text model inside. */
	inner = dcp_json_get(root, "text_config");
	o = dcp_json_is_object(inner) ? inner : root;
	vision = dcp_json_get(root, "vision_config");
	*out = (struct dcp_rules_config){
		.tie = -1,
		.attention_bias = -1,
		.mlp_bias = -1,
		.quantized = dcp_json_is_object(dcp_json_get(root, "quantization_config")) ||
			     dcp_json_is_object(dcp_json_get(root, "compression_config")),
	};
	for (size_t i = 0; i < DCP_LEN(numbers); i++)
		read_number(strncmp(numbers[i].word, "vision", 6) == 0 ? vision : o, i, out);
	if (!out->kv_heads)
		out->kv_heads = out->heads;
	if (!out->head_dim && out->heads && out->hidden % out->heads == 0)
		out->head_dim = out->hidden / out->heads;
	read_text(dcp_json_get(root, "model_type"), out->model_type);
	read_text(dcp_json_get(root, "_class_name"), out->class_name);
	read_text(dcp_json_at(dcp_json_get(root, "architectures"), 0), out->architecture);
	type = dcp_json_str(dcp_json_get(o, "dtype"));
	if (!type)
		type = dcp_json_str(dcp_json_get(o, "torch_dtype"));
	if (type)
		out->dtype = dcp_dtype_from_torch(type, strlen(type));
	dcp_json_bool(dcp_json_get(root, "tie_word_embeddings"), &out->tie);
	dcp_json_bool(dcp_json_get(o, "attention_bias"), &out->attention_bias);
	dcp_json_bool(dcp_json_get(o, "mlp_bias"), &out->mlp_bias);
	return 0;
}

/* ---- with another dtype ---- */

struct retyping {
	const char *text; /* all of config.json */
	size_t done;      /* bytes of text that are in out already */
	const char *name; /* name of the new dtype */
	struct dcp_buf *out;
	bool any;
};

static bool is_name(struct dcp_bytes s, const char *name)
{
	return s.n == strlen(name) + 2 && memcmp(s.p + 1, name, s.n - 2) == 0;
}

static void copy_to(struct retyping *r, const uint8_t *end)
{
	size_t n = (size_t)((const char *)end - r->text);

	dcp_buf_add(r->out, r->text + r->done, n - r->done);
	r->done = n;
}

/* Replace the value "float32" or "torch.float32". */
static void retype_value(struct retyping *r, struct dcp_bytes value)
{
	static const char torch[] = "torch.";
	size_t skip = sizeof(torch) - 1;
	const char *s = (const char *)value.p + 1;
	size_t n = value.n - 2;
	enum dcp_dtype was;

	skip = n > skip && memcmp(s, torch, skip) == 0 ? skip : 0;
	was = dcp_dtype_from_torch(s + skip, n - skip);
	if (!dcp_dtype_can_add(was))
		return;
	r->any = true;
	copy_to(r, (const uint8_t *)s + skip);
	dcp_buf_str(r->out, r->name);
	r->done += n - skip;
}

/* @object is JSON that was parsed, so its depth has a limit. */
static void retype_object(struct retyping *r, struct dcp_bytes object)
{
	struct dcp_json_walk w = { .text = (const char *)object.p, .n = object.n };
	struct dcp_bytes name, value;

	while (dcp_json_walk(&w, &name, &value, NULL) == 1) {
		if (*value.p == '{')
			retype_object(r, value);
		else if (*value.p == '"' &&
			 (is_name(name, "dtype") || is_name(name, "torch_dtype")))
			retype_value(r, value);
	}
}

/* Insert the dtype as the first member, indented like the previous first member. */
static void add_dtype(struct retyping *r, size_t n)
{
	struct dcp_json_walk w = { .text = r->text, .n = n };
	struct dcp_bytes name, value;
	const char *open = memchr(r->text, '{', n);

	if (!open || dcp_json_walk(&w, &name, &value, NULL) != 1)
		return;
	r->any = true;
	copy_to(r, name.p);
	dcp_buf_printf(r->out, "\"torch_dtype\": \"%s\",", r->name);
	r->done = (size_t)(open + 1 - r->text);
	if ((const uint8_t *)open + 1 == name.p)
		dcp_buf_str(r->out, " ");
}

int dcp_rules_config_retype(const char *text, size_t n, enum dcp_dtype to, struct dcp_buf *out)
{
	struct retyping r = { .text = text, .name = dcp_dtype_info(to)->torch, .out = out };
	dcp_auto_json struct dcp_json *root = NULL;

	if (!n || dcp_json_parse(text, n, &root, NULL) < 0 || !dcp_json_is_object(root))
		return 0;
	retype_object(&r, (struct dcp_bytes){ (const uint8_t *)text, n });
	if (!r.any && (dcp_json_str(dcp_json_get(root, "model_type")) ||
		       dcp_json_is_array(dcp_json_get(root, "architectures"))))
		add_dtype(&r, n);
	if (!r.any)
		return 0;
	copy_to(&r, (const uint8_t *)text + n);
	return dcp_buf_error(out) ? dcp_buf_error(out) : 1;
}

/* ---- as rules call it ---- */

const char *dcp_rules_word(size_t i)
{
	return numbers[i].word;
}

int dcp_rules_word_at(const char *s, size_t n)
{
	for (size_t i = 0; i < dcp_rules_nwords; i++)
		if (strlen(numbers[i].word) == n && memcmp(numbers[i].word, s, n) == 0)
			return (int)i;
	return -1;
}

uint64_t dcp_rules_word_value(size_t i, const struct dcp_rules_config *config)
{
	uint64_t v = 0;

	if (config)
		memcpy(&v, (const char *)config + numbers[i].at, sizeof(v));
	return v;
}

int dcp_rules_amount(const struct amount *a, const struct dcp_rules_config *config,
		     uint64_t *out, struct dcp_err *err)
{
	*out = 1;
	for (uint32_t i = 0; i < a->n; i++) {
		const struct factor *f = &a->f[i];
		uint64_t v = f->value;

		if (f->word >= 0) {
			v = dcp_rules_word_value((size_t)f->word, config);
			if (v == 0)
				return dcp_fail(err, -EINVAL,
						"it needs %s, which no config.json has",
						numbers[f->word].word);
		}
		if (f->divide && (v == 0 || *out % v))
			return dcp_fail(err, -EINVAL, "%llu is not a multiple of %llu",
					(unsigned long long)*out, (unsigned long long)v);
		if (f->divide)
			*out /= v;
		else if (dcp_ckd_mul(out, *out, v))
			return dcp_fail(err, -EINVAL, "its numbers do not fit in 64 bits");
	}
	return 0;
}

/* Operations on rows that belong to attention heads: pairs and halves of rotary embeddings;
 * queries, keys and values in one tensor. */

#define bad(r, ...) dcp_fail((r)->err, -EINVAL, __VA_ARGS__)

static uint64_t rows_of(const struct work *w)
{
	return w->ndim ? w->shape[0] : 1;
}

/* Can the rows be split into @a times @b times the rest? False: the number of rows is not
 * divisible, or the tensor has no room for more dimensions. */
static bool can_split(const struct work *w, uint64_t a, uint64_t b)
{
	return w->ndim && w->ndim + 2 <= DCP_MAX_NDIM && w->shape[0] &&
	       w->shape[0] % (a * b) == 0;
}

static int split_rows(struct work *w, uint64_t a, uint64_t b)
{
	uint64_t shape[DCP_MAX_NDIM] = { a, b, w->shape[0] / (a * b) };

	memcpy(shape + 3, w->shape + 1, (w->ndim - 1) * sizeof(*shape));
	return dcp_work_reshape(w, w->ndim + 2, shape);
}

/* The inverse of split_rows(): join the first three dimensions. */
static int join_rows(struct work *w)
{
	uint64_t shape[DCP_MAX_NDIM] = { w->shape[0] * w->shape[1] * w->shape[2] };

	memcpy(shape + 1, w->shape + 3, (w->ndim - 3) * sizeof(*shape));
	return dcp_work_reshape(w, w->ndim - 2, shape);
}

/* In each head, rows of pairs (x0 y0 x1 y1 ...) become halves (x0 x1 ... y0 y1 ...), or back. */
static int turn_heads(struct run *r, struct work *w, uint64_t heads, bool back)
{
	uint32_t order[DCP_MAX_NDIM];
	int rc;

	if (w->ndim == 0 || heads == 0 || heads > UINT64_MAX / 2 || w->shape[0] % (2 * heads))
		return bad(r, "%llu rows are not %llu heads of an even size",
			   (unsigned long long)rows_of(w), (unsigned long long)heads);
	if (w->shape[0] == 0)
		return 0;
	if (w->ndim + 2 > DCP_MAX_NDIM)
		return bad(r, "it has too many dimensions");
	rc = split_rows(w, heads, back ? 2 : w->shape[0] / heads / 2);
	for (uint32_t d = 0; d < w->ndim; d++)
		order[d] = d == 1 ? 2 : d == 2 ? 1 : d;
	if (rc == 0)
		rc = dcp_work_permute(w, order);
	return rc < 0 ? rc : join_rows(w);
}

/* A single number of heads applies to every tensor. With several numbers, 0 leaves a tensor
 * unchanged. */
int dcp_rules_rope(struct run *r, const struct op *op, struct flow *f)
{
	bool back = *op->def->name == 'u';
	int rc = 0;

	for (size_t j = 0; rc == 0 && j < f->k * f->e; j++) {
		uint64_t heads;

		rc = dcp_rules_amount(&op->arg[op->narg > 1 ? j / f->e : 0], r->config, &heads,
				      r->err);
		if (rc == 0 && (heads || op->narg == 1))
			rc = turn_heads(r, &f->w[j], heads, back);
	}
	return rc;
}

/* ---- queries, keys and values in one ---- */

/* Compute the number of groups of heads, and of query heads in each group. */
static int read_qkv_numbers(struct run *r, const struct op *op, uint64_t *groups, uint64_t *per)
{
	uint64_t heads;
	int rc = dcp_rules_amount(&op->arg[0], r->config, &heads, r->err);

	if (rc == 0)
		rc = dcp_rules_amount(&op->arg[1], r->config, groups, r->err);
	if (rc < 0)
		return rc;
	if (*groups == 0 || heads == 0 || heads % *groups || heads > UINT32_MAX)
		return bad(r, "%llu heads in %llu groups", (unsigned long long)heads,
			   (unsigned long long)*groups);
	*per = heads / *groups;
	return 0;
}

bool dcp_rules_qkv_order(const char *name, size_t n, enum qkv_order *order)
{
	static const char *const names[] = { [QKV_PARTS_FIRST] = "parts_first",
					     [QKV_PARTS_LAST] = "parts_last",
					     [QKV_STORED] = "stored" };

	for (uint32_t i = QKV_PARTS_FIRST; i < DCP_LEN(names); i++)
		if (n == strlen(names[i]) && memcmp(name, names[i], n) == 0) {
			*order = i;
			return true;
		}
	return false;
}

/* Split the rows into three dimensions; dimension @dim counts query, key and value, or heads. */
static int split_qkv(struct run *r, enum qkv_order order, uint32_t dim, struct work *w,
		     uint64_t groups, uint64_t per)
{
	if (order != QKV_GROUPS && per != 1)
		return bad(
			r,
			"rows with parts first or last have a key and a value for each head, "
			"not for each of %llu groups",
			(unsigned long long)groups);
	if (!can_split(w, groups, per + 2))
		return bad(r,
			   "%llu rows are not %llu groups of %llu heads and a key and a value",
			   (unsigned long long)rows_of(w), (unsigned long long)groups,
			   (unsigned long long)per);
	if (dim == 0)
		return split_rows(w, 3, groups);
	return split_rows(w, groups, dim == 1 ? per + 2 : w->shape[0] / groups / 3);
}

/* Cut the rows of every head or group into three parts: query, key, value. */
int dcp_rules_qkv(struct run *r, const struct op *op, struct flow *f)
{
	struct work *out = dcp_arena_calloc(r->arena, 3 * f->e, sizeof(*out));
	enum qkv_order order = op->order;
	uint64_t groups, per;
	uint32_t dim;
	int rc = out ? read_qkv_numbers(r, op, &groups, &per) : -ENOMEM;

	if (order == QKV_STORED) {
		order = QKV_GROUPS;
		if (r->qkv_order &&
		    !dcp_rules_qkv_order(r->qkv_order, strlen(r->qkv_order), &order))
			return bad(r,
				   "the source says that its rows are in the order "
				   "\"%.40s\", which is not known",
				   r->qkv_order);
	}
	dim = order == QKV_PARTS_FIRST ? 0 : order == QKV_PARTS_LAST ? 2 : 1;
	for (size_t j = 0; rc == 0 && j < f->e; j++) {
		struct work w = f->w[j];

		rc = split_qkv(r, order, dim, &w, groups, per);
		for (uint32_t i = 0; rc == 0 && i < 3; i++) {
			struct work *to = &out[i * f->e + j];

			*to = w;
			rc = dcp_work_narrow(to, dim, i == 0 ? 0 : per + i - 1,
					     i == 0 ? per : 1);
			if (rc == 0)
				rc = join_rows(to);
		}
	}
	f->w = out;
	f->k = 3;
	return rc;
}

int dcp_rules_fuse_qkv(struct run *r, const struct op *op, struct flow *f)
{
	struct work *out = dcp_arena_calloc(r->arena, f->e, sizeof(*out)), part[3];
	uint64_t groups, per;
	int rc = out ? read_qkv_numbers(r, op, &groups, &per) : -ENOMEM;

	for (size_t j = 0; rc == 0 && j < f->e; j++) {
		for (uint32_t i = 0; rc == 0 && i < 3; i++) {
			uint64_t n = i == 0 ? per : 1;

			part[i] = f->w[i * f->e + j];
			if (!can_split(&part[i], groups, n))
				return bad(r, "%llu rows are not %llu heads",
					   (unsigned long long)rows_of(&part[i]),
					   (unsigned long long)(groups * n));
			rc = split_rows(&part[i], groups, n);
		}
		if (rc == 0)
			rc = dcp_work_concat(part, 3, 1, &out[j]);
		if (rc == 0)
			rc = join_rows(&out[j]);
	}
	f->w = out;
	f->k = 1;
	return rc;
}
