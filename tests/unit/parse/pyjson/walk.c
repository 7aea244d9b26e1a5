/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which leaves nested state has, and under which keys.
 * covers: pyjson, parse/torch/tensor
 */
#include "tests/unit/t.h"

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/origin/origin.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/parse/torch/torch.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/parse/zip.h"

#define TENSOR                                                                                 \
	"ctorch._utils\n_rebuild_tensor_v2\n(("                                                \
	"Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI1\ntQ"                                     \
	"I0\n(t(tI00\nNtR"
#define P(s) s, sizeof(s) - 1

/* ---- walks by table: "key" for objects, "key!" for tensors, "key?" for tensors inside a leaf
 * ---- */

#define LAYOUT(name) "ctorch.serialization\n_get_layout\n(Vtorch.sparse_" name "\ntR"

/* clang-format off */
static const struct {
	const char *what, *pickle;
	size_t n;
	const char *leaves, *outer; /* with and without looking inside */
} walks[] = {
	{ "a scalar",                 P("I1\n."), "=1 ", "=1 " },
	{ "a tensor",                 P(TENSOR "."), "! ", "! " },
	{ "dict of dicts",            P("(dVa\n(dVb\nI1\nsVc\n" TENSOR "ss."), "a.b=1 a.c! ", "a.b=1 a.c! " },
	{ "empty dicts vanish",       P("(dVa\n(dsVb\n(dVc\n(dss."), "", "" },
	{ "keys as str() spells them", P("(dI7\nNsI01\nNsF0.5\nNsNNs(Va\nI1\ntNs(I1\ntNsL99999999999999999999L\nNsctorch\nint8\nNs."),
	  "7=null True=null 0.5=null None=null ('a', 1)=null (1,)=null 99999999999999999999=null torch.int8=null ", NULL },
	{ "NUL in a key",             P("(dX\3\0\0\0a\0bNs."), "a\\x00b=null ", NULL },
	{ "same key twice",           P("(dVa\nI1\nsVb\nI2\nsVa\nI3\ns."), "a=3 b=2 ", NULL },
	{ "list of scalars is whole", P("(dVa\n(I1\nI2\nls."), "a=[1,2] ", NULL },
	{ "list of dicts is opened",  P("(dVa\n(I1\n(dVb\nI2\nsls."), "a.0=1 a.1.b=2 ", NULL },
	{ "mapping deep in lists",    P("((((dVb\nI2\nsll(I5\nll."), "0.0.0.b=2 1=[5] ", NULL },
	{ "tensor deep in lists",     P("(((" TENSOR "llI5\nl."), "0.0.0! 1=5 ", NULL },
	{ "tuple is a leaf",          P("(dVa\n(I1\n" TENSOR "ts."), "a.1? a=[1,{\"$tensor\":\"a.1\"}] ", "a=[1,{\"$tensor\":\"a.1\"}] " },
	{ "list with a tuple of tensors", P("((I1\n" TENSOR "tl."), "0.1? =[[1,{\"$tensor\":\"0.1\"}]] ", NULL },
	{ "class with tensors",       P("(dVa\ncmine\nThing\n(" TENSOR "t\x81}Vw\n" TENSOR "sVd\n(dI3\n" TENSOR "ssbs."),
	  "a.args.0? a.state.w? a.state.d.3? a={\"$class\":\"mine.Thing\",\"args\":[{\"$tensor\":\"a.args.0\"}],"
	  "\"state\":{\"w\":{\"$tensor\":\"a.state.w\"},\"d\":{\"$dict\":[[3,{\"$tensor\":\"a.state.d.3\"}]]}}} ",
	  NULL },
	{ "parts of containers",      P("cmine\nBag\n)\x81(" TENSOR "e(Vk\n" TENSOR "u."),
	  "0? k? ={\"$class\":\"mine.Bag\",\"items\":[{\"$tensor\":\"0\"}],\"dict\":{\"k\":{\"$tensor\":\"k\"}}} ", NULL },
	{ "OrderedDict is opened",    P("ccollections\nOrderedDict\n)R(Va\n" TENSOR "u}V_metadata\nNsb."), "a! ", NULL },
	{ "Counter is opened",        P("ccollections\nCounter\n((dVa\nI1\nstR."), "a=1 ", NULL },
	{ "OrderedDict of old Python", P("ccollections\nOrderedDict\n(((Va\nI1\nlltR."),
	  "a=1 ", NULL },
	{ "one of something else",   P("ccollections\nOrderedDict\n((I1\nltR."),
	  "={\"$class\":\"collections.OrderedDict\",\"args\":[[1]]} ", NULL },
	{ "class inside itself",      P("cmine\nNode\n)\x81q\0}(Vnext\nh\0Vw\n" TENSOR "ub."),
	  "state.w? ={\"$class\":\"mine.Node\",\"state\":{\"next\":{\"$cycle\":\"\"},\"w\":{\"$tensor\":\"state.w\"}}} ", NULL },
	{ "sparse tensor",            P("(dVs\nctorch._utils\n_rebuild_sparse_tensor\n(" LAYOUT("coo") "(" TENSOR TENSOR "(I3\nI3\ntI01\nttRs."),
	  "s.indices? s.values? s={\"$class\":\"torch.Tensor (torch.sparse_coo)\",\"shape\":[3,3],\"is_coalesced\":true,\"indices\":{\"$tensor\":\"s.indices\"},\"values\":{\"$tensor\":\"s.values\"}} ", NULL },
	{ "sparse, before it told",   P("(dVs\nctorch._utils\n_rebuild_sparse_tensor\n(" LAYOUT("coo") "(" TENSOR TENSOR "(I3\nI3\ntttRs."),
	  "s.indices? s.values? s={\"$class\":\"torch.Tensor (torch.sparse_coo)\",\"shape\":[3,3],\"indices\":{\"$tensor\":\"s.indices\"},\"values\":{\"$tensor\":\"s.values\"}} ", NULL },
	{ "compressed columns",       P("ctorch._utils\n_rebuild_sparse_tensor\n(" LAYOUT("bsc") "(" TENSOR TENSOR TENSOR "(I3\nI3\ntttR."),
	  "ccol_indices? row_indices? values? ={\"$class\":\"torch.Tensor (torch.sparse_bsc)\",\"shape\":[3,3],\"ccol_indices\":{\"$tensor\":\"ccol_indices\"},\"row_indices\":{\"$tensor\":\"row_indices\"},\"values\":{\"$tensor\":\"values\"}} ", NULL },
	{ "sparse tensor, no shape",  P("ctorch._utils\n_rebuild_sparse_tensor\n(" LAYOUT("coo") "(" TENSOR TENSOR "ttR."),
	  "args.1.0? args.1.1? ={\"$class\":\"torch._utils._rebuild_sparse_tensor\",\"args\":[{\"$class\":\"torch.serialization._get_layout\",\"args\":[\"torch.sparse_coo\"]},[{\"$tensor\":\"args.1.0\"},{\"$tensor\":\"args.1.1\"}]]} ", NULL },
	{ "tuples deep in a key",     P("(d((((((((((((I1\ntttttttttttt" TENSOR "s."), "(((((((((...,),),),),),),),),)! ", NULL },
	{ "damaged sparse tensor",    P("ctorch._utils\n_rebuild_sparse_tensor\n(NNtR."), "={\"$class\":\"torch._utils._rebuild_sparse_tensor\",\"args\":[null,null]} ", NULL },
	{ "sparse in a list opens it", P("(ctorch._utils\n_rebuild_sparse_tensor\n(" LAYOUT("csr") "(" TENSOR TENSOR TENSOR "(I3\nI3\ntttRI5\nl."),
	  "0.crow_indices? 0.col_indices? 0.values? 0={\"$class\":\"torch.Tensor (torch.sparse_csr)\",\"shape\":[3,3],\"crow_indices\":{\"$tensor\":\"0.crow_indices\"},\"col_indices\":{\"$tensor\":\"0.col_indices\"},\"values\":{\"$tensor\":\"0.values\"}} 1=5 ", NULL },
	{ "quantized tensor",         P("(dVq\nctorch._utils\n_rebuild_qtensor\n((Vstorage\nctorch\nQInt8Storage\nV0\nVcpu\nI4\ntQI0\n(I4\nt(I1\nt(ctorch\nper_tensor_affine\nF0.5\nI3\ntI00\nNtRs."),
	  "q.int_repr? q={\"$class\":\"torch.Tensor (quantized)\",\"shape\":[4],\"qscheme\":{\"$class\":\"torch.qscheme\",\"args\":[\"torch.per_tensor_affine\"]},\"scale\":0.5,\"zero_point\":3,\"int_repr\":{\"$tensor\":\"q.int_repr\"}} ", NULL },
	{ "module",                   P("(dVm\nctorch.nn.modules.linear\nLinear\n)\x81}(V_parameters\n}Vweight\n" TENSOR "sV_buffers\n}V_modules\n}Vsub\ncmine\nNode\n)\x81}("
	    "V_parameters\n}Vw\n" TENSOR "sV_buffers\n}V_modules\n}ubsVscale\n" TENSOR "ubs."),
	  "m.weight? m.sub.w? m.scale? m={\"$class\":\"torch.nn.modules.linear.Linear\",\"state\":{\"_parameters\":{\"weight\":{\"$tensor\":\"m.weight\"}},\"_buffers\":{},"
	  "\"_modules\":{\"sub\":{\"$class\":\"mine.Node\",\"state\":{\"_parameters\":{\"w\":{\"$tensor\":\"m.sub.w\"}},\"_buffers\":{},\"_modules\":{}}}},\"scale\":{\"$tensor\":\"m.scale\"}}} ", NULL },
	{ "no module without modules", P("cmine\nNode\n)\x81}(V_parameters\n}Vw\n" TENSOR "sV_buffers\n}ub."),
	  "state._parameters.w? ={\"$class\":\"mine.Node\",\"state\":{\"_parameters\":{\"w\":{\"$tensor\":\"state._parameters.w\"}},\"_buffers\":{}}} ", NULL },
};
/* clang-format on */

