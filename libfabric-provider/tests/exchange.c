/* Ranks 0 and 1 exchange messages, and all ranks sum vectors; every value is checked. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUES 50000

static void check(int holds, const char *what)
{
    if (!holds) {
        printf("wrong: %s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void exchange(int rank, int length)
{
    unsigned char *bytes = malloc(length + 1);
    for (int round = 0; round < 5; round++) {
        MPI_Status status;
        if (rank == 0) {
            memset(bytes, round + 1, length);
            MPI_Send(bytes, length, MPI_BYTE, 1, round, MPI_COMM_WORLD);
            memset(bytes, 0, length);
        }
        MPI_Recv(bytes, length + 1, MPI_BYTE, 1 - rank, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        int count;
        MPI_Get_count(&status, MPI_BYTE, &count);
        check(count == length && status.MPI_TAG == round && status.MPI_SOURCE == 1 - rank, "envelope");
        for (int n = 0; n < length; n++)
            check(bytes[n] == round + 1, "message");
        if (rank == 1)
            MPI_Send(bytes, length, MPI_BYTE, 0, round, MPI_COMM_WORLD);
    }
    free(bytes);
}

/* Several messages at once, the last of which is received first. */
static void overtake(int rank)
{
    enum { COUNT = 8, LENGTH = 20000 };
    static int values[COUNT][LENGTH];
    MPI_Request requests[COUNT];
    for (int n = 0; n < COUNT; n++) {
        if (rank == 0) {
            for (int k = 0; k < LENGTH; k++)
                values[n][k] = n * LENGTH + k;
            MPI_Isend(values[n], LENGTH, MPI_INT, 1, n, MPI_COMM_WORLD, &requests[n]);
        } else {
            int tag = COUNT - 1 - n;
            MPI_Irecv(values[tag], LENGTH, MPI_INT, 0, tag, MPI_COMM_WORLD, &requests[n]);
        }
    }
    MPI_Waitall(COUNT, requests, MPI_STATUSES_IGNORE);
    for (int n = 0; n < COUNT; n++)
        for (int k = 0; k < LENGTH; k++)
            check(values[n][k] == n * LENGTH + k, "overtaken message");
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank < 2) {
        int lengths[] = {0, 1, 4095, 4097, 65536, 1 << 20};
        for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++)
            exchange(rank, lengths[n]);
        overtake(rank);
    }
    /* A rank sends to itself. */
    int own = -1, sent = rank + 7;
    MPI_Sendrecv(&sent, 1, MPI_INT, rank, 3, &own, 1, MPI_INT, rank, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    check(own == rank + 7, "message to oneself");
    static long mine[VALUES], sums[VALUES];
    for (long n = 0; n < VALUES; n++)
        mine[n] = n * (rank + 1);
    MPI_Allreduce(mine, sums, VALUES, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (long n = 0; n < VALUES; n++)
        check(sums[n] == n * size * (size + 1) / 2, "sum");
    if (rank == 0)
        printf("%d ranks: all values are right\n", size);
    MPI_Finalize();
    return 0;
}
