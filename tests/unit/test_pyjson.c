/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/base/cleanup.h"
#include "core/parse/source.h"
#include "tests/unit/t_golden.h"
#include "tests/unit/t_source.h"
#include "tests/unit/t_zip.h"

/* ---- objects of real files against what the framework loaded ---- */

/* Is the JSON that was @written what Python's value was @meant? {"$dict"} counts as its object.
 */
static bool same_json(const json_t *meant, const json_t *written)
{
	const json_t *pairs = json_object_get(written, "$dict");
	const char *key;
	json_t *value;
	size_t i;

	if (json_is_array(meant)) {
		if (json_array_size(meant) != json_array_size(written))
			return false;
		json_array_foreach(
			meant, i,
			value) if (!same_json(value, json_array_get(written, i))) return false;
		return true;
	}
	if (!json_is_object(meant))
		return json_equal(meant, written);
	if (!json_is_object(written))
		return false;
	if (!pairs && json_object_size(meant) != json_object_size(written))
		return false;
	json_object_foreach((json_t *)(uintptr_t)meant, key, value)
	{
		const json_t *found = pairs ? NULL : json_object_get(written, key);

		for (i = 0; i < json_array_size(pairs) && !found; i++) {
			const json_t *pair = json_array_get(pairs, i);
			char *k = json_dumps(json_array_get(pair, 0), JSON_ENCODE_ANY);
			size_t n = strlen(k);

			if (n > 2 && strcmp(k + n - 2, ".0") == 0)
				k[n - 2] = '\0'; /* the test reads integers as reals */
			if (strcmp(k, key) == 0)
				found = json_array_get(pair, 1);
			free(k);
		}
		if (!found || !same_json(value, found))
			return false;
	}
	return true;
}

static void check_json(const json_t *entry, const json_t *written)
{
	const char *base64 = json_string_value(json_object_get(entry, "base64"));
	const json_t *meant = json_object_get(entry, "json");

	if (base64)
		assert_string_equal(json_string_value(json_object_get(written, "$bytes")),
				    base64);
	else if (!json_is_null(meant) ||
		 !strcmp(json_string_value(json_object_get(entry, "type")), "NoneType"))
		assert_true(same_json(meant, written));
}

