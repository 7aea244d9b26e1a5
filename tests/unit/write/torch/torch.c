/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects as values and sets as nested values: written as pickles, and read by core's own reader.
 * The files of torch are tests/cli/export.py's.
 * covers: write/pickle, save, dcp, write/value/value, write/tree, write/deepspeed_universal
 * covers: write/value/text
 */
#include "tests/unit/t.h"

#include "core/base/buf.h"
#include "core/model/tensor.h"
#include "core/origin/origin.h"
#include "core/parse/pickle/pickle.h"
#include "core/parse/pyjson/pyjson.h"
#include "core/write/pickle.h"
#include "core/write/write.h"
#include "tests/unit/t/fault.h"
#include "tests/unit/t/write.h"

static struct dcp_object object(const char *type, const char *json)
{
	return (struct dcp_object){
		.key = "o", .type = type, .json = json, .json_len = strlen(json)
	};
}

/* What a finished pickle holds: JSON, and unless NULL its type and the classes of values inside. */
static void check_pickle(const struct dcp_buf *pickle, const char *want, const char *type,
			 const char *classes)
{
	const struct dcp_source src = dcp_source_mem(pickle->p, pickle->n);
	const struct dcp_pickle_opts opts = { 0 };
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
	uint64_t left = UINT64_MAX;
	struct dcp_object o = { 0 };
	struct dcp_pickle *p;
	struct dcp_err err = { 0 };

	if (dcp_pickle_read(&src, &opts, &p, NULL, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(dcp_pyjson_object(&out, NULL, dcp_pickle_root(p), NULL, 0, &left, &o),
			 0);
	assert_null(o.error);
	assert_string_equal(o.json, want);
	assert_int_equal(o.json_len, strlen(want));
	if (type) {
		assert_string_equal(o.type, type);
		assert_string_equal(o.classes ? o.classes : "", classes ? classes : "");
	}
	dcp_pickle_free(p);
}

static const struct {
	const char *type, *json, *classes;
} values[] = {
	{ "NoneType", "null" },
	{ "bool", "true" },
	{ "list", "[false,1,-1,255,65536,-2147483649,9223372036854775807]" },
	{ "int", "9223372036854775808" },
	{ "int", "-9223372036854775809" },
	{ "int", "-1267650600228229401496703205376" },
	{ "list", "[1.0,0.1,-2.5e-300,1e+22]" },
	{ "list", "[{\"$float\":\"nan\"},{\"$float\":\"inf\"},{\"$float\":\"-inf\"}]" },
	{ "str", "\"\"" },
	{ "str", "\"a\\\"b\\\\c\\n\\u0001\\u0000\xc3\xa9\xf0\x9f\x98\x80\\udc80\"" },
	{ "tuple", "[1,[2,3],[]]", NULL },
	{ "tuple", "[1,[2,3],[]]", "2:tuple 5" },
	{ "list", "[[\"a, \\\"b\",[]],[4],{\"a\":[[]]}]", "1:tuple 3:torch.Size 4:tuple 8" },
	{ "tuple", "[]" },
	{ "dict", "{}" },
	{ "dict", "{\"a\":{\"b\":[{}]},\"\":null}" },
	{ "dict", "{\"$dict\":[[1,\"x\"],[[2,3],null]]}", "6:tuple" },
	{ "collections.OrderedDict", "{\"b\":{\"c\":{}},\"a\":{}}",
	  "1:collections.OrderedDict 2" },
	{ "dict", "{\"$dict\":[[\"$a\",1]]}" },
	{ "set", "{\"$set\":[1,[2,3]]}", "3:tuple" },
	{ "frozenset", "{\"$set\":[{\"$set\":[]}]}", "2:frozenset" },
	{ "list", "[{\"$bytes\":\"AA==\"},{\"$bytes\":\"AA==\"},{\"$set\":[]},[]]",
	  "3:bytearray 7:tuple" },
	{ "bytes", "{\"$bytes\":\"AAH+/w==\"}" },
	{ "bytes", "{\"$bytes\":\"\"}" },
	{ "range", "{\"$class\":\"range\",\"args\":[0,3,1]}" },
	{ "slice", "{\"$class\":\"slice\",\"args\":[null,[1],-1]}", "4:tuple" },
	{ "datetime.timedelta", "-1e-06" },
	{ "datetime.date", "\"2024-02-29\"" },
	{ "datetime.datetime", "\"2024-01-02T03:04:05\"" },
	{ "list", "[\"03:04:05.000006\",\"2024-01-02T03:04:05.100000-01:30\",90061.5]",
	  "1:datetime.time 2:datetime.datetime 3:datetime.timedelta" },
	{ "numpy.float16", "0.333251953125" },
	{ "numpy.complex64", "{\"$class\":\"complex\",\"args\":[1.5,{\"$float\":\"nan\"}]}" },
	{ "list",
	  "[true,-128,18446744073709551615,-9223372036854775808,{\"$float\":\"-inf\"},0.1]",
	  "1:numpy.bool 2:numpy.int8 3:numpy.uint64 4:numpy.int64 5:numpy.float32 "
	  "7:numpy.float64" },
	{ "numpy.ndarray",
	  "{\"$ndarray\":{\"dtype\":\">f4\",\"shape\":[2,1],\"data\":[[0.5],[-2.0]]}}" },
	{ "numpy.ndarray",
	  "{\"$ndarray\":{\"dtype\":\"<c16\",\"shape\":[],\"data\":{\"$class\":\"complex\","
	  "\"args\":[1.0,2.0]}}}" },
	{ "numpy.ndarray",
	  "{\"$ndarray\":{\"dtype\":\"<i2\",\"shape\":[2],\"data\":[-3,300]}}" },
	{ "tuple", "[{\"$ndarray\":{\"dtype\":\"|u1\",\"shape\":[2],\"data\":[0,255]}},[]]",
	  "9:tuple" },
	{ "complex", "{\"$class\":\"complex\",\"args\":[1.0,-2.0]}" },
	{ "torch.dtype", "{\"$class\":\"torch.dtype\",\"args\":[\"bfloat16\"]}" },
	{ "torch.device", "{\"$class\":\"torch.device\",\"args\":[\"cuda\",1]}" },
	{ "torch.Size", "[4,0]" },
};

static void values_are_read_back(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(values); i++)
		for (unsigned protocol = 2; protocol <= 4; protocol++) {
			struct dcp_object o = object(values[i].type, values[i].json);
			dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
			struct dcp_pickler p;

			t_case(values[i].json);
			o.classes = values[i].classes;
			assert_null(dcp_value_refuses(&o, false));
			dcp_pickler_init(&p, &out, protocol);
			assert_int_equal(dcp_value_put(&p, &o, NULL), 0);
			assert_int_equal(dcp_pickler_end(&p), 0);
			check_pickle(&out, values[i].json, values[i].type, values[i].classes);
		}
}

static const struct {
	const char *json, *says;
} refused[] = {
	{ "{\"$class\":\"trainer.Info\",\"state\":{}}", "instances of classes" },
	{ "{\"$class\":\"torch.dtype\",\"args\":[\"float3\"]}", "dtype" },
	{ "{\"$ndarray\":{}}", "damaged" },
	{ "{\"$ndarray\":{\"shape\":[1],\"data\":[1],\"dtype\":\"<f4\"}}", "damaged" },
	{ "{\"$ndarray\":{\"dtype\":\"<f4\",\"shape\":[2],\"data\":[1.0]}}", "damaged" },
	{ "{\"$ndarray\":{\"dtype\":\"<f4\",\"shape\":[1],\"data\":[1.0-2]}}", "damaged" },
	{ "{\"$ndarray\":{\"dtype\":\"<i2\",\"shape\":[1],\"data\":[1-2]}}", "damaged" },
	{ "{\"$ndarray\":{\"dtype\":\"<f3\",\"shape\":[1],\"data\":[1.0]}}", "damaged" },
	{ "{\"$ndarray\":{\"dtype\":\"xf4\",\"shape\":[1],\"data\":[1.0]}}", "damaged" },
	{ "{\"$ndarray\":{\"dtype\":\"<f4\",\"shape\":[1],\"data\":{\"$bytes_at\":[0,4]}}}",
	  "too long" },
	{ "{\"$ndarray\":{\"dtype\":\"<f4\",\"shape\":[-1],\"data\":[]}}", "damaged" },
	{ "{\"$cycle\":\"a\"}", "not plain" },
	{ "{\"$tensor\":\"a\"}", "tensors" },
	{ "", "damaged" },
	{ "[1", "damaged" },
	{ "[1,]", "damaged" },
	{ "{\"a\":}", "damaged" },
	{ "{\"a\"}", "damaged" },
	{ "\"abc", "damaged" },
	{ "\"\\", "damaged" },
	{ "\"\\u12", "damaged" },
	{ "\"\\q\"", "damaged" },
	{ "nul", "damaged" },
	{ "1 2", "damaged" },
	{ "1-2", "damaged" },
	{ "-", "damaged" },
	{ "{\"$bytes\":\"A*\"}", "damaged" },
	{ "{\"$dict\":[[1]]}", "damaged" },
	{ "{\"$set\":[1}", "damaged" },
	{ "{\"$set\":", "damaged" },
};

static void unfit_objects_are_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < DCP_LEN(refused); i++) {
		const struct dcp_object o = object("x", refused[i].json);
		dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
		struct dcp_pickler p;
		const char *why = dcp_value_refuses(&o, false);

		t_case(refused[i].json);
		assert_non_null(why);
		if (!strstr(why, refused[i].says))
			fail_msg("\"%s\" does not say \"%s\"", why, refused[i].says);
		dcp_pickler_init(&p, &out, 2);
		assert_int_equal(dcp_value_put(&p, &o, NULL), -EBADMSG);
	}
}

