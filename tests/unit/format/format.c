/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which family is a directory, by its names alone?
 * covers: formats, format
 */
#include "tests/unit/t.h"

#include "core/format/format.h"
#include "core/origin/dir/dir.h"
#include "tests/unit/t/parse/dir.h"

enum { MAX_NAMES = 8 };

/* clang-format off */
static const struct {
	const char *what;
	const char *names[MAX_NAMES];
	const char *format; /* NULL: of no format */
	enum dcp_match match;
	const char *why;
} cases[] = {
	{ "a DCP directory", { ".metadata", "__0_0.distcp" }, "torch-dcp", DCP_MATCH_YES, NULL },
	{ "its metadata alone is enough to say so", { ".metadata" }, "torch-dcp", DCP_MATCH_YES, NULL },
	{ "Megatron's is more", { ".metadata", "metadata.json", "common.pt", "__0_0.distcp" }, "megatron", DCP_MATCH_YES, NULL },
	{ "Megatron's of zarr", { "metadata.json", "common.pt", "decoder.weight/.zarray" }, "megatron", DCP_MATCH_YES, NULL },
	{ "metadata.json of another program", { "metadata.json", "common.txt", "d/x" }, NULL, DCP_MATCH_NO, NULL },
	{ "Megatron's without its mark", { ".metadata", "common.pt", "__0_0.distcp" }, "parts", DCP_MATCH_YES, NULL },
	{ "ranks of Megatron-LM", { "mp_rank_00_000/model_optim_rng.pt", "mp_rank_00_001/model_optim_rng.pt" }, "megatron-legacy", DCP_MATCH_YES, NULL },
	{ "such a name is not enough", { "mp_rank_00/other.txt" }, NULL, DCP_MATCH_NO, NULL },
	{ "DCP with Lightning's meta.pt", { ".metadata", "__0_0.distcp", "meta.pt" }, "parts", DCP_MATCH_YES, NULL },
	{ "the same, killed", { "__0_0.distcp", "meta.pt" }, "parts", DCP_MATCH_INCOMPLETE, ".metadata is missing" },
	{ "Accelerate", { "pytorch_model_fsdp_0/.metadata", "optimizer_0/.metadata", "random_states_0.pkl" }, "parts", DCP_MATCH_YES, NULL },
	{ "Accelerate, killed in the second part", { "pytorch_model_fsdp_0/.metadata", "optimizer_0/__0_0.distcp" }, "parts", DCP_MATCH_INCOMPLETE, "optimizer_0/.metadata is missing" },
	{ "a model's directory by itself", { "pytorch_model_fsdp_0/.metadata" }, "parts", DCP_MATCH_YES, NULL },
	{ "a name that others use for versions", { "model/.metadata" }, NULL, DCP_MATCH_NO, NULL },
	{ "Hugging Face Trainer", { "config.json", "model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json" }, "parts", DCP_MATCH_YES, NULL },
	{ "its files of several shards, one missing", { "model-00001-of-00002.safetensors", "optimizer.pt" }, "parts", DCP_MATCH_INCOMPLETE, "model-00002-of-00002" },
	{ "arguments do not make a part of a model", { "config.json", "model.safetensors", "training_args.bin" }, "safetensors", DCP_MATCH_YES, NULL },
	{ "states without a model are files", { "optimizer.pt", "scheduler.pt" }, "torch-save", DCP_MATCH_MANY, NULL },
	{ "files of any name are versions", { "a.pt", "b.pt", "optimizer.pt" }, "torch-save", DCP_MATCH_MANY, NULL },
	{ "files of a model's name are not", { "pytorch_model.bin", "pytorch_model_1.bin", "optimizer.bin", "optimizer_1.bin" }, "parts", DCP_MATCH_YES, NULL },
	{ "torchtune", { "model-00001-of-00001.safetensors", "recipe_state/recipe_state.pt" }, "parts", DCP_MATCH_YES, NULL },
	{ "verl", { "actor/model_world_size_1_rank_0.pt", "actor/optim_world_size_1_rank_0.pt", "data.pt" }, "parts", DCP_MATCH_YES, NULL },
	{ "verl, a rank missing", { "actor/model_world_size_2_rank_0.pt", "actor/optim_world_size_1_rank_0.pt", "data.pt" }, "parts", DCP_MATCH_INCOMPLETE, "actor/model_world_size_2_rank_1.pt is missing" },
	{ "verl's actor by itself", { "model_world_size_1_rank_0.pt", "optim_world_size_1_rank_0.pt" }, "parts", DCP_MATCH_YES, NULL },
	{ "a Trainer's DeepSpeed tag, here of DCP", { "global_step5/.metadata", "latest", "scheduler.pt", "rng_state_0.pth" }, "parts", DCP_MATCH_YES, NULL },
	{ "tags are versions by themselves", { "global_step5/.metadata", "latest" }, NULL, DCP_MATCH_NO, NULL },
	{ "several tags are, whatever lies beside them", { "global_step5/.metadata", "global_step6/.metadata", "rng_state.pth" }, "torch-save", DCP_MATCH_MANY, NULL },
	{ "one set of ranks", { "model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt" }, "torch-ranks", DCP_MATCH_YES, NULL },
	{ "two sets of ranks of any name", { "a_rank0.pt", "a_rank1.pt", "b_rank0.pt", "b_rank1.pt" }, "torch-ranks", DCP_MATCH_MANY, NULL },
	{ "one of a set that says it has two", { "model_world_size_2_rank_1.pt" }, "torch-ranks", DCP_MATCH_INCOMPLETE, "model_world_size_2_rank_0.pt is missing" },
	{ "something between the files of a set", { "a_rank0.pt", "a_rank0.pt.json", "a_rank1.pt" }, "torch-ranks", DCP_MATCH_YES, NULL },
	{ "one pickle", { "random_states_0.pkl" }, "pickle", DCP_MATCH_YES, NULL },
	{ "pickles that lie about", { "a.pkl", "b.pkl" }, NULL, DCP_MATCH_NO, NULL },
	{ "a save that was killed", { "__0_0.distcp", "__1_0.distcp" }, "torch-dcp", DCP_MATCH_INCOMPLETE, ".metadata is missing: the save was interrupted or is still running" },
	{ "killed between metadata and rename", { ".metadata.tmp", "__0_0.distcp" }, "torch-dcp", DCP_MATCH_INCOMPLETE, ".metadata.tmp is there" },
	{ "nothing but the temporary metadata", { ".metadata.tmp" }, "torch-dcp", DCP_MATCH_INCOMPLETE, ".metadata is missing" },
	{ "Paddle's shards are not torch's", { "0_0.distcp", "1_0.distcp" }, "paddle-dist", DCP_MATCH_INCOMPLETE, "0.metadata is missing: the save was interrupted or is still running" },
	{ "an id that is no small number", { "20240131.metadata=", "0_20240131.distcp" }, "paddle-dist", DCP_MATCH_YES, NULL },
	{ "metadata that is being written", { "5.metadata", "5.metadata.lock", "0_5.distcp" }, "paddle-dist", DCP_MATCH_INCOMPLETE, "5.metadata is empty" },
	{ "Paddle's in safetensors", { "0.metadata=", "0_0.safetensors" }, "paddle-dist", DCP_MATCH_YES, NULL },
	{ "which prove nothing without metadata", { "0_0.safetensors" }, "safetensors", DCP_MATCH_YES, NULL },
	{ "several ids are versions of their own", { "1.metadata=", "11.metadata=", "0_1.distcp", "0_11.distcp" }, "paddle-dist", DCP_MATCH_MANY, NULL },
	{ "one that is still being saved too", { "1.metadata=", "0_1.distcp", "0_2.distcp" }, "paddle-dist", DCP_MATCH_MANY, NULL },
	{ "metadata of each rank, data of one id", { "0.metadata=", "1.metadata=", "0_0.distcp", "1_0.distcp" }, "paddle-dist", DCP_MATCH_YES, NULL },
	{ "what Paddle made of a Hugging Face directory", { "flex-ckpt.auto_generated.metadata=", "model-00001-of-00001.safetensors" }, "safetensors", DCP_MATCH_YES, NULL },
	{ "names that are not quite Paddle's", { "x.metadata", "0_0_0.distcp", "_0.distcp", "0_.distcp", "0.metadatax" }, NULL, DCP_MATCH_NO, NULL },
	{ "a trainer's directories", { "model_state/0.metadata=", "optimizer_states/0.metadata=" }, "paddle-parts", DCP_MATCH_YES, NULL },
	{ "one of which is not done", { "model_state/0.metadata=", "optimizer_states/0_0.distcp" }, "paddle-parts", DCP_MATCH_INCOMPLETE, "optimizer_states: 0.metadata is missing" },
	{ "directories that are only called so", { "model_state/config.json" }, NULL, DCP_MATCH_NO, NULL },
	{ "metadata of each rank", { "__0.metadata", "__0_0.distcp", "__1.metadata", "__1_0.distcp" }, "torch-dcp-local", DCP_MATCH_YES, NULL },
	{ "a rank that has data but no metadata", { "__0.metadata", "__0_0.distcp", "__1_0.distcp" }, "torch-dcp-local", DCP_MATCH_INCOMPLETE, "__1.metadata is missing, but __1_0.distcp is there" },
	{ "a rank that is renaming its metadata", { "__0.metadata", "__0_0.distcp", "__1.metadata.tmp" }, "torch-dcp-local", DCP_MATCH_INCOMPLETE, "__1.metadata is missing" },
	{ "common metadata wins over left-over ones", { ".metadata", "__0.metadata" }, "torch-dcp", DCP_MATCH_YES, NULL },
	{ "one safetensors file", { "config.json", "model.safetensors" }, "safetensors", DCP_MATCH_YES, NULL },
	{ "all of three parts", { "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors" }, "safetensors", DCP_MATCH_YES, NULL },
	{ "the second of three is missing", { "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors" }, "safetensors", DCP_MATCH_INCOMPLETE, "model-00002-of-00003.safetensors is missing (2 of 3 are there)" },
	{ "what each of two ranks has", { "rank-00000-of-00002.safetensors", "rank-00001-of-00002.safetensors" }, "safetensors", DCP_MATCH_MANY, NULL },
	{ "ranks need not hold a piece of every part", { "shard-00001-model-00001-of-00002.safetensors", "shard-00002-model-00001-of-00002.safetensors", "shard-00002-model-00002-of-00002.safetensors" }, "safetensors", DCP_MATCH_YES, NULL },
	{ "but one must be complete", { "shard-00001-model-00001-of-00002.safetensors", "shard-00002-model-00001-of-00002.safetensors" }, "safetensors", DCP_MATCH_INCOMPLETE, "model-00002-of-00002.safetensors is missing" },
	{ "an index without files", { "model.safetensors.index.json" }, "safetensors", DCP_MATCH_INCOMPLETE, "no safetensors file" },
	{ "shards below a directory", { "sharded/shard-00001-model-00001-of-00001.safetensors" }, "safetensors", DCP_MATCH_YES, NULL },
	{ "consolidating died half-way", { "model-00001-of-00002.safetensors", "sharded/shard-00001-model-00001-of-00001.safetensors" }, "safetensors", DCP_MATCH_INCOMPLETE, "model-00002-of-00002" },
	{ "loose files of safetensors", { "flux.safetensors", "vae.safetensors" }, "safetensors", DCP_MATCH_MANY, NULL },
	{ "one by itself", { "flux.safetensors" }, "safetensors", DCP_MATCH_YES, NULL },
	{ "one beside files of torch.save", { "flux.safetensors", "old.ckpt" }, "safetensors", DCP_MATCH_MANY, NULL },
	{ "a config.json says they are one", { "config.json", "a.safetensors", "b.safetensors" }, "safetensors", DCP_MATCH_YES, NULL },
	{ "a model and its adapter", { "model.safetensors", "adapter_model.safetensors", "extra.safetensors" }, "safetensors", DCP_MATCH_YES, NULL },
	{ "parts of two models", { "a-1-of-1.safetensors", "b-00001-of-000002.safetensors", "b-00002-of-000002.safetensors" }, "safetensors", DCP_MATCH_MANY, NULL },
	{ "a part of a variant is missing", { "model.safetensors", "model.fp16-00001-of-00002.safetensors" }, "safetensors", DCP_MATCH_INCOMPLETE, "model.fp16-00002-of-00002.safetensors is missing (1 of 2 are there)" },
	{ "as diffusers spell it", { "unet-00002-of-00002.fp16.safetensors" }, "safetensors", DCP_MATCH_INCOMPLETE, "unet-00001-of-00002.fp16.safetensors is missing" },
	{ "parts of Mistral's copy are not needed", { "model.safetensors", "consolidated-00001-of-00002.safetensors" }, "safetensors", DCP_MATCH_YES, NULL },
	{ "weights by torch.save", { "config.json", "pytorch_model.bin" }, "hf-bin", DCP_MATCH_YES, NULL },
	{ "and an optimizer", { "config.json", "pytorch_model.bin", "optimizer.pt" }, "parts", DCP_MATCH_YES, NULL },
	{ "in parts", { "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin" }, "hf-bin", DCP_MATCH_YES, NULL },
	{ "one of them missing", { "pytorch_model_00001-of-00002.bin", "pytorch_model.bin.index.json" }, "hf-bin", DCP_MATCH_INCOMPLETE, "pytorch_model_00002-of-00002.bin is missing" },
	{ "all of them missing", { "pytorch_model.bin.index.json" }, "hf-bin", DCP_MATCH_INCOMPLETE, "no file of weights" },
	{ "in both containers", { "pytorch_model.bin", "model.safetensors" }, "safetensors", DCP_MATCH_YES, NULL },
	{ "other .bin files may be of any program", { "config.json", "model.bin", "openvino_model.bin" }, "torch-save", DCP_MATCH_MANY, NULL },
	{ "a file a rank", { "checkpoint_0.pt", "checkpoint_1.pt" }, "torch-ranks", DCP_MATCH_YES, NULL },
	{ "a file of a rank is missing", { "checkpoint_0.pt", "checkpoint_2.pt" }, "torch-ranks", DCP_MATCH_INCOMPLETE, "checkpoint_1.pt is missing" },
	{ "torch_checkpointing", { "metadata.pkl", "model_0.pt" }, "torch-checkpointing", DCP_MATCH_YES, NULL },
	{ "files where layouts put them", { "metadata.pkl", "rank_1/opt.pt" }, "torch-checkpointing", DCP_MATCH_YES, NULL },
	{ "and what was consolidated beside them", { "metadata.pkl", "model_1.safetensors", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json" }, "torch-checkpointing", DCP_MATCH_YES, NULL },
	{ "only what was consolidated", { "metadata.pkl", "model-00001-of-00001.safetensors" }, "safetensors", DCP_MATCH_YES, NULL },
	{ "metadata.pkl of another program", { "metadata.pkl", "model.pt" }, "torch-save", DCP_MATCH_MANY, NULL },
	{ "items without metadata.pkl", { "model_0.pt", "model_1.pt", "step_0.pt", "step_1.pt", "config_0.json" }, "torch-checkpointing", DCP_MATCH_YES, NULL },
	{ "an item that not all ranks have", { "model_0.pt", "model_1.pt", "step_0.pt" }, "torch-checkpointing", DCP_MATCH_YES, NULL },
	{ "one item: more likely epochs", { "model_0.pt", "model_1.pt" }, "torch-save", DCP_MATCH_MANY, NULL },
	{ "numbers with gaps", { "D_0.pt", "D_100.pt", "G_0.pt", "G_100.pt" }, "torch-save", DCP_MATCH_MANY, NULL },
	{ "torchtune's parts and epochs", { "hf_model_0001_0.pt", "hf_model_0002_0.pt" }, "torch-save", DCP_MATCH_MANY, NULL },
	{ "some of them as safetensors", { "model_0.safetensors", "model_1.safetensors", "step_0.pt", "step_1.pt" }, "torch-checkpointing", DCP_MATCH_YES, NULL },
	{ "a model beside parts of a trainer", { "model.safetensors", "optimizer_0.pt", "dataloader_0.pt" }, "parts", DCP_MATCH_YES, NULL },
	{ "another .pt among them", { "model_0.pt", "step_0.pt", "best.pt" }, "torch-save", DCP_MATCH_MANY, NULL },
	{ "DeepSpeed, stage 1 and 2", { "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt" }, "deepspeed", DCP_MATCH_YES, NULL },
	{ "its names with a prefix", { "mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt" }, "deepspeed", DCP_MATCH_YES, NULL },
	{ "its weights alone", { "mp_rank_00_model_states.pt" }, "deepspeed", DCP_MATCH_YES, NULL },
	{ "stage 3", { "zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt" }, "deepspeed", DCP_MATCH_YES, NULL },
	{ "a rank's optimizer is missing", { "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_pp_rank_2_mp_rank_00_optim_states.pt" }, "deepspeed", DCP_MATCH_INCOMPLETE, "zero_pp_rank_1_mp_rank_00_optim_states.pt is missing" },
	{ "a rank's model file is missing", { "zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt" }, "deepspeed", DCP_MATCH_INCOMPLETE, "zero_pp_rank_1_mp_rank_00_model_states.pt is missing" },
	{ "all of a tensor-parallel rank is missing", { "mp_rank_00_model_states.pt", "mp_rank_02_model_states.pt" }, "deepspeed", DCP_MATCH_INCOMPLETE, "mp_rank_01_model_states.pt is missing" },
	{ "an optimizer without a model", { "zero_pp_rank_0_mp_rank_00_optim_states.pt" }, "deepspeed", DCP_MATCH_INCOMPLETE, "mp_rank_00_model_states.pt is missing" },
	{ "layers of a pipeline", { "layer_00-model_states.pt", "mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt" }, "deepspeed", DCP_MATCH_YES, NULL },
	{ "a directory of its versions", { "latest", "zero_to_fp32.py", "global_step1/mp_rank_00_model_states.pt" }, NULL, DCP_MATCH_NO, NULL },
	{ "converted to universal", { "mp_rank_00_model_states.pt", "zero/w/fp32.pt" }, "deepspeed-universal", DCP_MATCH_YES, NULL },
	{ "without model files", { "zero/w/fp32.pt", "zero/optimizer_state.pt" }, "deepspeed-universal", DCP_MATCH_YES, NULL },
	{ "while it is converted", { "mp_rank_00_model_states.pt", "zero/w/fp32.pt", "tmp/w/0/fp32.00" }, "deepspeed-universal", DCP_MATCH_INCOMPLETE, "tmp is there" },
	{ "zero/ of another program", { "zero/w/fp32.pt" }, NULL, DCP_MATCH_NO, NULL },
	{ "numbers that are not ranks", { "checkpoint_100.pt", "checkpoint_200.pt" }, "torch-save", DCP_MATCH_MANY, NULL },
	{ "Paddle's plain files", { "model.pdparams", "model.pdopt" }, "paddle-plain", DCP_MATCH_MANY, NULL },
	{ "and what its trainer leaves beside them", { "model_state.pdparams", "training_args.bin", "trainer_state.json" }, "paddle-plain", DCP_MATCH_MANY, NULL },
	{ "parameters of a program", { "m.json", "m.pdiparams" }, "paddle-plain", DCP_MATCH_MANY, NULL },
	{ "a program's names without parameters", { "m.json", "m.pdiparams.info" }, NULL, DCP_MATCH_NO, NULL },
	{ "safetensors beside Paddle's", { "model.pdparams", "model.safetensors" }, "safetensors", DCP_MATCH_YES, NULL },
	{ "Composer's saves", { "ep0-ba2-rank0.pt", "ep1-ba4-rank0.pt" }, "composer", DCP_MATCH_MANY, NULL },
	{ "one file a rank", { "ba2-rank0.pt", "ba2-rank1.pt" }, "composer", DCP_MATCH_MANY, NULL },
	{ "Composer's state out of an archive", { "composer_states.pt", "deepspeed/x" }, "composer", DCP_MATCH_YES, NULL },
	{ "its newer interface", { "composer_metadata.json", "model/model.pt" }, "composer", DCP_MATCH_YES, NULL },
	{ "the same, still being written", { "model/model.pt", "resumption.pkl" }, "composer", DCP_MATCH_INCOMPLETE, "composer_metadata.json is missing" },
	{ "an archive", { "x.tar" }, "archive", DCP_MATCH_MANY, NULL },
	{ "compressed archives", { "x.tar.gz", "y.tgz", "z.tar.lzma" }, "archive", DCP_MATCH_MANY, NULL },
	{ "compressed files of a family", { "x.pt.zst", "m.safetensors.xz" }, "archive", DCP_MATCH_MANY, NULL },
	{ "compressed files of none", { "x.txt.gz", "log.zst", "x.pt.gz.gz", ".gz", "a.gz" }, NULL, DCP_MATCH_NO, NULL },
	{ "names that only look like it", { "checkpoint_01.txt", "checkpoint_0.pt.tmp", "__x_0.distcp" }, NULL, DCP_MATCH_NO, NULL },
	{ "a directory called like a file", { "model.safetensors/a", "checkpoint_0.txt" }, NULL, DCP_MATCH_NO, NULL },
	{ "an empty directory", { NULL }, NULL, DCP_MATCH_NO, NULL },
};
/* clang-format on */

/* An empty file, or one of a byte when its name ends in "=". */
static void put_file(const struct t_dir *tree, const char *name)
{
	char text[128];
	size_t n = strlen(name);

	snprintf(text, sizeof(text), "%s", name);
	if (text[n - 1] == '=')
		text[n - 1] = '\0';
	t_dir_put(tree, text, "x", text[n - 1] == '\0');
}

static void probing_finds_the_family(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		const struct dcp_format *format;
		enum dcp_match match = 99;
		struct dcp_dir dir;
		struct t_dir tree;
		char why[256] = "";

		t_case(cases[i].what);
		t_dir_make(&tree, "format");
		for (size_t k = 0; k < MAX_NAMES && cases[i].names[k]; k++)
			put_file(&tree, cases[i].names[k]);
		assert_int_equal(dcp_dir_open(tree.root, &dir, NULL), 0);
		format = dcp_format_probe(&dir, &match, why, sizeof(why));
		assert_int_equal(match, cases[i].match);
		if (cases[i].format)
			assert_string_equal(format->name, cases[i].format);
		else
			assert_null(format);
		if (cases[i].why && !strstr(why, cases[i].why))
			fail_msg("\"%s\" does not say \"%s\"", why, cases[i].why);
		/* A short buffer is filled as far as it goes. */
		dcp_format_probe(&dir, &match, why, 4);
		assert_true(strlen(why) <= 3 || match != DCP_MATCH_INCOMPLETE);
		dcp_format_probe(&dir, &match, NULL, 0);
		dcp_dir_close(&dir);
		t_dir_remove(&tree);
	}
}

static void table_of_formats_is_sound(void **state)
{
	(void)state;
	for (size_t i = 0; dcp_formats[i]; i++) {
		const struct dcp_format *f = dcp_formats[i];

		t_case(f->name);
		assert_true(f->what && f->probe && f->load);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(probing_finds_the_family),
		cmocka_unit_test(table_of_formats_is_sound),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
