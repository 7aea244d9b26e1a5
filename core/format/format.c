/* SPDX-License-Identifier: Apache-2.0 */
#include "core/format/format.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/base.h"
#include "core/model/tensor.h"
#include "core/origin/dir/dir.h"
#include "core/parse/parse.h"
#include "core/parse/safetensors/safetensors.h"

const struct dcp_format *dcp_format_probe_in(dcp_families all, const struct dcp_format *but,
					     const struct dcp_dir *dir, enum dcp_match *match,
					     char *why, size_t n)
{
	const struct dcp_format *second = NULL;
	char text[512];

	*match = DCP_MATCH_NO;
	for (size_t i = 0; all[i]; i++) {
		enum dcp_match m;

		if (all[i] == but)
			continue;
		text[0] = '\0';
		m = all[i]->probe(dir, text, sizeof(text));
		if (m == DCP_MATCH_YES) {
			*match = m;
			return all[i];
		}
		if (m == DCP_MATCH_NO || second)
			continue;
		second = all[i];
		*match = m;
		if (n > 0) {
			size_t len = strnlen(text, DCP_MIN(n, sizeof(text)) - 1);

			memcpy(why, text, len);
			why[len] = '\0';
		}
	}
	return second;
}

const struct dcp_format *dcp_format_by_content(dcp_families all, const struct dcp_dir *dir)
{
	uint8_t head[DCP_MAGIC_HEAD];
	struct dcp_input input;
	size_t n;
	int rc;

	if (!dir->is_file || dcp_dir_input(dir, dir->entries[0].name, &input, NULL) < 0)
		return NULL;
	n = (size_t)DCP_MIN(input.src.size, (uint64_t)sizeof(head));
	rc = dcp_source_read(&input.src, 0, head, n);
	dcp_input_close(&input);
	for (size_t i = 0; rc == 0 && all[i]; i++)
		if (all[i]->begins && all[i]->begins(head, n))
			return all[i];
	return NULL;
}

int dcp_emit_broken(const struct dcp_sink *sink, const char *name, const char *why)
{
	struct dcp_object o = {
		.key = name, .path = &name, .npath = 1, .type = "", .error = why
	};

	return dcp_emit_object(sink, &o);
}

static bool is_of_one_file(const char *name)
{
	return strcmp(name, "DCP_SHARDING_INFO") == 0 || strcmp(name, "DCP_VERSION") == 0 ||
	       strncmp(name, "dcpfs.", 6) == 0;
}

int dcp_emit_metadata(const struct dcp_sink *sink, const char *file,
		      const struct dcp_safetensors *st)
{
	int rc = dcp_emit_said(sink, file, NULL, NULL);

	for (size_t i = 0; rc == 0 && i < st->nmeta; i++)
		if (!is_of_one_file(st->meta[2 * i]))
			rc = dcp_emit_said(sink, file, st->meta[2 * i], st->meta[2 * i + 1]);
	return rc;
}

int dcp_emit_fact(const struct dcp_sink *sink, int rc, const char *name, const char *fmt, ...)
{
	dcp_auto_free char *text = NULL;
	va_list ap;

	if (rc < 0)
		return rc;
	va_start(ap, fmt);
	if (vasprintf(&text, fmt, ap) < 0)
		text = NULL;
	va_end(ap);
	if (!text)
		return -ENOMEM;
	return *text ? dcp_emit_meta(sink, name, text) : rc;
}

void dcp_load_progress(const struct dcp_load *in, uint64_t done, uint64_t total,
		       const char *what)
{
	if (in->progress)
		in->progress->report(in->progress->ctx, done, total, what);
}

/* ---- files that go together ---- */

struct chosen {
	const struct dcp_format *format;
	const char *group;
};

static bool in_group(void *ctx, const struct dcp_dirent *e)
{
	const struct chosen *c = ctx;
	char group[DCP_GROUP_MAX];

	return !e->is_dir && c->format->group(e->name, group) && strcmp(group, c->group) == 0;
}

int dcp_format_group(const struct dcp_format *format, const struct dcp_dir *dir,
		     const char *group, struct dcp_dir *out)
{
	struct chosen c = { format, group };

	return dcp_dir_only(dir, in_group, &c, out);
}

/* List the families whose checkpoints are files of @dir, as numbers in @all. */
static int families_of_files(dcp_families all, const struct dcp_dir *dir, struct dcp_buf *many)
{
	for (uint32_t i = 0; all[i]; i++) {
		enum dcp_match match =
			all[i]->group ? all[i]->probe(dir, (char[1]){ 0 }, 0) : DCP_MATCH_NO;

		if (match == DCP_MATCH_MANY || match == DCP_MATCH_YES)
			dcp_buf_add(many, &i, sizeof(i));
	}
	return dcp_buf_error(many) ? -ENOMEM : 0;
}

/* The first of these families that claims a file with this name. */
static const struct dcp_format *owner_of(dcp_families all, const struct dcp_buf *many,
					 const char *name, char group[DCP_GROUP_MAX])
{
	const uint32_t *at = DCP_ITEMS(*many, uint32_t);

	for (size_t i = 0; i < DCP_NITEMS(*many, uint32_t); i++)
		if (all[at[i]]->group(name, group))
			return all[at[i]];
	return NULL;
}