/* Numbers and text that an index may hold for a class that cannot have them. */
static void impossible_times_are_refused(void **state)
{
	const struct dcp_object o[] = {
		object("datetime.timedelta", "1e300"),
		object("datetime.timedelta", "9.1e12"),
		object("datetime.time", "\"24:00:00\""),
		object("datetime.time", "\"03:04:05x\""),
		object("datetime.date", "\"-999-01-01\""),
		object("datetime.datetime", "\"2024-01-02T03:04:05+-1:00\""),
		object("datetime.datetime", "\"2024-01-02 03:04:05\""),
		object("numpy.float32", "\"1\""),
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(o); i++) {
		t_case(o[i].json);
		assert_string_equal(dcp_value_refuses(&o[i], false), "its JSON is damaged");
	}
}

static void deep_values_are_refused(void **state)
{
	char json[601] = "";
	struct dcp_object o = object("list", json);

	(void)state;
	memset(json, '[', 300);
	memset(json + 300, ']', 300);
	o.json_len = 600;
	assert_non_null(dcp_value_refuses(&o, false));
}

/* ---- trees ---- */

#define ITEM(key_, ...)                                                                        \
	{                                                                                      \
		.key = key_, .path = (const char *const[]){ __VA_ARGS__ },                     \
		.npath = DCP_LEN(((const char *const[]){ __VA_ARGS__ })), .type = "int",       \
		.json = "0", .json_len = 1                                                     \
	}