struct told {
	const struct dcp_torch *t;
	struct dcp_buf text;
};

static int tell(void *ctx, const struct dcp_leaf *leaf)
{
	struct told *told = ctx;

	dcp_buf_str(&told->text, leaf->key);
	if (leaf->is_tensor) {
		dcp_buf_str(&told->text, leaf->nested ? "?" : "!");
	} else {
		dcp_buf_str(&told->text, "=");
		assert_int_equal(dcp_pyjson_write(&told->text, told->t, leaf->value, leaf->path,
						  leaf->npath),
				 0);
	}
	dcp_buf_str(&told->text, " ");
	return 0;
}

static void walks_visit_leaves(void **state)
{
	static const char *const prefix[] = { "x", "y" };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(walks); i++) {
		struct dcp_source src;
		struct t_zip z;
		struct dcp_torch *t = t_torch_stream(&z, &src, walks[i].pickle, walks[i].n);
		struct told told = { .t = t };

		t_case(walks[i].what);
		dcp_buf_add(&told.text, "", 0);
		assert_int_equal(dcp_pyjson_walk_with(t, dcp_torch_root(t),
						      &(struct dcp_walk){ .how = true }, tell,
						      &told),
				 0);
		assert_string_equal(told.text.n ? told.text.p : "", walks[i].leaves);
		dcp_buf_reset(&told.text);
		assert_int_equal(dcp_pyjson_walk_with(t, dcp_torch_root(t),
						      &(struct dcp_walk){ .prefix = prefix,
									  .nprefix = 2,
									  .how = false },
						      tell, &told),
				 0);
		if (told.text.n)
			assert_memory_equal(told.text.p, "x.y", 3);
		if (walks[i].outer) {
			dcp_buf_reset(&told.text);
			assert_int_equal(dcp_pyjson_walk_with(t, dcp_torch_root(t),
							      &(struct dcp_walk){ 0 }, tell,
							      &told),
					 0);
			assert_string_equal(told.text.n ? told.text.p : "", walks[i].outer);
		}
		dcp_buf_finish(&told.text);
		dcp_torch_close(t);
		t_zip_free(&z);
	}
}

