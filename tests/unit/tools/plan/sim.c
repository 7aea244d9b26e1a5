/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t.h"

#include "core/model/job/job.h"
#include "tools/plan/plan.h"

static void rates_are_read(void **state)
{
	static const struct {
		const char *text;
		double rate; /* 0: refused */
	} cases[] = {
		{ "25GB/s", 25e9 },
		{ "25G", 25e9 },
		{ "2e9", 2e9 },
		{ "400Gb/s", 50e9 },
		{ "1.5TB/s", 1.5e12 },
		{ "1KiB/s", 1024 },
		{ "2MiB", 2097152 },
		{ "3k", 3000 },
		{ "8b/s", 1 },
		{ "7", 7 },
		{ "", 0 },
		{ "GB/s", 0 },
		{ "0", 0 },
		{ "-1GB/s", 0 },
		{ " 1", 0 },
		{ "1 GB/s", 0 },
		{ "inf", 0 },
		{ "nan", 0 },
		{ "1e19", 0 },
		{ "5GB/h", 0 },
		{ "5GBs", 0 },
		{ "5XB/s", 0 },
		{ "5GB/s ", 0 },
		{ "0x10", 16 },
	};

	(void)state;
	for (size_t i = 0; i < DCP_LEN(cases); i++) {
		double rate = 0;

		t_case(cases[i].text);
		assert_int_equal(plan_sim_rate(cases[i].text, &rate), cases[i].rate > 0);
		if (cases[i].rate > 0)
			assert_true(rate == cases[i].rate);
	}
}

static void bad_options_are_refused(void **state)
{
	static const struct {
		const char *text, *says;
	} bad[] = {
		{ "node=3", "knows no \"node\", nearest is nodes" },
		{ "frobnicate=3", "knows no \"frobnicate\"; there are" },
		{ "nodes", "takes name=value, found \"nodes\"" },
		{ "nodes=0", "nodes takes a number from 1 to" },
		{ "gpus=x", "found \"x\"" },
		{ "disk=", "disk takes bytes a second" },
		{ "nodes=2", "2 nodes of 8 GPUs have room for 16 ranks, the layout has 20" },
	};
	struct plan_sim s;

	(void)state;
	t_case("nothing said");
	assert_int_equal(plan_sim_parse(&s, "", 20, NULL), 0);
	assert_true(s.on && s.nodes == 3 && s.gpus == 8 && s.disk == 25e9 && s.net == 50e9 &&
		    s.store == 0);
	t_case("everything said");
	assert_int_equal(plan_sim_parse(&s, "nodes=9,gpus=4,disk=1,net=2,store=3", 20, NULL),
			 0);
	assert_true(s.nodes == 9 && s.gpus == 4 && s.disk == 1 && s.net == 2 && s.store == 3);
	t_case("room for just as many");
	assert_int_equal(plan_sim_parse(&s, "nodes=2", 16, NULL), 0);
	for (size_t i = 0; i < DCP_LEN(bad); i++) {
		struct dcp_err err = { 0 };

		t_case(bad[i].text);
		assert_int_equal(plan_sim_parse(&s, bad[i].text, 20, &err), -EINVAL);
		t_assert_says(&err, bad[i].says);
	}
}

/* Four ranks on two nodes; numbers that can be checked in the head. */
static void times_are_simulated(void **state)
{
	const struct dcp_job_flow rank[4] = {
		{ .needs = 100 }, { .needs = 100 }, { .needs = 300 }, { .needs = 100 }
	};
	struct dcp_job_flow node[2] = {
		{ .needs = 100, .reads = 150, .sends = 40, .receives = 10 },
		{ .needs = 300, .reads = 150, .sends = 10, .receives = 80 },
	};
	struct plan_sim s = { .nodes = 2, .gpus = 2, .disk = 10, .net = 4 };
	struct plan_time t[PLAN_WAYS];

	(void)state;
	assert_int_equal(plan_sim_times(&s, rank, 4, node, 2, false, t), 3);
	assert_true(t[0].read == 40 && t[0].send == 0 && t[0].total == 40 && t[0].node == 1);
	assert_string_equal(t[0].limit, "disk");
	assert_true(t[1].read == 30 && t[1].total == 30 && t[1].node == 1);
	assert_true(t[2].read == 15 && t[2].send == 20 && t[2].total == 20 && t[2].node == 1);
	assert_string_equal(t[2].limit, "network in");
	t_case("a network as fast as the disks does not limit");
	node[1].receives = 60;
	assert_int_equal(plan_sim_times(&s, rank, 4, node, 2, true, t), 1);
	assert_true(t[0].read == 15 && t[0].send == 15 && t[0].total == 15);
	assert_string_equal(t[0].limit, "disk");
	node[1].receives = 80;
	t_case("all storage together is slower than any disk");
	s.store = 5;
	assert_int_equal(plan_sim_times(&s, rank, 4, node, 2, false, t), 3);
	assert_true(t[0].read == 120);
	assert_string_equal(t[0].limit, "store");
	assert_true(t[2].read == 60 && t[2].send == 20 && t[2].total == 60);
	assert_string_equal(t[2].limit, "store");
	t_case("a node that sends more than any receives");
	s.store = 0;
	s.net = 0.5;
	node[0].sends = 90;
	assert_int_equal(plan_sim_times(&s, rank, 4, node, 2, true, t), 1);
	assert_true(t[0].send == 180 && t[0].node == 0);
	assert_string_equal(t[0].limit, "network out");
}

T_TESTS()
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rates_are_read),
		cmocka_unit_test(bad_options_are_refused),
		cmocka_unit_test(times_are_simulated),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