static int put_number(void *ctx, struct dcp_pickler *p, size_t i)
{
	(void)ctx;
	dcp_pickler_u64(p, i);
	return 0;
}

static void nested_dicts_are_written(void **state)
{
	const struct dcp_object objects[] = {
		ITEM("model.a.b", "model", "a.b"), /* 0 */
		ITEM("opt.param_groups.1.lr", "opt", "param_groups", "1", "lr"),
		ITEM("opt.param_groups.0.lr", "opt", "param_groups", "0", "lr"),
		ITEM("opt.state.1.step", "opt", "state", "1", "step"), /* 3 */
		ITEM("gap.0", "gap", "0"),
		ITEM("gap.2", "gap", "2"),
		ITEM("leaf", "leaf"), /* 6 */
		ITEM("leaf.below", "leaf", "below"),
		ITEM("file.pt.x", "x"),
		ITEM("other", "not", "that"), /* 9 */
		ITEM("01.00", "01", "00"),
	};
	const struct dcp_write_set set = { .objects = objects, .nobjects = DCP_LEN(objects) };
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT, path = DCP_BUF_INIT;
	struct dcp_tree *t;
	struct dcp_pickler p;

	(void)state;
	assert_int_equal(dcp_tree_make(&set, NULL, &t), 0);
	dcp_pickler_init(&p, &out, 2);
	assert_int_equal(dcp_tree_put(t, &p, 0, put_number, NULL), 0);
	assert_int_equal(dcp_pickler_end(&p), 0);
	check_pickle(&out,
		     "{\"model\":{\"a.b\":0},"
		     "\"opt\":{\"param_groups\":[{\"lr\":2},{\"lr\":1}],"
		     "\"state\":{\"$dict\":[[1,{\"step\":3}]]}},"
		     "\"gap\":{\"0\":4,\"2\":5},\"leaf\":6,\"leaf.below\":7,"
		     "\"file.pt\":{\"x\":8},\"other\":9,\"01\":{\"00\":10}}",
		     NULL, NULL);
	dcp_pickler_init(&p, &path, 2);
	dcp_pickler_open(&p, DCP_PICKLE_TUPLE, 3);
	dcp_tree_put_path(t, &p, 1);
	dcp_tree_put_path(t, &p, 4);
	dcp_tree_put_path(t, &p, 7);
	assert_int_equal(dcp_pickler_end(&p), 0);
	check_pickle(&path,
		     "[[\"opt\",\"param_groups\",1,\"lr\"],[\"gap\",\"0\"],"
		     "[\"leaf.below\"]]",
		     NULL, NULL);
	dcp_tree_free(t);
}

