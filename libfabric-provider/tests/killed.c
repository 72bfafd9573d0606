/* All ranks exchange messages until the last one kills itself in the middle of an exchange. The others say that this exchange begins,
 * and how long after its beginning, or that of the next, they get an error, and end without the library, which would wait for all. */

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 16, LENGTH = 200000, ROUND = 20 };

static unsigned char out[MOST][LENGTH], in[MOST][LENGTH];

/* Packets of a message that change places, or are another round's, have other bytes. */
static unsigned char byte_of(int from, int to, int round, int n)
{
    return from * 16 + to + round + n * 7 + n / 256 * 11 + n / 65536 * 13;
}

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
        for (int n = 0; n < LENGTH; n++)
            out[to][n] = byte_of(rank, to, round, n);
        if (MPI_Isend(out[to], LENGTH, MPI_BYTE, to, round, MPI_COMM_WORLD, &requests[begun++]))
            return 0;
    }
    if (MPI_Waitall(begun, requests, MPI_STATUSES_IGNORE))
        return 0;
    for (int from = 0; from < size; from++)
        for (int n = 0; n < LENGTH; n++)
            if (in[from][n] != byte_of(from, rank, round, n)) {
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
        if (round == ROUND) {
            printf("rank %d: round %d begins\n", rank, round);
            fflush(stdout);
        }
        if (!all_to_all(rank, size, round, round == ROUND && rank == size - 1)) {
            printf("rank %d: an error in round %d after %.3f s\n", rank, round, MPI_Wtime() - begin);
            fflush(stdout);
            _exit(round < ROUND);
        }
    }
    printf("rank %d: no error\n", rank);
    fflush(stdout);
    _exit(1);
}
