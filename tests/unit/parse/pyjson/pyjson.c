/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/base/base.h"
#include "core/base/buf.h"
#include "core/origin/origin.h"
#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/golden.h"
#include "tests/unit/t/parse/source.h"
#include "tests/unit/t/parse/zip.h"

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

static void golden_objects_are_written(void **state)
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
#define REBUILT(class, base)                                                                   \
	"ccopy_reg\n_reconstructor\n(cmine\n" class "\nc__builtin__\n" base "\n"
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
	{ "namedtuple",               P("cmine\nPoint\n(I1\nI2\nt\x81."), "mine.Point", "{\"$class\":\"mine.Point\",\"args\":[1,2]}" },
	{ "the same, protocol 1",     P(REBUILT("Point", "tuple") "(I1\nI2\nttR."), "mine.Point", "{\"$class\":\"mine.Point\",\"args\":[1,2]}" },
	{ "it may be a subclass of tuple", P(REBUILT("Point", "tuple") "((I1\nlttR."), "mine.Point",
	  "{\"$class\":\"mine.Point\",\"args\":[{\"$class\":\"type\",\"args\":[\"tuple\"]},[[1]]]}" },
	{ "subclass of list, protocol 1", P(REBUILT("List", "list") "(I1\nI2\nltR."), "mine.List", "{\"$class\":\"mine.List\",\"items\":[1,2]}" },
	{ "subclass of dict, protocol 1", P(REBUILT("Dict", "dict") "(dVa\nI2\nstR."), "mine.Dict", "{\"$class\":\"mine.Dict\",\"dict\":{\"a\":2}}" },
	{ "subclass of str, protocol 1", P(REBUILT("Text", "unicode") "Va\ntR."), "mine.Text", "{\"$class\":\"mine.Text\",\"args\":[\"a\"]}" },
	{ "OrderedDict of Python 2",  P("ccollections\nOrderedDict\n(((Vb\nI1\nl(Va\nI2\nlltR."), "collections.OrderedDict", "{\"b\":1,\"a\":2}" },
	{ "an empty one",             P("ccollections\nOrderedDict\n((ltR."), "collections.OrderedDict", "{}" },
	{ "what is no list of pairs", P("ccollections\nOrderedDict\n(((Vb\nlltR."), "collections.OrderedDict",
	  "{\"$class\":\"collections.OrderedDict\",\"args\":[[[\"b\"]]]}" },
	{ "keyword arguments",        P("cmine\nKw\n)}Va\nI1\ns\x92."), "mine.Kw", "{\"$class\":\"mine.Kw\",\"kwargs\":{\"a\":1}}" },
	{ "a class itself",           P("c__builtin__\nlong\n."), "type", "{\"$class\":\"type\",\"args\":[\"int\"]}" },
	{ "a call is never made",     P("cos\nsystem\n(Vtouch PWNED\ntR."), "os.system", "{\"$class\":\"os.system\",\"args\":[\"touch PWNED\"]}" },
	{ "nested stream stays shut", P("ctorch.storage\n_load_from_bytes\n(C\2PKtR."), "torch.storage._load_from_bytes",
	  "{\"$class\":\"torch.storage._load_from_bytes\",\"args\":[{\"$bytes\":\"UEs=\"}]}" },
	{ "a storage",                P("(Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI4\ntQ."), "torch.FloatStorage", "{\"$class\":\"torch.FloatStorage\",\"args\":[\"0\",\"cpu\",4]}" },
	{ "numpy array",              P(NDARRAY "(I1\n(I2\nI1\nt" DTYPE("u2", "<") "I00\nC\4\1\0\2\0tb."), "numpy.ndarray",
	  "{\"$ndarray\":{\"dtype\":\"<u2\",\"shape\":[2,1],\"data\":[[1],[2]]}}" },
	{ "numpy array, big-endian",  P(NDARRAY "(I1\n(I2\nt" DTYPE("u2", ">") "I00\nC\4\1\0\2\0tb."), "numpy.ndarray",
	  "{\"$ndarray\":{\"dtype\":\">u2\",\"shape\":[2],\"data\":[256,512]}}" },
	{ "numpy array, by columns",  P(NDARRAY "(I1\n(I2\nI2\nt" DTYPE("b1", "|") "I01\nC\4\1\0\1\0tb."), "numpy.ndarray",
	  "{\"$ndarray\":{\"dtype\":\"|b1\",\"shape\":[2,2],\"data\":[[true,true],[false,false]]}}" },
	{ "numpy array, protocol 2",  P(NDARRAY "(I1\n(I2\nt" DTYPE("u1", "|") "I00\nc_codecs\nencode\n(Va\\u00ff\nVlatin1\ntRtb."), "numpy.ndarray",
	  "{\"$ndarray\":{\"dtype\":\"|u1\",\"shape\":[2],\"data\":[97,255]}}" },
	{ "numpy array, protocol 5",  P("cnumpy._core.numeric\n_frombuffer\n(\x96\2\0\0\0\0\0\0\0ab" DTYPE("i1", "|") "(I2\ntVC\ntR."), "numpy.ndarray",
	  "{\"$ndarray\":{\"dtype\":\"|i1\",\"shape\":[2],\"data\":[97,98]}}" },
	{ "numpy scalar",             P("cnumpy._core.multiarray\nscalar\n(" DTYPE("f8", "<") "C\x08\0\0\0\0\0\0\4\x40tR."), "numpy.float64",
	  "2.5" },
	{ "numpy scalar, single",     P("cnumpy._core.multiarray\nscalar\n(" DTYPE("f4", ">") "C\4\x3d\xcc\xcc\xcdtR."), "numpy.float32", "0.10000000149011612" },
	{ "numpy scalar, half",       P("cnumpy._core.multiarray\nscalar\n(" DTYPE("f2", "<") "C\2\1\x80tR."), "numpy.float16", "-5.9604644775390625e-08" },
	{ "numpy scalar, infinite",   P("cnumpy._core.multiarray\nscalar\n(" DTYPE("f2", "<") "C\2\0\x7ctR."), "numpy.float16", "{\"$float\":\"inf\"}" },
	{ "numpy scalar, negative",   P("cnumpy._core.multiarray\nscalar\n(" DTYPE("i2", "<") "C\2\376\xfftR."), "numpy.int16", "-2" },
	{ "numpy scalar, unsigned",   P("cnumpy._core.multiarray\nscalar\n(" DTYPE("u8", "<") "C\x08\xff\xff\xff\xff\xff\xff\xff\xfftR."), "numpy.uint64", "18446744073709551615" },
	{ "numpy scalar, complex",    P("cnumpy._core.multiarray\nscalar\n(" DTYPE("c8", ">") "C\x08\x3f\x80\0\0\xbf\0\0\0tR."), "numpy.complex64", "{\"$class\":\"complex\",\"args\":[1.0,-0.5]}" },
	{ "numpy array of nothing",   P(NDARRAY "(I1\n(I0\nt" DTYPE("u2", "<") "I00\nC\0tb."), "numpy.ndarray", "{\"$ndarray\":{\"dtype\":\"<u2\",\"shape\":[0],\"data\":[]}}" },
	{ "numpy array of no rows",   P(NDARRAY "(I1\n(I9\nI0\nt" DTYPE("u2", "<") "I00\nC\0tb."), "numpy.ndarray", "{\"$ndarray\":{\"dtype\":\"<u2\",\"shape\":[9,0],\"data\":{\"$bytes\":\"\"}}}" },
	{ "datetime",                 P("cdatetime\ndatetime\n(C\12\7\350\1\2\3\4\5\0\0\6tR."), "datetime.datetime", "\"2024-01-02T03:04:05.000006\"" },
	{ "datetime, protocol 2",     P("cdatetime\ndatetime\n(c_codecs\nencode\n(V\\u0007\\u00e8\\u0001\\u0002\\u0003\\u0004\\u0005\\u0000\\u0000\\u0000\nVlatin1\ntRtR."), "datetime.datetime", "\"2024-01-02T03:04:05\"" },
	{ "datetime with its zone",   P("cdatetime\ndatetime\n(C\12\7\350\1\2\3\4\5\0\0\0cdatetime\ntimezone\n(cdatetime\ntimedelta\n(I-1\nI81000\nI0\ntRtRtR."), "datetime.datetime", "\"2024-01-02T03:04:05-01:30\"" },
	{ "date",                     P("cdatetime\ndate\n(C\4\7\350\14\37tR."), "datetime.date", "\"2024-12-31\"" },
	{ "time of a day",            P("cdatetime\ntime\n(C\6\27\73\0\0\0\0tR."), "datetime.time", "\"23:59:00\"" },
	{ "date of day 0",            P("cdatetime\ndate\n(C\4\7\350\14\0tR."), "datetime.date", "{\"$class\":\"datetime.date\",\"args\":[{\"$bytes\":\"B+gMAA==\"}]}" },
	{ "datetime, a day from UTC", P("cdatetime\ndatetime\n(C\12\7\350\1\2\3\4\5\0\0\0cdatetime\ntimezone\n(cdatetime\ntimedelta\n(I1\nI0\nI0\ntRtRtR."), "datetime.datetime",
	  "{\"$class\":\"datetime.datetime\",\"args\":[{\"$bytes\":\"B+gBAgMEBQAAAA==\"},{\"$class\":\"datetime.timezone\",\"args\":[86400.0]}]}" },
	{ "datetime, second of two",  P("cdatetime\ndate\n(C\4\7\350\201\37tR."), "datetime.date", "{\"$class\":\"datetime.date\",\"args\":[{\"$bytes\":\"B+iBHw==\"}]}" },
	{ "numpy array, overflowing", P(NDARRAY "(I1\n(I4294967296\nI4294967296\nt" DTYPE("u1", "|") "I00\nC\0tb."), "numpy.ndarray",
	  "{\"$class\":\"numpy.core.multiarray._reconstruct\",\"args\":[{\"$class\":\"type\",\"args\":[\"numpy.ndarray\"]},[0],{\"$bytes\":\"Yg==\"}],"
	  "\"state\":[1,[4294967296,4294967296],{\"$class\":\"numpy.dtype\",\"args\":[\"u1\",0,1],\"state\":[3,\"|\",null,null,null,-1,-1,0]},false,{\"$bytes\":\"\"}]}" },
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

