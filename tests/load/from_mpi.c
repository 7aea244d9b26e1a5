/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of MPI's that hands a communicator of its own to the loader: the odd and the even
 * ranks.
 */
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "tools/load/comm/comm.h"

static int wrong;

static void check_call(int good, const char *what, const struct dcpload_error *err)
{
	if (good)
		return;
	printf("not so: %s: %s\n", what, err->text);
	wrong = 1;
}

int main(void)
{
	struct dcpload_comm *comm = NULL, *part = NULL, *world = NULL;
	struct dcpload_error err = { 0 };
	MPI_Comm half, inter;
	int rank = 0, ranks = 0, all[64] = { 0 };

	check_call(dcpload_comm_from_mpi(NULL, &comm, &err) == -EINVAL, "no communicator",
		   &err);
	check_call(dcpload_comm_from_mpi(&half, &comm, &err) == -EINVAL &&
			   strcmp(err.text, "MPI is not initialized in this process") == 0,
		   "before MPI_Init", &err);
	MPI_Init(NULL, NULL);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
	MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 0, &inter);
	check_call(dcpload_comm_from_mpi(&inter, &comm, &err) == -EINVAL,
		   "an intercommunicator", &err);
	MPI_Comm_free(&inter);

	check_call(dcpload_comm_from_mpi(&half, &comm, &err) == 0, "half of the ranks", &err);
	MPI_Comm_free(&half); /* the loader has a duplicate */
	check_call(comm->ranks == (uint32_t)ranks / 2 && comm->rank == (uint32_t)rank / 2,
		   "ranks", &err);
	check_call(comm->allgather(comm->ctx, &rank, sizeof(rank), all, 20000) == 0,
		   "allgather", &err);
	for (int i = 0; i < ranks / 2; i++)
		check_call(all[i] == 2 * i + rank % 2, "what the others said", &err);
	check_call(comm->split(comm->ctx, UINT32_MAX, UINT32_MAX - comm->rank, &part, 20000) ==
			   0,
		   "split", &err);
	check_call(part->rank == comm->ranks - 1 - comm->rank, "the reverse order", &err);
	dcpload_comm_close(part);
	dcpload_comm_close(comm);

	/* Whoever initialized MPI finalizes it. */
	check_call(dcpload_comm_open("mpi", &world, &err) == 0, "the world", &err);
	check_call(world->ranks == (uint32_t)ranks, "all ranks", &err);
	dcpload_comm_close(world);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Finalize();
	check_call(dcpload_comm_open("mpi", &world, &err) == -EINVAL &&
			   strcmp(err.text, "MPI is finalized in this process") == 0,
		   "after MPI_Finalize", &err);
	return wrong;
}
