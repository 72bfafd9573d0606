/* Ranks put into, get from and accumulate into each other's windows, with fences and with locks; every value is checked. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { PART = 40000, COUNTS = 200 };

static void check(int holds, const char *what)
{
    if (!holds) {
        printf("wrong: %s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static MPI_Win window(long *memory, long count)
{
    MPI_Info info;
    MPI_Win win;
    MPI_Info_create(&info);
    /* What lets MPICH use the network's atomic operations. */
    MPI_Info_set(info, "disable_shm_accumulate", "true");
    MPI_Info_set(info, "accumulate_ordering", "none");
    MPI_Info_set(info, "which_accumulate_ops", "sum,cswap,no_op,replace");
    MPI_Win_create(memory, count * sizeof(long), sizeof(long), info, MPI_COMM_WORLD, &win);
    MPI_Info_free(&info);
    return win;
}

/* Each rank puts a part into each window, then reads all parts of its neighbour's. */
static void parts(int rank, int size)
{
    long *memory = calloc((size_t)size * PART, sizeof(long)), *own = malloc(PART * sizeof(long));
    long *seen = malloc((size_t)size * PART * sizeof(long));
    MPI_Win win = window(memory, (long)size * PART);
    for (int round = 0; round < 3; round++) {
        for (int n = 0; n < PART; n++)
            own[n] = rank * 1000003L + n * 7L + round;
        MPI_Win_fence(0, win);
        for (int to = 0; to < size; to++)
            MPI_Put(own, PART, MPI_LONG, to, (MPI_Aint)rank * PART, PART, MPI_LONG, win);
        MPI_Win_fence(0, win);
        MPI_Get(seen, size * PART, MPI_LONG, (rank + 1) % size, 0, size * PART, MPI_LONG, win);
        MPI_Win_fence(0, win);
        for (int from = 0; from < size; from++)
            for (int n = 0; n < PART; n++) {
                long value = from * 1000003L + n * 7L + round;
                check(memory[from * PART + n] == value, "part that was put");
                check(seen[from * PART + n] == value, "part that was got");
            }
    }
    MPI_Win_free(&win);
    free(seen);
    free(own);
    free(memory);
}

/* All ranks add to counters of rank 0 at the same time, while that computes. */
static void counters(int rank, int size)
{
    long memory[3] = {0, 0, 0}, one = 1, before, mine = -1, next;
    MPI_Win win = window(memory, 3);
    if (rank > 0) {
        for (int n = 0; n < COUNTS; n++) {
            MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
            MPI_Accumulate(&one, 1, MPI_LONG, 0, 0, 1, MPI_LONG, MPI_SUM, win);
            MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, 1, MPI_SUM, win);
            MPI_Win_unlock(0, win);
            check(before > mine, "count that grows");
            mine = before;
        }
        for (int done = 0; !done;) {
            MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
            MPI_Fetch_and_op(NULL, &before, MPI_LONG, 0, 2, MPI_NO_OP, win);
            MPI_Win_flush(0, win);
            next = before + 1;
            MPI_Compare_and_swap(&next, &before, &mine, MPI_LONG, 0, 2, win);
            MPI_Win_unlock(0, win);
            done = mine == before;
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
        long all = (size - 1L) * COUNTS;
        check(memory[0] == all && memory[1] == all && memory[2] == size - 1, "counts");
        MPI_Win_unlock(0, win);
    }
    MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    parts(rank, size);
    counters(rank, size);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks: all values are right\n", size);
    MPI_Finalize();
    return 0;
}