static void check_object(struct t_leaves *l, const json_t *entry)
{
	const char *key = json_string_value(json_object_get(entry, "key"));
	const char *type = json_string_value(json_object_get(entry, "type"));
	struct t_leaf *leaf = t_leaves_find(l, key);
	json_t *written;

	print_message("             %s\n", key);
	if (!leaf)
		fail_msg("%s was not told", key);
	assert_non_null(leaf->json);
	leaf->used = true;
	assert_string_equal(leaf->type, type);
	written = json_loads(leaf->json, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
	assert_non_null(written);
	check_json(entry, written);
	json_decref(written);
}

static void check_version(const char *dir, const json_t *v)
{
	const char *name = json_string_value(json_object_get(v, "name"));
	dcp_auto_free char *file = NULL;
	struct dcp_torch *t = NULL;
	struct t_leaves leaves;
	struct dcp_source src;
	struct dcp_err err = { 0 };
	char path[256];
	json_t *entry;
	size_t n, i;

	t_case(name);
	snprintf(path, sizeof(path), "tests/golden/%s/ckpt/%s", dir, name);
	file = t_file(path, &n);
	src = dcp_source_mem(file, n);
	if (dcp_torch_open(&src, 0, &t, &err) < 0)
		fail_msg("%s", err.msg);
	t_leaves_collect(&leaves, t, DCP_WALK_INSIDE | DCP_WALK_TUPLES);
	json_array_foreach(json_object_get(v, "objects"), i, entry)
		check_object(&leaves, entry);
	json_array_foreach(json_object_get(v, "tensors"), i, entry)
	{
		struct t_leaf *leaf = t_leaves_find(
			&leaves, json_string_value(json_object_get(entry, "key")));

		assert_non_null(leaf);
		assert_true(leaf->is_tensor);
		leaf->used = true;
	}
	for (i = 0; i < leaves.n; i++)
		if (!leaves.leaf[i].used && !leaves.leaf[i].nested)
			fail_msg("\"%s\" is not in the manifest", leaves.leaf[i].key);
	t_leaves_free(&leaves);
	dcp_torch_close(t);
}

static void golden_objects(void **state)
{
	json_t *m = t_golden_manifest("torch-save"), *v;
	size_t i;

	(void)state;
	json_array_foreach(json_object_get(m, "versions"), i, v)
	{
		const char *expect = json_string_value(json_object_get(v, "expect"));

		if (!expect || strncmp(expect, "refuse", 6) != 0)
			check_version("torch-save", v);
	}
	json_decref(m);
}

/* ---- values by table; the pickles are of protocol 0, which can be read ---- */

#define DTYPE(code, order)                                                                     \
	"cnumpy\ndtype\n(V" code "\nI0\nI1\ntR(I3\nV" order "\nNNNI-1\nI-1\nI0\ntb"
#define NDARRAY "cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntC\1btR"
#define TENSOR                                                                                 \
	"ctorch._utils\n_rebuild_tensor_v2\n(("                                                \
	"Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI1\ntQ"                                     \
	"I0\n(t(tI00\nNtR"
#define P(s) s, sizeof(s) - 1

/* clang-format off */
static const struct {
	const char *what, *pickle;
	size_t n;
	const char *type, *json;
} values[] = {
	{ "None",                     P("N."), "NoneType", "null" },
	{ "bool",                     P("I01\n."), "bool", "true" },
	{ "int",                      P("I-42\n."), "int", "-42" },
	{ "int beyond 64 bits",       P("L1208925819614629174706176L\n."), "int", "1208925819614629174706176" },
	{ "float",                    P("F0.1\n."), "float", "0.1" },
	{ "nan",                      P("G\x7f\xf8\0\0\0\0\0\0."), "float", "{\"$float\":\"nan\"}" },
	{ "-inf",                     P("G\xff\xf0\0\0\0\0\0\0."), "float", "{\"$float\":\"-inf\"}" },
	{ "str",                      P("V\\u00e9\"\n."), "str", "\"\xc3\xa9\\\"\"" },
	{ "str with NUL",             P("X\3\0\0\0a\0b."), "str", "\"a\\u0000b\"" },
	{ "tuple",                    P("(I1\nVa\nt."), "tuple", "[1,\"a\"]" },
	{ "list",                     P("(I1\n(lI2\nl."), "list", "[1,[],2]" },
	{ "nothing appended",         P("](e."), "list", "[]" },
	{ "nothing set",              P("}(u."), "dict", "{}" },
	{ "bytes",                    P("C\3abc."), "bytes", "{\"$bytes\":\"YWJj\"}" },
	{ "bytes, protocol 2",        P("c_codecs\nencode\n(V\\u00e9a\\u0080\nVlatin1\ntR."), "bytes", "{\"$bytes\":\"6WGA\"}" },
	{ "no bytes, protocol 2",     P("c__builtin__\nbytes\n)R."), "bytes", "{\"$bytes\":\"\"}" },
	{ "encode, no Latin-1",       P("c_codecs\nencode\n(V\\u20ac\nVlatin1\ntR."), "bytes",
	  "{\"$class\":\"_codecs.encode\",\"args\":[\"\xe2\x82\xac\",\"latin1\"]}" },
	{ "bytearray, protocol 2",    P("c__builtin__\nbytearray\n(Vab\nVlatin-1\ntR."), "bytearray", "{\"$bytes\":\"YWI=\"}" },
	{ "bytearray, protocol 3",    P("cbuiltins\nbytearray\n(C\2abtR."), "bytearray", "{\"$bytes\":\"YWI=\"}" },
	{ "dict",                     P("(dVa\nI1\nsVb\nI2\ns."), "dict", "{\"a\":1,\"b\":2}" },
	{ "dict with int keys",       P("(dI7\nI1\ns."), "dict", "{\"$dict\":[[7,1]]}" },
	{ "dict with mixed keys",     P("(dVa\nI1\ns(I1\ntI2\ns."), "dict", "{\"$dict\":[[\"a\",1],[[1],2]]}" },
	{ "key like a marker",        P("(dV$bytes\nI1\ns."), "dict", "{\"$dict\":[[\"$bytes\",1]]}" },
	{ "key twice: last, in place", P("(dVa\nI1\nsVb\nI2\nsVa\nI3\ns."), "dict", "{\"a\":3,\"b\":2}" },
	{ "1 and True are one key",   P("(dI1\nVx\nsI01\nVy\ns."), "dict", "{\"$dict\":[[1,\"y\"]]}" },
	{ "OrderedDict",              P("ccollections\nOrderedDict\n)R(Vb\nI1\nVa\nI2\nu."), "collections.OrderedDict", "{\"b\":1,\"a\":2}" },
	{ "OrderedDict, attribute",   P("ccollections\nOrderedDict\n)R(Va\nI1\nu}V_metadata\nI2\nsb."), "collections.OrderedDict",
	  "{\"$class\":\"collections.OrderedDict\",\"state\":{\"_metadata\":2},\"dict\":{\"a\":1}}" },
	{ "defaultdict",              P("ccollections\ndefaultdict\n(c__builtin__\nint\ntR(Va\nI1\nu."), "collections.defaultdict",
	  "{\"$class\":\"collections.defaultdict\",\"args\":[{\"$class\":\"type\",\"args\":[\"int\"]}],\"dict\":{\"a\":1}}" },
	{ "Counter",                  P("ccollections\nCounter\n((dVa\nI1\nstR."), "collections.Counter",
	  "{\"$class\":\"collections.Counter\",\"args\":[{\"a\":1}]}" },
	{ "set",                      P("\x8f(I1\nI2\n\x90."), "set", "{\"$set\":[1,2]}" },
	{ "set, protocol 2",          P("c__builtin__\nset\n((lI1\natR."), "set", "{\"$set\":[1]}" },
	{ "frozenset",                P("(I1\n\x91."), "frozenset", "{\"$set\":[1]}" },
	{ "frozenset, protocol 2",    P("c__builtin__\nfrozenset\n((lI1\natR."), "frozenset", "{\"$set\":[1]}" },
	{ "complex",                  P("c__builtin__\ncomplex\n(F1.0\nF2.0\ntR."), "complex", "{\"$class\":\"complex\",\"args\":[1.0,2.0]}" },
	{ "range, protocol 2",        P("c__builtin__\nxrange\n(I0\nI5\nI1\ntR."), "range", "{\"$class\":\"range\",\"args\":[0,5,1]}" },
	{ "slice",                    P("cbuiltins\nslice\n(I1\nNNtR."), "slice", "{\"$class\":\"slice\",\"args\":[1,null,null]}" },
	{ "torch.Size",               P("ctorch\nSize\n((I2\nI3\nttR."), "torch.Size", "[2,3]" },
	{ "torch.dtype",              P("ctorch\nbfloat16\n."), "torch.dtype", "{\"$class\":\"torch.dtype\",\"args\":[\"bfloat16\"]}" },
	{ "torch.device",             P("ctorch\ndevice\n(Vcuda\nI0\ntR."), "torch.device", "{\"$class\":\"torch.device\",\"args\":[\"cuda\",0]}" },
	{ "torch.layout",             P("ctorch.serialization\n_get_layout\n(Vtorch.strided\ntR."), "torch.layout",
	  "{\"$class\":\"torch.serialization._get_layout\",\"args\":[\"torch.strided\"]}" },
	{ "TorchVersion is a str",    P("ctorch.torch_version\nTorchVersion\n(V2.7.0\nt\x81."), "torch.torch_version.TorchVersion", "\"2.7.0\"" },
	{ "timedelta",                P("cdatetime\ntimedelta\n(I0\nI1\nI2\ntR."), "datetime.timedelta", "1.000002" },
	{ "timedelta of days",        P("cdatetime\ntimedelta\n(I-2\nI86399\nI999999\ntR."), "datetime.timedelta", "-86400.000001" },
	{ "no whole timedelta",       P("cdatetime\ntimedelta\n(I1\ntR."), "datetime.timedelta", "{\"$class\":\"datetime.timedelta\",\"args\":[1]}" },
	{ "enum by value",            P("ctrainer\nPhase\n(I2\ntR."), "trainer.Phase", "{\"$class\":\"trainer.Phase\",\"args\":[2]}" },
	{ "enum by name",             P("c__builtin__\ngetattr\n(ctrainer\nPhase\nVSTABLE\ntR."), "trainer.Phase", "{\"$class\":\"trainer.Phase\",\"args\":[\"STABLE\"]}" },
	{ "getattr of something else", P("c__builtin__\ngetattr\n(I1\nVx\ntR."), "getattr", "{\"$class\":\"getattr\",\"args\":[1,\"x\"]}" },
	{ "class with state",         P("ctrainer\nInfo\n)\x81}Vname\nVtiny\nsb."), "trainer.Info", "{\"$class\":\"trainer.Info\",\"state\":{\"name\":\"tiny\"}}" },
	{ "class with nothing",       P("ctrainer\nInfo\n)\x81."), "trainer.Info", "{\"$class\":\"trainer.Info\"}" },
	{ "subclass of list",         P("cmine\nList\n)\x81(I1\nI2\ne."), "mine.List", "{\"$class\":\"mine.List\",\"items\":[1,2]}" },
	{ "_reconstructor",           P("ccopy_reg\n_reconstructor\n(cmine\nOld\nc__builtin__\nobject\nNtR}Va\nI1\nsb."), "mine.Old",
	  "{\"$class\":\"mine.Old\",\"state\":{\"a\":1}}" },
	{ "keyword arguments",        P("cmine\nKw\n)}Va\nI1\ns\x92."), "mine.Kw", "{\"$class\":\"mine.Kw\",\"kwargs\":{\"a\":1}}" },
	{ "a class itself",           P("c__builtin__\nlong\n."), "type", "{\"$class\":\"type\",\"args\":[\"int\"]}" },
	{ "a call is never made",     P("cos\nsystem\n(Vtouch PWNED\ntR."), "os.system", "{\"$class\":\"os.system\",\"args\":[\"touch PWNED\"]}" },
	{ "nested stream stays shut", P("ctorch.storage\n_load_from_bytes\n(C\2PKtR."), "torch.storage._load_from_bytes",
	  "{\"$class\":\"torch.storage._load_from_bytes\",\"args\":[{\"$bytes\":\"UEs=\"}]}" },
	{ "a storage",                P("(Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI4\ntQ."), "torch.FloatStorage", "{\"$class\":\"torch.FloatStorage\",\"args\":[\"0\",\"cpu\",4]}" },
	{ "numpy array",              P(NDARRAY "(I1\n(I2\nI1\nt" DTYPE("u2", "<") "I00\nC\4\1\0\2\0tb."), "numpy.ndarray",
	  "{\"$ndarray\":{\"dtype\":\"<u2\",\"shape\":[2,1],\"data\":{\"$bytes\":\"AQACAA==\"}}}" },
	{ "numpy array, big-endian",  P(NDARRAY "(I1\n(I2\nt" DTYPE("u2", ">") "I00\nC\4\1\0\2\0tb."), "numpy.ndarray",
	  "{\"$ndarray\":{\"dtype\":\">u2\",\"shape\":[2],\"data\":{\"$bytes\":\"AQACAA==\"}}}" },
	{ "numpy array, by columns",  P(NDARRAY "(I1\n(I2\nI2\nt" DTYPE("b1", "|") "I01\nC\4\1\0\0\1tb."), "numpy.ndarray",
	  "{\"$ndarray\":{\"dtype\":\"|b1\",\"shape\":[2,2],\"fortran_order\":true,\"data\":{\"$bytes\":\"AQAAAQ==\"}}}" },
	{ "numpy array, protocol 2",  P(NDARRAY "(I1\n(I2\nt" DTYPE("u1", "|") "I00\nc_codecs\nencode\n(Va\\u00ff\nVlatin1\ntRtb."), "numpy.ndarray",
	  "{\"$ndarray\":{\"dtype\":\"|u1\",\"shape\":[2],\"data\":{\"$bytes\":\"Yf8=\"}}}" },
	{ "numpy array, protocol 5",  P("cnumpy._core.numeric\n_frombuffer\n(\x96\2\0\0\0\0\0\0\0ab" DTYPE("i1", "|") "(I2\ntVC\ntR."), "numpy.ndarray",
	  "{\"$ndarray\":{\"dtype\":\"|i1\",\"shape\":[2],\"data\":{\"$bytes\":\"YWI=\"}}}" },
	{ "numpy scalar",             P("cnumpy._core.multiarray\nscalar\n(" DTYPE("f8", "<") "C\x08\0\0\0\0\0\0\4\x40tR."), "numpy.float64",
	  "{\"$ndarray\":{\"dtype\":\"<f8\",\"shape\":[],\"data\":{\"$bytes\":\"AAAAAAAABEA=\"}}}" },
	{ "numpy array too short",    P("cnumpy.core.numeric\n_frombuffer\n(C\1a" DTYPE("i1", "|") "(I2\ntVC\ntR."), "numpy.ndarray",
	  "{\"$class\":\"numpy.core.numeric._frombuffer\",\"args\":[{\"$bytes\":\"YQ==\"},{\"$class\":\"numpy.dtype\",\"args\":[\"i1\",0,1],"
	  "\"state\":[3,\"|\",null,null,null,-1,-1,0]},[2],\"C\"]}" },
	{ "list inside itself",       P("]q\0h\0a."), "list", "[{\"$cycle\":\"\"}]" },
	{ "class inside itself",      P("cmine\nNode\n)\x81q\0}Vnext\nh\0sb."), "mine.Node", "{\"$class\":\"mine.Node\",\"state\":{\"next\":{\"$cycle\":\"\"}}}" },
	{ "a list two ways is none",  P("](I1\n(lI2\naq\0h\0e."), "list", "[1,[2],[2]]" },
	{ "tensor, no stream",        P(TENSOR "."), "torch.Tensor",
	  "{\"$class\":\"torch._utils._rebuild_tensor_v2\",\"args\":[{\"$class\":\"torch.FloatStorage\",\"args\":[\"0\",\"cpu\",1]},0,[],[],false,null]}" },
	{ "parameter",                P("ctorch._utils\n_rebuild_parameter\n(" TENSOR "I01\nNtR."), "torch.nn.parameter.Parameter", NULL },
	{ "subclass of tensor",       P("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\ncmine\nFast\n(t}tR."), "mine.Fast", NULL },
};
/* clang-format on */

static struct dcp_pickle *parse(const char *p, size_t n)
{
	struct dcp_source src = dcp_source_mem(p, n);
	struct dcp_pickle_opts opts = { 0 };
	struct dcp_pickle *pickle = NULL;
	struct dcp_err err = { 0 };

	if (dcp_pickle_read(&src, &opts, &pickle, NULL, &err) < 0)
		fail_msg("%s", err.msg);
	return pickle;
}

static void value_table(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(values); i++) {
		struct dcp_pickle *p = parse(values[i].pickle, values[i].n);
		dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;

		t_case(values[i].what);
		assert_string_equal(dcp_pyjson_type(dcp_pickle_root(p)), values[i].type);
		assert_int_equal(dcp_pyjson_write(&out, NULL, dcp_pickle_root(p), NULL, 0), 0);
		if (values[i].json)
			assert_string_equal(out.p, values[i].json);
		dcp_pickle_free(p);
	}
}

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
	  "={\"$class\":\"collections.OrderedDict\",\"args\":[[[\"a\",1]]]} ", NULL },
	{ "class inside itself",      P("cmine\nNode\n)\x81q\0}(Vnext\nh\0Vw\n" TENSOR "ub."),
	  "state.w? ={\"$class\":\"mine.Node\",\"state\":{\"next\":{\"$cycle\":\"\"},\"w\":{\"$tensor\":\"state.w\"}}} ", NULL },
	{ "sparse tensor",            P("(dVs\nctorch._utils\n_rebuild_sparse_tensor\n(" LAYOUT("coo") "(" TENSOR TENSOR "(I3\nI3\ntI01\nttRs."),
	  "s.indices? s.values? s={\"$class\":\"torch.Tensor (torch.sparse_coo)\",\"shape\":[3,3],\"is_coalesced\":true,\"indices\":{\"$tensor\":\"s.indices\"},\"values\":{\"$tensor\":\"s.values\"}} ", NULL },
	{ "sparse, before it told",   P("(dVs\nctorch._utils\n_rebuild_sparse_tensor\n(" LAYOUT("coo") "(" TENSOR TENSOR "(I3\nI3\ntttRs."),
	  "s.indices? s.values? s={\"$class\":\"torch.Tensor (torch.sparse_coo)\",\"shape\":[3,3],\"indices\":{\"$tensor\":\"s.indices\"},\"values\":{\"$tensor\":\"s.values\"}} ", NULL },
	{ "compressed columns",       P("ctorch._utils\n_rebuild_sparse_tensor\n(" LAYOUT("bsc") "(" TENSOR TENSOR TENSOR "(I3\nI3\ntttR."),
	  "ccol_indices? row_indices? values? ={\"$class\":\"torch.Tensor (torch.sparse_bsc)\",\"shape\":[3,3],\"ccol_indices\":{\"$tensor\":\"ccol_indices\"},\"row_indices\":{\"$tensor\":\"row_indices\"},\"values\":{\"$tensor\":\"values\"}} ", NULL },
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