static void values_become_json(void **state)
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

/* ---- limits ---- */

/* The pairs of one list are not copied for each of many calls: that would be the square of them. */
static void pairs_are_no_more_than_bytes(void **state)
{
	dcp_auto_buf struct dcp_buf b = DCP_BUF_INIT;
	struct dcp_pickle *p;
	size_t n = 0;
	const struct dcp_pv *made;

	(void)state;
	dcp_buf_str(&b, "ccollections\nOrderedDict\nq\2"
			"0(I1\nI2\ntq\1"
			"0](");
	for (int i = 0; i < 100; i++)
		dcp_buf_str(&b, "h\1");
	dcp_buf_str(&b, "eq\3"
			"0(");
	for (int i = 0; i < 10; i++)
		dcp_buf_str(&b, "h\2h\3\x85R");
	dcp_buf_str(&b, "l.");
	p = parse(b.p, b.n);
	made = dcp_pv_items(dcp_pickle_root(p), &n);
	assert_int_equal(n, 10);
	assert_int_equal(made[0].node->obj->dict.type, DCP_PV_DICT);
	assert_int_equal(made[9].node->obj->dict.type, DCP_PV_NONE);
	assert_int_equal(dcp_pv_item(made[9].node->obj->args, 0).node->nitems, 100);
	dcp_pickle_free(p);
}

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
	assert_int_equal(dcp_pyjson_walk_with(NULL, dcp_pickle_root(p),
					      &(struct dcp_walk){ .how = true }, stop_at_second,
					      &calls),
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
			r = dcp_pyjson_walk_with(NULL, dcp_pickle_root(p),
						 &(struct dcp_walk){ .how = true }, count,
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
	assert_int_equal(dcp_pyjson_walk_with(NULL, dcp_pickle_root(p),
					      &(struct dcp_walk){ .how = true }, count,
					      &leaves),
			 -E2BIG);
	assert_int_equal(leaves, 0);
	dcp_pickle_free(p);
}

/*
 * A short stream may show fewer containers than a long one: the last list has the one before so
 * often.
 */
static void containers_are_held_to_the_stream(void **state)
{
	(void)state;
	for (int often = 8; often <= 9; often++) {
		dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT, out = DCP_BUF_INIT;
		struct dcp_source src;
		struct t_zip z;
		struct dcp_torch *t;

		dcp_buf_str(&pickle, "]p0\n");
		for (int i = 0; i < 4; i++) {
			dcp_buf_str(&pickle, "0](");
			for (int k = 0; k < (i < 3 ? 8 : often); k++)
				dcp_buf_printf(&pickle, "g%d\n", i);
			dcp_buf_printf(&pickle, "ep%d\n", i + 1);
		}
		dcp_buf_str(&pickle, ".");
		t = t_torch_stream(&z, &src, pickle.p, pickle.n);
		assert_int_equal(dcp_pyjson_write(&out, t, dcp_torch_root(t), NULL, 0),
				 often == 8 ? 0 : -E2BIG);
		dcp_torch_close(t);
		t_zip_free(&z);
	}
}

static void the_last_of_duplicate_keys_counts(void **state)
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

static void long_bytes_are_written_on_request(void **state)
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
	t = t_torch_stream(&z, &src, pickle.p, pickle.n);
	assert_int_equal(dcp_pyjson_write(&out, NULL, dcp_torch_root(t), NULL, 0), 0);
	assert_string_equal(out.p, "{\"$bytes_at\":[5,70000]}");
	dcp_buf_reset(&out);
	assert_int_equal(dcp_pyjson_write(&out, t, dcp_torch_root(t), NULL, 0), 0);
	assert_int_equal(out.n, strlen("{\"$bytes\":\"\"}") + (N + 2) / 3 * 4);
	dcp_torch_close(t);
	t_zip_free(&z);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_objects_are_written),
		cmocka_unit_test(values_become_json),
		cmocka_unit_test(pairs_are_no_more_than_bytes),
		cmocka_unit_test(caller_stops_the_walk),
		cmocka_unit_test(depth_is_limited),
		cmocka_unit_test(shared_parts_do_not_explode),
		cmocka_unit_test(containers_are_held_to_the_stream),
		cmocka_unit_test(the_last_of_duplicate_keys_counts),
		cmocka_unit_test(long_bytes_are_written_on_request),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