/*
 * Lists of objects: of a source that opens them they are lists, and one object each where a format
 * has them so.
 */
static void lists_are_written(void **state)
{
	const struct dcp_object objects[] = {
		ITEM("a.l.1", "a", "l", "1"),
		ITEM("a.l.0.0", "a", "l", "0", "0"),
		ITEM("a.d.0.x", "a", "d", "0", "x"),
		ITEM("a.d.1.0", "a", "d", "1", "0"),
		ITEM("s", "s"),
	};
	static const struct {
		bool lists;
		size_t first[5];
		const char *key[5], *all, *paths;
	} want[] = {
		{ true,
		  { 1, 1, 2, 3, 4 },
		  { NULL, "a.l", "a.d.0.x", "a.d.1", "s" },
		  "{\"a\":{\"l\":[[1],0],\"d\":[{\"x\":2},[3]]},\"s\":4}",
		  "[[[1],0],[\"a\",\"l\"],[3],[\"a\",\"d\",1],4,[\"s\"]]" },
		{ false,
		  { 0, 1, 2, 3, 4 },
		  { "a.l.1", "a.l.0.0", "a.d.0.x", "a.d.1.0", "s" },
		  "{\"a\":{\"l\":[{\"0\":1},0],\"d\":[{\"x\":2},{\"0\":3}]},\"s\":4}",
		  "[1,[\"a\",\"l\",0,\"0\"],3,[\"a\",\"d\",1,\"0\"],4,[\"s\"]]" },
	};

	(void)state;
	for (size_t k = 0; k < DCP_LEN(want); k++) {
		const struct dcp_write_set set = { .objects = objects,
						   .nobjects = DCP_LEN(objects),
						   .lists = want[k].lists };
		dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT, paths = DCP_BUF_INIT;
		struct dcp_tree *t;
		struct dcp_pickler p;

		assert_int_equal(dcp_tree_make(&set, NULL, &t), 0);
		for (size_t i = 0; i < DCP_LEN(objects); i++) {
			assert_int_equal(dcp_tree_first(t, i), want[k].first[i]);
			if (want[k].key[i])
				assert_int_equal(dcp_tree_key(t, i), strlen(want[k].key[i]));
		}
		dcp_pickler_init(&p, &out, 2);
		assert_int_equal(dcp_tree_put(t, &p, 0, put_number, NULL), 0);
		assert_int_equal(dcp_pickler_end(&p), 0);
		check_pickle(&out, want[k].all, NULL, NULL);
		dcp_pickler_init(&p, &paths, 2);
		dcp_pickler_open(&p, DCP_PICKLE_LIST, 6);
		for (size_t i = 1; i<DCP_LEN(objects); i += i> 2 ? 1 : 2) {
			assert_int_equal(dcp_tree_put_item(t, &p, i, put_number, NULL), 0);
			dcp_tree_put_path(t, &p, i);
		}
		assert_int_equal(dcp_pickler_end(&p), 0);
		check_pickle(&paths, want[k].paths, NULL, NULL);
		dcp_tree_free(t);
	}
}

