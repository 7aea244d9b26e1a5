/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/t/load.h"

#include "tests/unit/t.h"

uint8_t t_load_byte(uint64_t i, unsigned seed)
{
	return (uint8_t)((i * 2654435761u + seed * 40503u) >> 13);
}

float t_load_number(uint64_t i)
{
	return ((float)(i % 997) - 498.5f) * 0.37f;
}

/* @n bytes: the header, then what @fill says. */
void t_load_put(const struct t_dir *d, const char *name, const char *header, unsigned seed)
{
	uint64_t n = strlen(header);
	uint8_t *p = malloc(8 + n + 8192);

	assert_non_null(p);
	memcpy(p, &n, 8);
	memcpy(p + 8, header, n);
	for (uint64_t i = 0; i < 1024; i++) {
		float x = t_load_number(i + seed);

		memcpy(p + 8 + n + 4 * i, &x, 4);
	}
	for (uint64_t i = 4096; i < 8192; i++)
		p[8 + n + i] = t_load_byte(i, seed);
	t_dir_put(d, name, p, 8 + n + 8192);
	free(p);
}

void t_load_put_large(const struct t_dir *d, const char *name, size_t mib)
{
	char header[128];
	uint64_t bytes = (uint64_t)mib << 20,
		 n = (uint64_t)snprintf(header, sizeof(header),
					"{\"a\":{\"dtype\":\"U8\",\"shape\":[%zu,1024],"
					"\"data_offsets\":[0,%zu]}}",
					mib << 10, mib << 20);
	uint8_t *file = malloc(8 + n + bytes);

	assert_non_null(file);
	memcpy(file, &n, 8);
	memcpy(file + 8, header, n);
	for (size_t i = 8 + n; i < 8 + n + bytes; i++)
		file[i] = t_load_byte(i, 3);
	t_dir_put(d, name, file, 8 + n + bytes);
	free(file);
}

int t_load_setup(void **state)
{
	struct t_load *f = calloc(1, sizeof(*f));
	struct dcpload_config config = {
		.size = sizeof(config), .io = DCPLOAD_IO_BUFFERED, .version = "1", .cache = ""
	};

	*state = f;
	t_dir_make(&f->d, "test_load");
	t_load_put(&f->d, "step-1/model.safetensors", T_LOAD_HEADER, 1);
	t_load_put(&f->d, "step-2/model.safetensors", T_LOAD_HEADER, 2);
	t_load_put(
		&f->d, "step-3/model.safetensors",
		"{\"model.f\":{\"dtype\":\"F32\",\"shape\":[8,16,8],\"data_offsets\":[0,4096]},"
		"\"model.b\":{\"dtype\":\"U8\",\"shape\":[64,64],\"data_offsets\":[4096,8192]}}"
		"  ",
		3);
	if (dcpload_open(NULL, f->d.root, &config, &f->buffered, &f->err) < 0)
		fail_msg("%s", f->err.text);
	config.io = DCPLOAD_IO_DIRECT;
	if (dcpload_open(NULL, f->d.root, &config, &f->direct, &f->err) < 0)
		fail_msg("%s", f->err.text);
	f->ck = f->buffered;
	assert_string_equal(dcpload_version(f->ck), "step-1");
	return 0;
}

int t_load_teardown(void **state)
{
	struct t_load *f = *state;

	dcpload_close(f->buffered);
	dcpload_close(f->direct);
	t_dir_remove(&f->d);
	free(f);
	return 0;
}

struct dcpload_plan *t_load_plan(struct t_load *f, uint32_t flags)
{
	struct dcpload_plan *p;

	assert_int_equal(dcpload_plan_create(f->ck, flags, &p, &f->err), 0);
	return p;
}
