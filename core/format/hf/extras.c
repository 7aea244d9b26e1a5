/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/hf/extras.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/format/format.h"
#include "core/format/hf/name.h"
#include "core/format/torch/state.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/torch/torch.h"

static bool matches(const char *const *globs, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (fnmatch(globs[i], name, FNM_PERIOD) == 0)
			return true;
	return false;
}

bool dcp_hf_is_sidecar(const char *name)
{
	static const char *const globs[] = {
		"*.json",  "*.jsonl", "*.txt",       "*.md",     "*.jinja",
		"*.model", "*.py",    "*.tiktoken",  "*.vocab",  "*.bpe",
		"*.spm",   "*.yaml",  "*.yml",       "LICENSE*", "LICENCE*",
		"README*", "NOTICE*", "USE_POLICY*", "COPYING*", "MODEL_CARD*",
	};
	struct dcp_hf_name unused;

	return matches(globs, DCP_LEN(globs), name) &&
	       dcp_hf_name(name, &unused) == DCP_HF_OTHER;
}

/* By name a file of torch.save; @sure: no other program uses such a name. */
static bool may_be_state(const char *name, bool *sure)
{
	static const char *const ours[] = { "*.pt", "*.pth", "random_states_[0-9]*.pkl",
					    "custom_checkpoint_[0-9]*.pkl" };
	static const char *const maybe[] = { "*.bin", "*.ckpt" };

	*sure = matches(ours, DCP_LEN(ours), name);
	return *sure || matches(maybe, DCP_LEN(maybe), name);
}

/* Also in containers dcpfs does not read, or not beside others. */
bool dcp_hf_may_be_weights(const char *name)
{
	static const char *const globs[] = { "*.safetensors", "*.bin",     "*.ckpt",  "*.pth",
					     "*.pt",          "*.h5",      "*.ot",    "*.onnx",
					     "*.msgpack",     "*.gguf",    "*.pkl",   "*.npz",
					     "*.tflite",      "*.mlmodel", "*.distcp" };

	return matches(globs, DCP_LEN(globs), name);
}

/* The weights that are shown, once more: by torch.save, or under Meta's names. */
static bool is_twin(const char *name)
{
	struct dcp_hf_name n;

	if (fnmatch("consolidated.*.pth", name, 0) == 0)
		return true;
	return dcp_hf_name(name, &n) != DCP_HF_OTHER && dcp_hf_is_weights(n.set);
}

static int leave_out(const struct dcp_load *in, const char *name)
{
	return dcp_emit_meta(in->sink, "left_out", name);
}

/* All that a file of torch.save holds, below its name. */
static int emit_state(const struct dcp_load *in, const char *name, bool sure)
{
	char stem[DCP_GROUP_MAX];
	const char *prefix = stem;
	struct dcp_tstate s = {
		.sink = in->sink, .prefix = &prefix, .nprefix = 1, .tuples = true
	};
	struct dcp_err why = { 0 };
	dcp_auto_torch struct dcp_torch *t = NULL;
	struct dcp_stretch all = { 0 };
	int rc = dcp_emit_file(in->sink, name, &s.file);

	if (rc < 0)
		return rc;
	snprintf(stem, sizeof(stem), "%.*s", (int)dcp_stem(name), name);
	rc = dcp_torch_open_file(in->dir, name, &t, &why);
	if (rc == 0)
		rc = dcp_tstate_check(t, name, &why);
	if (rc == -ENOMEM)
		return rc;
	if (rc < 0)
		return sure ? dcp_emit_broken(in->sink, stem, why.msg) : leave_out(in, name);
	s.t = t;
	all.file = s.file;
	all.nbytes = all.n = dcp_torch_size(t);
	s.stored = &all;
	return dcp_tstate_emit(&s);
}

static int emit_one(const struct dcp_load *in, const char *name)
{
	bool sure;

	if (dcp_hf_is_sidecar(name))
		return dcp_emit_sidecar(in->sink, name);
	if (!is_twin(name) && may_be_state(name, &sure) && strlen(name) < DCP_GROUP_MAX)
		return emit_state(in, name, sure);
	return dcp_hf_may_be_weights(name) ? leave_out(in, name) : 0;
}

int dcp_hf_emit_rest(const struct dcp_load *in, bool (*shown)(void *ctx, const char *name),
		     void *ctx)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < in->dir->n; i++) {
		const struct dcp_dirent *e = &in->dir->entries[i];

		if (!e->is_dir && *e->name != '.' && !shown(ctx, e->name))
			rc = emit_one(in, e->name);
	}
	return rc;
}