static void tuples_can_be_opened(void **state)
{
	static const char text[] =
		"(dVa\n(" TENSOR "Vx\n(I1\nI2\nttsVb\n(I1\ntsVc\n(((dVd\nNstls"
		"Ve\n(dsVf\n(dI0\nNsVw\nNssVg\n(dI0\nNsV1\nNssVh\n(dV0\nNssVt\tb\n(dI0\nNss"
		"Vi\n(dI0\nNsVNone\nNssVj\n(dI0\nNsVb'x'\nNss"
		"Vk\n(dI0\nNsVTrue, 1\nNssVl\n(dI0\nNsVNone_\nNss"
		"Vm\n(dI0\nNsV1\tx\nNssVn\n(lsVo\n(dVp\n(dss"
		"Vq\nccollections\nOrderedDict\n)RVx\nNssVr\nccollections\nCounter\n(("
		"dI1\nI2\nstRs"
		"Vs\nccollections\ndefaultdict\n(c__builtin__\nlist\ntRVx\nNss.";
	struct dcp_source src;
	struct t_zip z;
	struct dcp_torch *t = t_torch_stream(&z, &src, text, sizeof(text) - 1);
	struct dcp_buf containers = DCP_BUF_INIT;
	struct told told = { .t = t };

	(void)state;
	assert_int_equal(dcp_pyjson_walk_with(
				 t, dcp_torch_root(t),
				 &(struct dcp_walk){ .how = DCP_WALK_INSIDE | DCP_WALK_TUPLES,
						     .containers = &containers },
				 tell, &told),
			 0);
	assert_string_equal(containers.p,
			    "tuple\ta\nlist\tc\ntuple\tc\t0\n3\te\nkeys\tf\nte"
			    "xt\tg\t1\nkeys\tg\ndict\th\n"
			    "text\ti\tNone\nkeys\ti\ntext\tj\tb'x'"
			    "\nkeys\tj\ntext\tk\tTrue, 1\nkeys\tk\nkeys\tl\n0\to\tp\n14\to\n"
			    "collections.OrderedDict\tq\ncollections.Counter\tr\nkeys\tr\n"
			    "collections.defaultdict:list\ts\n");
	dcp_buf_finish(&containers);
	assert_string_equal(
		told.text.p,
		"a.0! a.1=\"x\" a.2=[1,2] b=[1] c.0.0.d=null f.0=null f.w=null g.0=null "
		"g.1=null h.0=null t\tb.0=null i.0=null i.None=null j.0=null j.b'x'=null "
		"k.0=null k.True, 1=null l.0=null l.None_=null m.0=null m.1\tx=null n=[] "
		"q.x=null r.1=2 s.x=null ");
	dcp_buf_finish(&told.text);
	dcp_torch_close(t);
	t_zip_free(&z);
}

