/* Ranks 0 and 1 exchange messages and look for them first, all ranks sum vectors and send parts to each other; every value
 * is checked. An argument is the number of rounds of messages, of which there are else five. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUES 50000

static int rounds = 5;

static void check(int holds, const char *what)
{
    if (!holds) {
        printf("wrong: %s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Packets of a message that change places, or are another round's, have other bytes. */
static unsigned char byte_of(int round, int n)
{
    return round + 1 + n * 7 + n / 256 * 11 + n / 65536 * 13;
}

static void exchange(int rank, int length)
{
    unsigned char *bytes = malloc(length + 1);
    for (int round = 0; round < rounds; round++) {
        MPI_Status status;
        if (rank == 0) {
            for (int n = 0; n < length; n++)
                bytes[n] = byte_of(round, n);
            MPI_Send(bytes, length, MPI_BYTE, 1, round, MPI_COMM_WORLD);
            memset(bytes, 0, length);
        }
        MPI_Recv(bytes, length + 1, MPI_BYTE, 1 - rank, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        int count;
        MPI_Get_count(&status, MPI_BYTE, &count);
        check(count == length && status.MPI_TAG == round && status.MPI_SOURCE == 1 - rank, "envelope");
        for (int n = 0; n < length; n++)
            check(bytes[n] == byte_of(round, n), "message");
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

/* A message is claimed while it waits, and those behind it are received first. */
static void look(int rank)
{
    enum { LENGTH = 30000 };
    static char bytes[LENGTH];
    if (rank == 0) {
        memset(bytes, 9, LENGTH);
        MPI_Send(bytes, LENGTH, MPI_BYTE, 1, 40, MPI_COMM_WORLD);
        MPI_Send(bytes, 10, MPI_BYTE, 1, 41, MPI_COMM_WORLD);
        return;
    }
    MPI_Status status;
    MPI_Message message;
    int count;
    MPI_Mprobe(0, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    check(count == LENGTH && status.MPI_TAG == 40 && status.MPI_SOURCE == 0, "claimed message");
    MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    check(count == 10 && status.MPI_TAG == 41 && status.MPI_SOURCE == 0, "message behind it");
    MPI_Recv(bytes, 10, MPI_BYTE, 0, 41, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Mrecv(bytes, LENGTH, MPI_BYTE, &message, &status);
    for (int n = 0; n < LENGTH; n++)
        check(bytes[n] == 9, "message that was looked for");
}

/* Each rank sends each its own part; parts are short and long. There are half as many rounds. */
static void all_to_all(int rank, int size, int length)
{
    int *out = malloc(sizeof(int) * length * size), *in = malloc(sizeof(int) * length * size);
    for (int round = 0; round < (rounds + 1) / 2; round++) {
        for (int n = 0; n < length * size; n++) {
            out[n] = rank * 1000003 + n * 7 + round;
            in[n] = -1;
        }
        MPI_Alltoall(out, length, MPI_INT, in, length, MPI_INT, MPI_COMM_WORLD);
        for (int from = 0; from < size; from++)
            for (int n = 0; n < length; n++)
                check(in[from * length + n] == from * 1000003 + (rank * length + n) * 7 + round, "part");
    }
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc > 1)
        rounds = atoi(argv[1]);
    if (rank < 2) {
        int lengths[] = {0, 1, 4095, 4097, 65536, 1 << 20};
        for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++)
            exchange(rank, lengths[n]);
        overtake(rank);
        look(rank);
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
    all_to_all(rank, size, 3);
    all_to_all(rank, size, 20000);
    if (rank == 0)
        printf("%d ranks: all values are right\n", size);
    MPI_Finalize();
    return 0;
}
