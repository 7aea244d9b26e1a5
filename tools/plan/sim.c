/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/plan/plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/base.h"
#include "core/base/err.h"
#include "core/base/text.h"
#include "core/model/job/job.h"
#include "tools/opt.h"

enum { MAX_NODES = 1 << 20, MAX_WORD = 64 };

bool plan_sim_rate(const char *text, double *out)
{
	static const char prefixes[] = "kMGTP";
	const char *end;
	double v = dcp_read_float(text, &end);
	const char *prefix = *end ? strchr(prefixes, *end == 'K' ? 'k' : *end) : NULL;
	double base = 1000;

	if (end == text || strchr("+- \tniNI", *text))
		return false;
	if (prefix) {
		end++;
		if (*end == 'i') {
			base = 1024;
			end++;
		}
		for (; prefix >= prefixes; prefix--)
			v *= base;
	}
	if (*end == 'b' || *end == 'B')
		v /= *end++ == 'b' ? 8 : 1;
	if (strcmp(end, "/s") == 0)
		end += 2;
	*out = v;
	return *end == '\0' && v > 0 && v < 1e18;
}

static int fail_unknown(const char *word, struct dcp_err *err)
{
	static const char *const known[] = { "nodes", "gpus", "disk", "store", "net" };
	struct dcp_near nearness = dcp_near_to(word);
	const char *near = NULL;

	for (size_t i = 0; i < DCP_LEN(known); i++)
		if (dcp_near_take(&nearness, known[i]))
			near = known[i];
	return dcp_fail(err, -EINVAL,
			"--simulate knows no \"%.40s\"%s%s; there are nodes, gpus, disk, store "
			"and net",
			word, near ? ", nearest is " : "", near ? near : "");
}

static int set_number(struct plan_sim *s, const char *name, const char *value,
		      struct dcp_err *err)
{
	uint64_t *number = !strcmp(name, "nodes")  ? &s->nodes
			   : !strcmp(name, "gpus") ? &s->gpus
						   : NULL;
	double *rate = !strcmp(name, "disk")    ? &s->disk
		       : !strcmp(name, "store") ? &s->store
		       : !strcmp(name, "net")   ? &s->net
						: NULL;

	if (!number && !rate)
		return fail_unknown(name, err);
	if (number && opt_number(value, 10, number) && *number && *number <= MAX_NODES)
		return 0;
	if (rate && plan_sim_rate(value, rate))
		return 0;
	return dcp_fail(err, -EINVAL, "--simulate: %s takes %s, found \"%.40s\"", name,
			number ? "a number from 1 to 1048576"
			       : "bytes a second, like 25GB/s or 400Gb/s",
			value);
}

int plan_sim_parse(struct plan_sim *s, const char *text, uint32_t ranks, struct dcp_err *err)
{
	*s = (struct plan_sim){ .on = true, .gpus = 8, .disk = 25e9, .net = 50e9 };
	while (*text) {
		size_t n = strcspn(text, ",");
		char word[MAX_WORD], *value;
		int rc;

		snprintf(word, sizeof(word), "%.*s", (int)DCP_MIN(n, sizeof(word) - 1), text);
		text += n + (text[n] == ',');
		value = strchr(word, '=');
		if (!value)
			return dcp_fail(err, -EINVAL,
					"--simulate takes name=value, found \"%.40s\"; as in "
					"nodes=64,gpus=8,disk=25GB/s,net=50GB/s",
					word);
		*value++ = '\0';
		rc = set_number(s, word, value, err);
		if (rc < 0)
			return rc;
	}
	if (!s->nodes)
		s->nodes = (ranks + s->gpus - 1) / s->gpus;
	if (s->nodes * s->gpus < ranks)
		return dcp_fail(err, -EINVAL,
				"--simulate: %llu node%s of %llu GPU%s have room for %llu "
				"rank%s, the layout "
				"has %u",
				(unsigned long long)s->nodes, dcp_s(s->nodes),
				(unsigned long long)s->gpus, dcp_s(s->gpus),
				(unsigned long long)(s->nodes * s->gpus),
				dcp_s(s->nodes * s->gpus), ranks);
	return 0;
}

static double at_least(double seconds, uint64_t bytes, double rate)
{
	return rate > 0 ? DCP_MAX(seconds, (double)bytes / rate) : seconds;
}

/* Time of reading @bytes on each node without an exchange. */
static struct plan_time time_alone(const struct plan_sim *s, const char *way,
				   const uint64_t *bytes, uint32_t nodes)
{
	struct plan_time t = { .way = way, .limit = "disk" };
	uint64_t all = 0;

	for (uint32_t n = 0; n < nodes; n++) {
		all += bytes[n];
		if ((double)bytes[n] / s->disk > t.read) {
			t.read = (double)bytes[n] / s->disk;
			t.node = n;
		}
	}
	if (at_least(t.read, all, s->store) > t.read) {
		t.read = at_least(t.read, all, s->store);
		t.limit = "store";
	}
	t.total = t.read;
	return t;
}

static struct plan_time time_together(const struct plan_sim *s, const uint64_t *reads,
				      const struct dcp_job_flow *node, uint32_t nodes)
{
	struct plan_time t = time_alone(s, "together", reads, nodes);

	for (uint32_t n = 0; n < nodes; n++) {
		uint64_t most = DCP_MAX(node[n].sends, node[n].receives);

		if ((double)most / s->net <= t.send)
			continue;
		t.send = (double)most / s->net;
		if (t.send > t.read) {
			t.limit =
				node[n].sends > node[n].receives ? "network out" : "network in";
			t.node = n;
		}
	}
	t.total = DCP_MAX(t.read, t.send);
	return t;
}

uint32_t plan_sim_times(const struct plan_sim *s, const struct dcp_job_flow *rank,
			uint32_t ranks, const struct dcp_job_flow *node, uint32_t nodes,
			bool held, struct plan_time out[PLAN_WAYS])
{
	uint64_t *bytes = calloc(nodes, sizeof(*bytes));
	uint32_t n = 0;

	if (!bytes)
		return 0;
	for (uint32_t r = 0; r < ranks; r++)
		bytes[r / s->gpus] += rank[r].needs;
	if (!held)
		out[n++] = time_alone(s, "each rank for itself", bytes, nodes);
	for (uint32_t i = 0; i < nodes; i++)
		bytes[i] = node[i].needs;
	if (!held)
		out[n++] = time_alone(s, "each node for itself", bytes, nodes);
	for (uint32_t i = 0; i < nodes; i++)
		bytes[i] = node[i].reads;
	out[n++] = time_together(s, bytes, node, nodes);
	free(bytes);
	return n;
}