/* clang-format off */
static const struct {
	const char *what, *pickle;
	size_t n;
	const char *leaves;
} opened[] = {
	{ "a scalar",                P("I1\n."), "=1 " },
	{ "list of scalars",         P("(dVa\n(I1\nI2\nls."), "a.0=1 a.1=2 " },
	{ "lists in lists",          P("((I1\nl(I2\n(I3\nlll."), "0.0=1 1.0=2 1.1.0=3 " },
	{ "what is empty is a leaf", P("(dVa\n(dsVb\n(lsVc\n(tsVd\nccollections\nOrderedDict\n)Rs."), "a={} b=[] c=[] d={} " },
	{ "tuple is a leaf",         P("(dVa\n(I1\n(I2\nlts."), "a=[1,[2]] " },
	{ "unless it holds tensors", P("(dVa\n(I1\n" TENSOR "ts."), "a.0=1 a.1! " },
	{ "at its top",              P("(dVa\n(I1\n(" TENSOR "lts."), "a.1.0? a=[1,[{\"$tensor\":\"a.1.0\"}]] " },
	{ "taken by the caller",     P("(dVa\n(I1\nVtake\nlsVb\ncmine\nThing\n(" TENSOR "t\x81s."), "a.0=1 " },
};
/* clang-format on */

/* Texts "take" and objects of mine.Thing are of another class. */
static int take(void *ctx, const struct dcp_leaf *leaf)
{
	(void)ctx;
	return dcp_pv_is_str(leaf->value, "take") ||
	       dcp_pv_is_object(leaf->value, "mine", "Thing");
}

static void walks_may_open_lists(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(opened); i++) {
		struct dcp_walk how = { .how = DCP_WALK_INSIDE | DCP_WALK_LISTS, .take = take };
		struct dcp_source src;
		struct t_zip z;
		struct dcp_torch *t = t_torch_stream(&z, &src, opened[i].pickle, opened[i].n);
		struct told told = { .t = t };

		t_case(opened[i].what);
		assert_int_equal(dcp_pyjson_walk_with(t, dcp_torch_root(t), &how, tell, &told),
				 0);
		assert_string_equal(told.text.n ? told.text.p : "", opened[i].leaves);
		dcp_buf_finish(&told.text);
		dcp_torch_close(t);
		t_zip_free(&z);
	}
}

/* A million numbers are one value, not a million keys. */
static void long_lists_stay_whole(void **state)
{
	struct dcp_walk how = { .how = DCP_WALK_LISTS };

	(void)state;
	for (unsigned n = DCP_WALK_MAX_LIST; n <= DCP_WALK_MAX_LIST + 1; n++) {
		dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
		struct told told = { .t = NULL };
		struct dcp_pickle_opts opts = { 0 };
		struct dcp_pickle *p = NULL;
		struct dcp_source src;
		size_t keys = 0;

		dcp_buf_str(&b, "(");
		for (unsigned i = 0; i < n; i++)
			dcp_buf_add(&b, "K\7", 2);
		dcp_buf_str(&b, "l.");
		src = dcp_source_mem(b.p, b.n);
		assert_int_equal(dcp_pickle_read(&src, &opts, &p, NULL, NULL), 0);
		assert_int_equal(
			dcp_pyjson_walk_with(NULL, dcp_pickle_root(p), &how, tell, &told), 0);
		for (size_t i = 0; i < told.text.n; i++)
			keys += told.text.p[i] == '=';
		assert_int_equal(keys, n == DCP_WALK_MAX_LIST ? n : 1);
		dcp_buf_finish(&told.text);
		dcp_pickle_free(p);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(walks_visit_leaves),
		cmocka_unit_test(tuples_can_be_opened),
		cmocka_unit_test(walks_may_open_lists),
		cmocka_unit_test(long_lists_stay_whole),
	};

	return cmocka_run_group_tests_name("pyjson_walk", tests, NULL, NULL);
}