/* ---- tensors ---- */

/*
 * A key that is also the path of a container: DCP's flat keys can have it, a nested value cannot.
 */
static void keys_of_containers_are_refused(void **state)
{
	const struct dcp_object objects[] = { ITEM("a.b", "a", "b"), ITEM("a", "a") };
	const struct dcp_write_set set = { .objects = objects, .nobjects = 2, .ranks = 1 };
	const struct dcp_write_opts opts = { 0 };
	dcp_auto_buf struct dcp_buf out = DCP_BUF_INIT;
	struct dcp_err err = { 0 };
	struct dcp_tree *t;
	struct dcp_pickler p;
	struct t_write w;

	(void)state;
	assert_int_equal(dcp_tree_make(&set, NULL, &t), 0);
	assert_string_equal(dcp_tree_lost(t), "a");
	dcp_pickler_init(&p, &out, 2);
	assert_int_equal(dcp_tree_put(t, &p, 0, put_number, NULL), -EEXIST);
	dcp_buf_reset(&out);
	dcp_pickler_init(&p, &out, 2);
	dcp_tree_put_path(t, &p, 1);
	assert_int_equal(dcp_pickler_end(&p), 0);
	check_pickle(&out, "[\"a\"]", NULL, NULL);
	dcp_tree_free(t);
	assert_int_equal(t_write_run(&w, dcp_write_format("torch-save"), &set, &opts, &err),
			 -EINVAL);
	t_assert_says(&err, "a is a key, and other keys lie below it");
	t_write_finish(&w);
	assert_int_equal(t_write_run(&w, dcp_write_format("torch-dcp"), &set, &opts, &err), 0);
	t_write_finish(&w);
}

/* Tensors with the same bytes are one storage, but for those that are shown as another dtype. */
static void shared_storages_are_written_once(void **state)
{
	struct dcp_write_tensor t[] = { T_WRITE_WHOLE("a", DCP_DTYPE_F32, 4, 6, 0),
					T_WRITE_WHOLE("b", DCP_DTYPE_F32, 4, 6, 0),
					T_WRITE_WHOLE("c", DCP_DTYPE_I32, 4, 6, 0) };
	const struct dcp_write_set set = { .tensors = t, .ntensors = 3, .ranks = 1 };
	struct t_write w;

	(void)state;
	t[1].same_as = t[2].same_as = 0;
	assert_int_equal(t_write_run(&w, dcp_write_format("torch-save"), &set,
				     &(struct dcp_write_opts){ 0 }, NULL),
			 0);
	assert_int_equal(w.nruns, 2);
	t_write_finish(&w);
}

