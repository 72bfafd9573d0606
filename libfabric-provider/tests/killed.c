/* All ranks exchange messages until the last one kills itself in the middle of an exchange. The others say how long after the
 * beginning of that exchange, or of the next, they get an error, and end without the library, which would wait for all. */

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 16, LENGTH = 200000, ROUND = 20 };

static unsigned char out[MOST][LENGTH], in[MOST][LENGTH];

/* Returns whether all of it succeeded. */
static int all_to_all(int rank, int size, int round, int dies)
{
    MPI_Request requests[2 * MOST];
    int begun = 0;
    for (int from = 0; from < size; from++)
        if (MPI_Irecv(in[from], LENGTH, MPI_BYTE, from, round, MPI_COMM_WORLD, &requests[begun++]))
            return 0;
    for (int to = 0; to < size; to++) {
        if (dies && to == size / 2)
            raise(SIGKILL);
        memset(out[to], rank * 16 + to + round, LENGTH);
        if (MPI_Isend(out[to], LENGTH, MPI_BYTE, to, round, MPI_COMM_WORLD, &requests[begun++]))
            return 0;
    }
    if (MPI_Waitall(begun, requests, MPI_STATUSES_IGNORE))
        return 0;
    for (int from = 0; from < size; from++)
        for (int n = 0; n < LENGTH; n++)
            if (in[from][n] != (unsigned char)(from * 16 + rank + round)) {
                printf("rank %d: wrong bytes\n", rank);
                _exit(1);
            }
    return 1;
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double begin = 0;
    for (int round = 0; round < ROUND + 3; round++) {
        begin = MPI_Wtime();
        if (!all_to_all(rank, size, round, round == ROUND && rank == size - 1)) {
            printf("rank %d: an error after %.3f s\n", rank, MPI_Wtime() - begin);
            fflush(stdout);
            _exit(0);
        }
    }
    printf("rank %d: no error\n", rank);
    fflush(stdout);
    _exit(1);
}
