/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: checks of this machine; each function reports its finding and what to do. They are in two
 * files, the verb's and load.c, which together are longer than a file may be. */
#pragma once
#include <stdbool.h>

#include "core/base/base.h"

enum state { GOOD, NOTE, BAD };

struct finding {
	enum state state;
	char found[256];
	const char *advice; /* NULL: nothing to do */
};

/* Set the finding, and @advice on what to do, or NULL. */
void doctor_say(struct finding *f, enum state state, const char *advice, const char *fmt, ...)
	DCP_PRINTF(4, 5);

/* Facts that several checks need. */
struct machine {
	bool root, sys_admin, barred, device, helper, container;
	unsigned kernel[2];
	const char *source; /* NULL: none was named */
};

/* ---- means of the collective loader: load.c ---- */

void doctor_window(struct machine *m, struct finding *f);
void doctor_direct(struct machine *m, struct finding *f);
void doctor_huge(struct machine *m, struct finding *f);
void doctor_gpu(struct machine *m, struct finding *f);
void doctor_ipc(struct machine *m, struct finding *f);
void doctor_nccl(struct machine *m, struct finding *f);
void doctor_cufile(struct machine *m, struct finding *f);
