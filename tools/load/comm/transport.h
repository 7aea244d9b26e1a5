/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport: how each kind of communicator is opened.
 *
 * Each returns a communicator that its own close() frees, or a negative errno described in @err.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "tools/load/comm/comm.h"

/* What each rank tells the others when a communicator is split. */
struct load_wish {
	uint32_t color, key;
};

/*
 * Of the ranks that wish what rank @own does, in the order of their keys: the first of them, how
 * many they are, and the place of @own.
 */
static inline uint32_t load_group(const struct load_wish *all, uint32_t ranks, uint32_t own,
				  uint32_t *n, uint32_t *place)
{
	uint32_t first = own;

	*n = *place = 0;
	for (uint32_t r = 0; r < ranks; r++) {
		if (all[r].color != all[own].color)
			continue;
		++*n;
		*place += all[r].key < all[own].key || (all[r].key == all[own].key && r < own);
		if (all[r].key < all[first].key || (all[r].key == all[first].key && r < first))
			first = r;
	}
	return first;
}

int load_alone_open(const struct dcpload_comm_config *config, struct dcpload_comm **out,
		    struct dcpload_error *err);

/* Open MPI: MPI_COMM_WORLD, or a duplicate of what @mpi_comm points to. -ELIBACC: not installed. */
int load_mpi_open(const void *mpi_comm, const struct dcpload_comm_config *config,
		  struct dcpload_comm **out, struct dcpload_error *err);

/* Can its module be opened? If not, *why says why not. */
bool load_mpi_try(char *why, size_t size);

/* TCP, or Unix sockets, between the ranks that torchrun, srun or mpirun started (job.h). */
int load_tcp_open(const struct dcpload_comm_config *config, struct dcpload_comm **out,
		  struct dcpload_error *err);
