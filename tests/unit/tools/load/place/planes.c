/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices by name, and copies of planes to one that runs no kernel.
 * covers: tools/load/memory/cuda, tools/load/memory/device
 */
#include "tests/unit/t.h"

#include "tests/unit/t/format/torch.h"
#include "tests/unit/t/load.h"
#include "tests/unit/t/parse/zip.h"
#include "tools/load/memory/memory.h"

static struct dcpload *open_on(const struct t_dir *d, const char *name)
{
	const struct dcpload_config config = { .size = sizeof(config),
					       .device = getenv("DCPFS_DEVICE"),
					       .cache = "" };
	struct dcpload_error err;
	struct dcpload *ck;

	if (dcpload_open(NULL, t_dir_path(d, name), &config, &ck, &err) < 0)
		fail_msg("%s", err.text);
	return ck;
}

/* A view of a storage whose planes are not whole rows. */
static void put_view(const struct t_dir *d)
{
	static const int64_t shape[] = { 3, 4, 2 }, stride[] = { 101, 24, 1 };
	dcp_auto_buf struct dcp_buf pickle = DCP_BUF_INIT;
	struct t_zip z = { .torch = true };
	float data[400];

	for (size_t i = 0; i < DCP_LEN(data); i++)
		data[i] = (float)i;
	t_pk_start(&pickle);
	t_pk_tensor(&pickle, "FloatStorage", "0", DCP_LEN(data), 0, shape, stride, 3);
	t_pk_stop(&pickle);
	t_zip_add(&z, "archive/data.pkl", pickle.p, pickle.n);
	t_zip_add(&z, "archive/data/0", data, sizeof(data));
	t_zip_end(&z);
	t_dir_put(d, "view.pt", z.b.p, z.b.n);
	t_zip_free(&z);
}

/*
 * Planes of a file as an array of their own: where there is no kernel they are one copy, if they
 * can be.
 */
static void planes_of_a_file_become_an_array(void **state)
{
	const uint64_t lo[] = { 1, 3, 2 }, len[] = { 3, 5, 4 };
	const struct dcpload_want want = {
		.size = sizeof(want), .ndim = 3, .key = "model.f", .lo = lo, .len = len
	};
	struct t_dir d;

	(void)state;

	t_dir_make(&d, "test_planes");
	put_view(&d);
	t_load_put(
		&d, "model.safetensors",
		"{\"model.f\":{\"dtype\":\"F32\",\"shape\":[8,16,8],\"data_offsets\":[0,4096]},"
		"\"model.b\":{\"dtype\":\"U8\",\"shape\":[64,64],\"data_offsets\":[4096,8192]}}"
		"  ",
		3);
	assert_int_equal(setenv("FAKE_CUDA_FAIL", "cuModuleLoadData:0:222", 1), 0);
	for (int view = 0; view < 2; view++) {
		struct dcpload *ck = open_on(&d, view ? "view.pt" : "model.safetensors");
		struct dcpload_error err = { 0 };
		struct dcpload_plan *p;

		assert_int_equal(dcpload_plan_create(ck, 0, &p, &err), 0);
		assert_int_equal(view ? dcpload_want_layout(p, "fsdp1", 0, NULL, &err)
				      : dcpload_want(p, &want, &err),
				 0);
		assert_int_equal(dcpload_plan_finish(p, &err), 0);
		if (dcpload_execute(p, &err) < 0 || dcpload_check(p, &err) < 0)
			fail_msg("%s", err.text);
		dcpload_plan_free(p);
		dcpload_close(ck);
	}
	unsetenv("FAKE_CUDA_FAIL");
	t_dir_remove(&d);
}

/* ---- names ---- */

static void device_names_are_resolved(void **state)
{
	static const struct {
		const char *name, *says;
		uint32_t local, number;
		int rc;
	} rows[] = {
		{ "cuda", "asked for", 1, 1, 0 },
		{ "cuda:LOCAL_RANK", "asked for", 3, 1, 0 }, /* of two */
		{ "cuda:1", "asked for", 0, 1, 0 },
		{ "auto", "there is one", 0, 0, 0 },
		{ "cuda:2", "there is no cuda:2, only 0 to 1", 0, 0, -ENODEV },
		{ "cuda:x", "no device is called \"cuda:x\"", 0, 0, -EINVAL },
		{ "cuda:1,managed", "asked for", 0, 1, 0 },
		{ "auto,pinned", "there is one", 0, 0, 0 },
		{ "cuda:4294967296", "no device is called", 0, 0, -EINVAL },
		{ "cuda:1managed", "no device is called", 0, 0, -EINVAL },
		{ "cuda,device", "no device is called", 0, 0, -EINVAL },
		{ "cudas", "no device is called \"cudas\"", 0, 0, -EINVAL },
		{ "hip", "no device is called \"hip\"", 0, 0, -EINVAL },
	};

	(void)state;
	setenv("FAKE_CUDA_GPUS", "2", 1);
	for (size_t i = 0; i < DCP_LEN(rows); i++) {
		struct dcpload_error err = { 0 };
		struct load_device *dev = NULL;
		char why[160];

		t_case(rows[i].name);
		assert_int_equal(load_device_open(rows[i].name, rows[i].local, &dev, why,
						  sizeof(why), &err),
				 rows[i].rc);
		assert_non_null(strstr(rows[i].rc ? err.text : why, rows[i].says));
		if (rows[i].rc == 0)
			assert_int_equal(dev->number, rows[i].number);
		load_device_close(dev);
	}
}

T_TESTS()
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(planes_of_a_file_become_an_array),
					    cmocka_unit_test(device_names_are_resolved) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
