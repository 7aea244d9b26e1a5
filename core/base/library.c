/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

int dcp_library_open(const char *library, const char *const *names, size_t n, void **at,
		     char *why, size_t size)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	const char *text = handle ? NULL : dlerror();
	int rc = 0;

	if (!handle) {
		snprintf(why, size, "%s%s", text ? text : library,
			 text ? "" : " cannot be opened");
		return -ELIBACC;
	}
	for (size_t i = 0; i < n; i++) {
		at[i] = dlsym(handle, names[i]);
		if (!at[i] && rc == 0) {
			snprintf(why, size, "%s has no %s", library, names[i]);
			rc = -ELIBBAD;
		}
	}
	dlclose(handle);
	return rc;
}