static struct dcp_torch *open_stream(struct t_zip *z, struct dcp_source *src, const char *p,
				     size_t n)
{
	struct dcp_torch *t = NULL;
	struct dcp_err err = { 0 };

	*z = (struct t_zip){ .torch = true };
	t_zip_add(z, "archive/data.pkl", p, n);
	t_zip_add(z, "archive/data/0", "abcd", 4);
	t_zip_end(z);
	*src = dcp_source_mem(z->b.p, z->b.n);
	if (dcp_torch_open(src, 0, &t, &err) < 0)
		fail_msg("%s", err.msg);
	return t;
}

static void walk_table(void **state)
{
	static const char *const prefix[] = { "x", "y" };

	(void)state;
	for (size_t i = 0; i < DCP_LEN(walks); i++) {
		struct dcp_source src;
		struct t_zip z;
		struct dcp_torch *t = open_stream(&z, &src, walks[i].pickle, walks[i].n);
		struct told told = { .t = t };

		t_case(walks[i].what);
		dcp_buf_add(&told.text, "", 0);
		assert_int_equal(
			dcp_pyjson_walk(t, dcp_torch_root(t), NULL, 0, true, tell, &told), 0);
		assert_string_equal(told.text.n ? told.text.p : "", walks[i].leaves);
		dcp_buf_reset(&told.text);
		assert_int_equal(
			dcp_pyjson_walk(t, dcp_torch_root(t), prefix, 2, false, tell, &told),
			0);
		if (told.text.n)
			assert_memory_equal(told.text.p, "x.y", 3);
		if (walks[i].outer) {
			dcp_buf_reset(&told.text);
			assert_int_equal(dcp_pyjson_walk(t, dcp_torch_root(t), NULL, 0, false,
							 tell, &told),
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
		"(dVa\n(" TENSOR "Vx\n(I1\nI2\nttsVb\n(I1\ntsVc\n(((dVd\nNstls.";
	struct dcp_source src;
	struct t_zip z;
	struct dcp_torch *t = open_stream(&z, &src, text, sizeof(text) - 1);
	struct told told = { .t = t };

	(void)state;
	assert_int_equal(dcp_pyjson_walk(t, dcp_torch_root(t), NULL, 0,
					 DCP_WALK_INSIDE | DCP_WALK_TUPLES, tell, &told),
			 0);
	assert_string_equal(told.text.p, "a.0! a.1=\"x\" a.2=[1,2] b=[1] c.0.0.d=null ");
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

/* Texts "take" and objects of mine.Thing are somebody else's. */
static int take(void *ctx, const struct dcp_leaf *leaf)
{
	(void)ctx;
	return dcp_pv_is_str(leaf->value, "take") ||
	       dcp_pv_is_object(leaf->value, "mine", "Thing");
}

static void walks_that_open_lists(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(opened); i++) {
		struct dcp_walk how = { .how = DCP_WALK_INSIDE | DCP_WALK_LISTS, .take = take };
		struct dcp_source src;
		struct t_zip z;
		struct dcp_torch *t = open_stream(&z, &src, opened[i].pickle, opened[i].n);
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
		struct dcp_pickle *p;
		size_t keys = 0;

		dcp_buf_str(&b, "(");
		for (unsigned i = 0; i < n; i++)
			dcp_buf_add(&b, "K\7", 2);
		dcp_buf_str(&b, "l.");
		p = parse(b.p, b.n);
		assert_int_equal(
			dcp_pyjson_walk_with(NULL, dcp_pickle_root(p), &how, tell, &told), 0);
		for (size_t i = 0; i < told.text.n; i++)
			keys += told.text.p[i] == '=';
		assert_int_equal(keys, n == DCP_WALK_MAX_LIST ? n : 1);
		dcp_buf_finish(&told.text);
		dcp_pickle_free(p);
	}
}

/* ---- limits ---- */

static int stop_at_second(void *ctx, const struct dcp_leaf *leaf)
{
	(void)leaf;
	return ++*(int *)ctx == 2 ? -ECANCELED : 0;
}

static void caller_stops_the_walk(void **state)
{
	struct dcp_pickle *p = parse(P("(dVa\nI1\nsVb\nI2\nsVc\nI3\ns."));
	int calls = 0;

	(void)state;
	assert_int_equal(dcp_pyjson_walk(NULL, dcp_pickle_root(p), NULL, 0, true,
					 stop_at_second, &calls),
			 -ECANCELED);
	assert_int_equal(calls, 2);
	dcp_pickle_free(p);
}

static int count(void *ctx, const struct dcp_leaf *leaf)
{
	(void)leaf;
	++*(int *)ctx;
	return 0;
}

static void depth_is_limited(void **state)
{
	static const char *const open[] = { "]", "(dVa\n" }, *const close[] = { "a", "s" };

	(void)state;
	for (int kind = 0; kind < 2; kind++)
		for (int deep = 100; deep <= 400; deep += 300) {
			dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT, out = DCP_BUF_INIT;
			struct dcp_pickle *p;
			int leaves = 0, r;

			for (int i = 0; i < deep; i++)
				dcp_buf_str(&pickle, open[kind]);
			dcp_buf_str(&pickle, "I1\n");
			for (int i = 0; i < deep; i++)
				dcp_buf_str(&pickle, close[kind]);
			dcp_buf_str(&pickle, ".");
			p = parse(pickle.p, pickle.n);
			dcp_buf_str(&out, "kept");
			r = dcp_pyjson_write(&out, NULL, dcp_pickle_root(p), NULL, 0);
			assert_int_equal(r, deep == 100 ? 0 : -E2BIG);
			if (deep == 400)
				assert_string_equal(out.p, "kept");
			r = dcp_pyjson_walk(NULL, dcp_pickle_root(p), NULL, 0, true, count,
					    &leaves);
			assert_int_equal(r, kind == 1 && deep == 400 ? -E2BIG : 0);
			dcp_pickle_free(p);
		}
}

/* Forty lists of the list before, twice: 2^40 values in a pickle of 200 bytes. */
static void shared_parts_do_not_explode(void **state)
{
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT, out = DCP_BUF_INIT;
	struct dcp_pickle *p;
	int leaves = 0;

	(void)state;
	dcp_buf_str(&pickle, "]");
	for (int i = 0; i < 40; i++)
		dcp_buf_printf(&pickle, "p%d\n0](g%d\ng%d\ne", i, i, i);
	dcp_buf_str(&pickle, ".");
	p = parse(pickle.p, pickle.n);
	assert_int_equal(dcp_pyjson_write(&out, NULL, dcp_pickle_root(p), NULL, 0), -E2BIG);
	assert_int_equal(
		dcp_pyjson_walk(NULL, dcp_pickle_root(p), NULL, 0, true, count, &leaves),
		-E2BIG);
	assert_int_equal(leaves, 0);
	dcp_pickle_free(p);
}

static void many_keys_with_duplicates(void **state)
{
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT, out = DCP_BUF_INIT;
	struct dcp_pickle *p;
	json_t *json;

	(void)state;
	dcp_buf_str(&pickle, "}(");
	for (int i = 0; i < 30000; i++)
		dcp_buf_printf(&pickle, "Vkey %d\nI%d\n", i % 20000, i);
	dcp_buf_str(&pickle, "u.");
	p = parse(pickle.p, pickle.n);
	assert_int_equal(dcp_pyjson_write(&out, NULL, dcp_pickle_root(p), NULL, 0), 0);
	json = json_loadb(out.p, out.n, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(json);
	assert_int_equal(json_object_size(json), 20000);
	assert_int_equal(json_integer_value(json_object_get(json, "key 7")), 20007);
	assert_int_equal(json_integer_value(json_object_get(json, "key 10000")), 10000);
	json_decref(json);
	dcp_pickle_free(p);
}

static void long_bytes(void **state)
{
	enum { N = 70000 };
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT, out = DCP_BUF_INIT;
	dcp_auto_free char *zeros = calloc(1, N);
	struct dcp_source src;
	struct t_zip z;
	struct dcp_torch *t;

	(void)state;
	dcp_buf_add(&pickle, "B\x70\x11\1\0", 5);
	dcp_buf_add(&pickle, zeros, N);
	dcp_buf_str(&pickle, ".");
	t = open_stream(&z, &src, pickle.p, pickle.n);
	assert_int_equal(dcp_pyjson_write(&out, NULL, dcp_torch_root(t), NULL, 0), 0);
	assert_string_equal(out.p, "{\"$bytes_at\":[5,70000]}");
	dcp_buf_reset(&out);
	assert_int_equal(dcp_pyjson_write(&out, t, dcp_torch_root(t), NULL, 0), 0);
	assert_int_equal(out.n, strlen("{\"$bytes\":\"\"}") + (N + 2) / 3 * 4);
	dcp_torch_close(t);
	t_zip_free(&z);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_objects),
		cmocka_unit_test(value_table),
		cmocka_unit_test(walk_table),
		cmocka_unit_test(tuples_can_be_opened),
		cmocka_unit_test(walks_that_open_lists),
		cmocka_unit_test(long_lists_stay_whole),
		cmocka_unit_test(caller_stops_the_walk),
		cmocka_unit_test(depth_is_limited),
		cmocka_unit_test(shared_parts_do_not_explode),
		cmocka_unit_test(many_keys_with_duplicates),
		cmocka_unit_test(long_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