static void invalid_keys_are_refused(void **state)
{
	(void)state;
	assert_null(dcp_torch_write_refuses_key("a.\xc3\xa9\xed\xb2\x80\xc0\x80"));
	assert_null(dcp_torch_write_refuses_key(""));
	assert_non_null(dcp_torch_write_refuses_key("a\xff"));
	assert_non_null(dcp_torch_write_refuses_key("a\xc3"));
}

static void unwritable_dtypes_are_refused(void **state)
{
	struct dcp_write_tensor t = T_WRITE_WHOLE("a", DCP_DTYPE_F8_E4M3, 1, 1, 0);

	(void)state;
	assert_null(dcp_torch_write_refuses(&t));
	t.dtype = DCP_DTYPE_F6_E2M3;
	assert_non_null(dcp_torch_write_refuses(&t));
	t = (struct dcp_write_tensor){ .key = "module.../x",
				       .path = (const char *const[]){ "module", "../x" },
				       .npath = 2,
				       .dtype = DCP_DTYPE_F32 };
	assert_non_null(dcp_write_deepspeed_universal.refuses(&t)); /* it would be a folder */
	t.dtype = DCP_DTYPE_OTHER;
	assert_non_null(dcp_torch_write_refuses(&t));
}

/* A state of a parameter is one file; a module with entries of its own takes no master copies. */
static void universal_files_are_written(void **state)
{
	struct dcp_write_tensor t[] = { T_WRITE_WHOLE("a", DCP_DTYPE_F32, 4, 6, 0),
					T_WRITE_WHOLE("n", DCP_DTYPE_I64, 8, 6, 0),
					T_WRITE_WHOLE("a", DCP_DTYPE_F32, 4, 6, 0) };
	const struct dcp_write_opts opts = { 0 };
	struct dcp_err err = { 0 };
	struct dcp_write_set set = { .tensors = t, .ranks = 1 };
	const struct dcp_buf *bytes;
	struct t_write w;

	(void)state;
	for (set.ntensors = 1; set.ntensors <= 2;
	     set.ntensors++) { /* a and its copy; a and n */
		assert_int_equal(
			t_write_run(&w, &dcp_write_deepspeed_universal, &set, &opts, &err), 0);
		assert_int_equal(w.nruns, 2);
		bytes = &t_write_file(&w, "universal/zero/a/fp32.pt")->bytes;
		assert_non_null(memmem(bytes->p, bytes->n, "cat_dim", 7));
		t_write_finish(&w);
	}
	assert_int_equal(t_write_run(&w, &dcp_write_deepspeed_universal, &set, &opts, &err),
			 -EINVAL);
	t_assert_says(&err, "a is state fp32 of a, and so is another: --skip one");
	t_write_finish(&w);
	t[0].path = (const char *const[]){ "fp32", "a" };
	t[0].npath = 2;
	assert_null(dcp_write_deepspeed_universal.refuses(&t[0]));
	t[0].path = (const char *const[]){ "fp32", ".a" };
	t[0].npath = 2;
	assert_non_null(
		dcp_write_deepspeed_universal.refuses(&t[0])); /* hidden, of DeepSpeed's */
}