static int note_group(struct dcp_groups *g, const struct dcp_format *format, const char *name)
{
	struct dcp_group one = { .format = format };
	int code =
		dcp_intern_add(&g->names, name, strlen(name) + 1, DCP_INTERN_NONE, &one.name);

	if (code == 1) {
		dcp_buf_add(&g->list, &one, sizeof(one));
		g->at = DCP_ITEMS(g->list, struct dcp_group);
		g->n++;
	}
	return code < 0 || dcp_buf_error(&g->list) ? -ENOMEM : 0;
}

int dcp_groups_list(dcp_families all, const struct dcp_dir *dir,
		    bool (*is_text_link)(const struct dcp_dir *, const struct dcp_dirent *),
		    struct dcp_groups *g)
{
	dcp_auto_buf struct dcp_buf many = DCP_BUF_INIT;
	char group[DCP_GROUP_MAX];
	int code = families_of_files(all, dir, &many);

	for (int links = 0; links < 2 && g->n == 0; links++)
		for (size_t i = 0; code == 0 && i < dir->n; i++) {
			const struct dcp_dirent *e = &dir->entries[i];
			const struct dcp_format *f =
				e->is_dir ? NULL : owner_of(all, &many, e->name, group);

			if (f && e->is_link == links && !(is_text_link && is_text_link(dir, e)))
				code = note_group(g, f, group);
		}
	return code;
}

void dcp_groups_finish(struct dcp_groups *g)
{
	dcp_intern_finish(&g->names);
	dcp_buf_finish(&g->list);
}

/* Families that dcpfs does not read: rows without load(), for messages that say what was found and
 * what to do. Where two fit, the first is the better guess. */

#define ZARR "open it with zarr or tensorstore and save safetensors"
#define JAX "save it in JAX as safetensors (safetensors.flax.save_file), or as torch DCP"

const struct dcp_mark dcp_foreign[] = {
	{ "*.tensors", "a model of tensorizer (CoreWeave)",
	  "load it with tensorizer.TensorDeserializer and save a state_dict of it as "
	  "safetensors" },
	{ "_CHECKPOINT_METADATA", "an Orbax checkpoint", JAX },
	{ "ocdbt.process_*", "an Orbax checkpoint (OCDBT)", JAX },
	{ "_METADATA", "an Orbax checkpoint", JAX },
	{ "manifest.ocdbt", "a TensorStore OCDBT database (Orbax)", JAX },
	{ "*.orbax-checkpoint-tmp*", "an Orbax checkpoint that was not finished", JAX },
	{ ".snapshot_metadata", "a torchsnapshot checkpoint",
	  "restore it with torchsnapshot and save it as torch DCP" },
	{ "@(zarr.json|.zgroup)", "a Zarr store", ZARR },
	{ ".zarray", "one array of a Zarr store (TensorStore)", ZARR },
	{ "@(.zmetadata|*.zarr)", "a Zarr store", ZARR },
	{ "*.gguf", "a GGUF model of llama.cpp", "take the safetensors it was converted from" },
	{ "*.ggml", "a GGML model of llama.cpp", "take the safetensors it was converted from" },
	{ "saved_model.pb", "a TensorFlow SavedModel",
	  "load it in TensorFlow and save its variables as safetensors" },
	{ "@(*.data-00000-of-*|*.ckpt.index|*.ckpt-[0-9]*.index)", "a TensorFlow checkpoint",
	  "load it in TensorFlow and save its variables as safetensors" },
	{ "*.keras", "a Keras model", "load it in Keras and save its weights as safetensors" },
	{ "@(*.h5|*.hdf5)", "a HDF5 file (Keras)",
	  "load it in Keras or h5py and save safetensors" },
	{ "*.onnx", "an ONNX model: a program, not a checkpoint",
	  "take the weights it was made of" },
	{ "*.onnx_data", "data of an ONNX model", "take the weights it was made of" },
	{ "*.pte", "an ExecuTorch program", "take the state_dict it was exported from" },
	{ "*.ptl", "a TorchScript program (PyTorch Mobile)",
	  "load it with torch.jit.load and save its state_dict with torch.save" },
	{ "*.pt2", "an exported program (torch.export)",
	  "load it with torch.export.load and save its state_dict with torch.save" },
	{ "*.tflite", "a TensorFlow Lite program", "take the weights it was made of" },
	{ "@(*.mlmodel|*.mlpackage)", "a Core ML program", "take the weights it was made of" },
	{ "@(*.engine|*.plan)", "a TensorRT engine", "take the weights it was built from" },
	{ "*.msgpack", "a Flax checkpoint (msgpack)", JAX },
	{ "*.caffemodel", "a Caffe model", "convert it to PyTorch and save that" },
	{ "*.params", "an MXNet checkpoint", "load it in MXNet and save numpy arrays" },
	{ "*.mar", "a TorchServe archive", "unpack it: it is a zip file" },
	{ "*.llamafile", "a llamafile program", "take the safetensors it was converted from" },
	{ 0 },
};
