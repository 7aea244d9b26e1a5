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

int load_alone_open(struct dcpload_comm **out, struct dcpload_error *err);

/* Open MPI: MPI_COMM_WORLD, or a duplicate of what @mpi_comm points to. -ELIBACC: not installed. */
int load_mpi_open(const void *mpi_comm, struct dcpload_comm **out, struct dcpload_error *err);

/* Can its module be opened? If not, *why says why not. */
bool load_mpi_try(char *why, size_t size);

/* TCP between the ranks that torchrun, srun or mpirun started (job.h). */
int load_tcp_open(struct dcpload_comm **out, struct dcpload_error *err);