/* Whichever allocation fails: files are whole, or the lack of memory is said. */
static void no_file_is_cut_short_without_memory(void **state)
{
	const struct dcp_write_tensor t = T_WRITE_WHOLE("a", DCP_DTYPE_F32, 4, 6, 0);
	const struct dcp_object o = ITEM("step", "step");
	const struct dcp_write_set set = {
		.tensors = &t, .ntensors = 1, .objects = &o, .nobjects = 1, .ranks = 1
	};
	const struct dcp_write_opts opts = { 0 };
	struct t_write whole, w;

	(void)state;
	for (size_t f = 0; dcp_write_formats[f]; f++) {
		bool failed = true;

		t_case(dcp_write_formats[f]->name);
		assert_int_equal(t_write_run(&whole, dcp_write_formats[f], &set, &opts, NULL),
				 0);
		for (long n = 1; failed; n++) {
			int rc;

			t_fault_memory = n;
			rc = t_write_run(&w, dcp_write_formats[f], &set, &opts, NULL);
			failed = t_fault_memory == 0;
			t_fault_memory = 0;
			assert_true(rc == 0 || rc == -ENOMEM);
			for (size_t i = 0; rc == 0 && i < whole.nfiles; i++) {
				assert_int_equal(w.file[i].bytes.n, whole.file[i].bytes.n);
				assert_memory_equal(w.file[i].bytes.p, whole.file[i].bytes.p,
						    w.file[i].bytes.n);
			}
			t_write_finish(&w);
		}
		t_write_finish(&whole);
	}
}

/* A rank without parts has an empty file; items begin at multiples of 64. */
static void ranks_are_written(void **state)
{
	const uint64_t shape[] = { 4, 3 }, top[] = { 0, 0 }, low[] = { 3, 0 },
		       three[] = { 3, 3 }, one[] = { 1, 3 };
	const struct dcp_write_part parts[] = { { 2, 2, top, three }, { 0, 2, low, one } };
	const struct dcp_write_tensor t = { .key = "w",
					    .path = (const char *const[]){ "w" },
					    .npath = 1,
					    .dtype = DCP_DTYPE_F32,
					    .itemsize = 4,
					    .ndim = 2,
					    .shape = shape,
					    .parts = parts,
					    .nparts = 2,
					    .same_as = DCP_WRITE_ALONE };
	const struct dcp_object o = ITEM("step", "step");
	const struct dcp_write_set set = {
		.tensors = &t, .ntensors = 1, .objects = &o, .nobjects = 1, .ranks = 3
	};
	const char *data, *end;
	int items = 0;
	struct t_write w;

	(void)state;
	assert_int_equal(t_write_run(&w, dcp_write_format("torch-dcp"), &set,
				     &(struct dcp_write_opts){ 0 }, NULL),
			 0);
	assert_int_equal(w.nfiles, 4);
	assert_string_equal(w.file[3].name, ".metadata");
	assert_true(w.file[3].last);
	assert_int_equal(t_write_file(&w, "__1_0.distcp")->bytes.n, 0);
	/* the object, and behind it the second part */
	data = t_write_file(&w, "__0_0.distcp")->bytes.p;
	assert_memory_equal(data, "PK\3\4", 4);
	end = data + t_write_file(&w, "__0_0.distcp")->bytes.n;
	for (const char *p = data; (p = memmem(p, (size_t)(end - p), "PK\3\4", 4)); p += 4)
		if (memcmp(p + 30, "archive/data.pkl", 16) == 0) {
			assert_int_equal((p - data) % 64, 0);
			items++;
		}
	assert_int_equal(items, 2);
	data = t_write_file(&w, "__2_0.distcp")->bytes.p;
	for (size_t i = 0; i < 36; i++)
		assert_int_equal((unsigned char)data[448 + i], t_write_byte(0, 0, i));
	t_write_finish(&w);
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_are_read_back),
		cmocka_unit_test(unfit_objects_are_refused),
		cmocka_unit_test(deep_values_are_refused),
		cmocka_unit_test(impossible_times_are_refused),
		cmocka_unit_test(nested_dicts_are_written),
		cmocka_unit_test(lists_are_written),
		cmocka_unit_test(ranks_are_written),
		cmocka_unit_test(unwritable_dtypes_are_refused),
		cmocka_unit_test(keys_of_containers_are_refused),
		cmocka_unit_test(invalid_keys_are_refused),
		cmocka_unit_test(shared_storages_are_written_once),
		cmocka_unit_test(universal_files_are_written),
		cmocka_unit_test(no_file_is_cut_short_without_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
