/* Bandwidth and message rate over any provider of libfabric: one process sends messages to another, a window of them at a
 * time, and stops the clock when the other one has said that all have arrived.
 *
 * Usage: fi_bandwidth [-p PROVIDER] [-d DOMAIN] [-s BYTES] [-n MESSAGES] [-w WINDOW] [-t] [-c] -P PORT [-a ADDRESS]
 *
 * Without -a it receives; with -a it sends, and prints BYTES MESSAGES SECONDS MB/S MESSAGES/S. The two exchange the names of
 * their endpoints through a TCP connection to PORT at ADDRESS. -t sends messages with
 * tags, as MPI libraries do. -c fills messages with numbers, and compares them. The buffers of a window are at most 32 MiB, or one.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

enum { NAME = 256, TAG = 5, READ_AT_ONCE = 32, MOST_BYTES = 32 << 20, UNTIMED_WINDOWS = 2, WAIT_SECONDS = 120 };

struct end {
    struct fid_ep *ep;
    struct fid_cq *sent, *received;
    fi_addr_t peer;
};

static void die(const char *what, long error) {
    fprintf(stderr, "fi_bandwidth: %s: %s\n", what, fi_strerror((int)-error));
    exit(1);
}

static void check(const char *what, long answer) {
    if (answer < 0)
        die(what, answer);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* Gives up when nothing has ended for two minutes. */
static void mind(double since) {
    if (seconds() - since > WAIT_SECONDS) {
        fprintf(stderr, "fi_bandwidth: nothing has ended for %d s\n", WAIT_SECONDS);
        exit(1);
    }
}

/* A connection to the other process: whoever has its address connects. */
static int meet(const char *address, int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1, connection = -1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0)
        die("socket", -errno);
    if (address) {
        if (inet_pton(AF_INET, address, &at.sin_addr) != 1)
            die(address, -FI_EINVAL);
        double since = seconds();
        connection = listener;
        while (connect(connection, (struct sockaddr *)&at, sizeof at) != 0) {
            if (seconds() - since > 20)
                die("connect", -errno);
            usleep(20000);
        }
    } else {
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 1) != 0)
            die("listen", -errno);
        if ((connection = accept(listener, NULL, NULL)) < 0)
            die("accept", -errno);
        close(listener);
    }
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return connection;
}

static void swap(int connection, const void *own, void *others, size_t len) {
    if (send(connection, own, len, 0) != (ssize_t)len || recv(connection, others, len, MSG_WAITALL) != (ssize_t)len)
        die("the other process is gone", -FI_ECONNRESET);
}

static struct fi_info *offer(const char *provider, const char *domain, int tagged) {
    struct fi_info *hints = fi_allocinfo(), *info;
    hints->caps = tagged ? FI_TAGGED : FI_MSG;
    hints->mode = FI_CONTEXT;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ENDPOINT;
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->fabric_attr->prov_name = provider ? strdup(provider) : NULL;
    hints->domain_attr->name = domain ? strdup(domain) : NULL;
    check("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);
    return info;
}

static struct end open_end(struct fi_info *info, struct fid_domain **domain, int connection) {
    struct end end;
    struct fid_fabric *fabric;
    struct fid_av *av;
    struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE, .size = 4096};
    struct fi_av_attr table = {.type = FI_AV_MAP, .count = 1};
    char own[NAME] = {0}, other[NAME];
    size_t len = sizeof own;
    if (info->domain_attr->av_type != FI_AV_UNSPEC)
        table.type = info->domain_attr->av_type;
    check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    check("fi_domain", fi_domain(fabric, info, domain, NULL));
    check("fi_av_open", fi_av_open(*domain, &table, &av, NULL));
    check("fi_cq_open", fi_cq_open(*domain, &queue, &end.sent, NULL));
    check("fi_cq_open", fi_cq_open(*domain, &queue, &end.received, NULL));
    check("fi_endpoint", fi_endpoint(*domain, info, &end.ep, NULL));
    check("fi_ep_bind", fi_ep_bind(end.ep, &av->fid, 0));
    check("fi_ep_bind", fi_ep_bind(end.ep, &end.sent->fid, FI_TRANSMIT));
    check("fi_ep_bind", fi_ep_bind(end.ep, &end.received->fid, FI_RECV));
    check("fi_enable", fi_enable(end.ep));
    check("fi_getname", fi_getname(&end.ep->fid, own, &len));
    swap(connection, own, other, NAME);
    if (fi_av_insert(av, other, 1, &end.peer, 0, NULL) != 1)
        die("fi_av_insert", -FI_EINVAL);
    return end;
}

struct run {
    size_t size, messages, window;
    int checked, tagged;
    unsigned char *bytes;
    void *desc;
    struct fi_context *contexts;
    /* The buffers that no operation has: they end in any order. */
    size_t *free, frees;
};

static void free_all(struct run *run) {
    for (run->frees = 0; run->frees < run->window; run->frees++)
        run->free[run->frees] = run->frees;
}

/* Takes what has ended, and returns how many. The queue of the other direction works as well: a provider may do nothing
 * unless it is read. */
static size_t ended(struct fid_cq *queue, struct fid_cq *other, struct run *run) {
    struct fi_cq_msg_entry entries[READ_AT_ONCE];
    ssize_t read = fi_cq_read(queue, entries, READ_AT_ONCE);
    if (read > 0) {
        for (ssize_t n = 0; n < read && !run->checked; n++)
            run->free[run->frees++] = (size_t)((struct fi_context *)entries[n].op_context - run->contexts);
        return (size_t)read;
    }
    if (read == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        check("fi_cq_readerr", fi_cq_readerr(queue, &error, 0));
        die("an operation has failed", -error.err);
    }
    if (read != -FI_EAGAIN)
        die("fi_cq_read", read);
    if (other && other != queue)
        (void)fi_cq_read(other, entries, 0);
    return 0;
}

static void fill(unsigned char *bytes, size_t len, size_t number) {
    for (size_t at = 0; at < len; at++)
        bytes[at] = (unsigned char)(number * 31 + at * 7 + (at >> 8));
}

static void compare(const unsigned char *bytes, size_t len, size_t number) {
    for (size_t at = 0; at < len; at++) {
        if (bytes[at] != (unsigned char)(number * 31 + at * 7 + (at >> 8))) {
            fprintf(stderr, "fi_bandwidth: message %zu has a wrong byte at %zu\n", number, at);
            exit(1);
        }
    }
}

/* Sends all messages, at most a window of them at a time. They end in any order: where their bytes are compared, a whole window ends
 * before its buffers are used again. */
static void send_all(struct end *end, struct run *run, size_t messages) {
    size_t posted = 0, done = 0;
    double since = seconds();
    free_all(run);
    while (done < messages) {
        int full = posted - done >= run->window || (run->checked && done < posted / run->window * run->window);
        if (posted < messages && !full) {
            size_t slot = run->checked ? posted % run->window : run->free[run->frees - 1];
            unsigned char *bytes = run->bytes + slot * run->size;
            if (run->checked)
                fill(bytes, run->size, posted);
            ssize_t answer = run->tagged
                ? fi_tsend(end->ep, bytes, run->size, run->desc, end->peer, TAG, &run->contexts[slot])
                : fi_send(end->ep, bytes, run->size, run->desc, end->peer, &run->contexts[slot]);
            if (answer == 0) {
                posted++;
                if (!run->checked)
                    run->frees--;
                continue;
            }
            if (answer != -FI_EAGAIN)
                die("fi_send", answer);
        }
        size_t now = ended(end->sent, end->received, run);
        done += now;
        if (now)
            since = seconds();
        else
            mind(since);
    }
}

static void post_receive(struct end *end, struct run *run, size_t slot) {
    unsigned char *bytes = run->bytes + slot * run->size;
    double since = seconds();
    ssize_t answer;
    while ((answer = run->tagged
                ? fi_trecv(end->ep, bytes, run->size, run->desc, end->peer, TAG, 0, &run->contexts[slot])
                : fi_recv(end->ep, bytes, run->size, run->desc, end->peer, &run->contexts[slot])) == -FI_EAGAIN) {
        (void)fi_cq_read(end->received, NULL, 0);
        mind(since);
    }
    check("fi_recv", answer);
}

/* Receives all messages, whose receives are posted a window ahead. Messages meet them in order, so the buffers of a window
 * are compared when all of it has ended. */
static void receive_all(struct end *end, struct run *run, size_t messages) {
    size_t posted = 0, done = 0;
    double since = seconds();
    free_all(run);
    while (done < messages) {
        while (posted < messages && posted - done < run->window && !(run->checked && done % run->window != 0 && posted % run->window == 0))
            post_receive(end, run, run->checked ? posted % run->window : run->free[--run->frees]), posted++;
        size_t now = ended(end->received, end->sent, run), whole = done / run->window;
        done += now;
        if (now)
            since = seconds();
        else
            mind(since);
        if (run->checked && (done / run->window > whole || done == messages)) {
            size_t first = done == messages && done % run->window ? done / run->window * run->window : done - run->window;
            for (size_t n = first; n < done; n++)
                compare(run->bytes + n % run->window * run->size, run->size, n);
        }
    }
}

/* One byte in either direction, so that both have come so far. */
static void say(struct end *end, struct run *run) {
    struct run one = {.size = 1, .messages = 1, .window = 1, .tagged = run->tagged, .bytes = run->bytes, .desc = run->desc, .contexts = run->contexts, .free = run->free};
    send_all(end, &one, 1);
}

static void hear(struct end *end, struct run *run) {
    struct run one = {.size = 1, .messages = 1, .window = 1, .tagged = run->tagged, .bytes = run->bytes, .desc = run->desc, .contexts = run->contexts, .free = run->free};
    receive_all(end, &one, 1);
}

int main(int argc, char **argv) {
    const char *provider = NULL, *domain_name = NULL, *address = NULL;
    struct run run = {.size = 64, .messages = 1000, .window = 64};
    int port = 0, option;
    while ((option = getopt(argc, argv, "p:d:s:n:w:P:a:tc")) != -1) {
        switch (option) {
        case 'p': provider = optarg; break;
        case 'd': domain_name = optarg; break;
        case 's': run.size = strtoull(optarg, NULL, 10); break;
        case 'n': run.messages = strtoull(optarg, NULL, 10); break;
        case 'w': run.window = strtoull(optarg, NULL, 10); break;
        case 'P': port = atoi(optarg); break;
        case 'a': address = optarg; break;
        case 't': run.tagged = 1; break;
        case 'c': run.checked = 1; break;
        default: return 2;
        }
    }
    if (run.size == 0 || run.messages == 0 || run.window == 0 || run.window > 2048 || port <= 0 || port > 65535 || optind != argc) {
        fprintf(stderr, "fi_bandwidth: expected -P PORT, sizes and numbers from 1 on, and a window up to 2048\n");
        return 2;
    }
    if (run.window * run.size > MOST_BYTES)
        run.window = run.size > MOST_BYTES ? 1 : MOST_BYTES / run.size;

    int connection = meet(address, port);
    struct fi_info *info = offer(provider, domain_name, run.tagged);
    struct fid_domain *domain;
    struct fid_mr *mr;
    struct end end = open_end(info, &domain, connection);
    run.bytes = aligned_alloc(4096, (run.window * run.size + 4095) / 4096 * 4096);
    run.contexts = calloc(run.window, sizeof *run.contexts);
    run.free = calloc(run.window, sizeof *run.free);
    if (!run.bytes || !run.contexts || !run.free)
        die("memory", -FI_ENOMEM);
    memset(run.bytes, 1, run.window * run.size);
    if (info->domain_attr->mr_mode & FI_MR_LOCAL) {
        check("fi_mr_reg", fi_mr_reg(domain, run.bytes, run.window * run.size, FI_SEND | FI_RECV, 0, 1, 0, &mr, NULL));
        run.desc = fi_mr_desc(mr);
    }

    size_t untimed = UNTIMED_WINDOWS * run.window;
    char byte = 0;
    if (address) {
        hear(&end, &run);
        send_all(&end, &run, untimed);
        hear(&end, &run);
        double begin = seconds();
        send_all(&end, &run, run.messages);
        hear(&end, &run);
        double took = seconds() - begin;
        printf("%zu %zu %.6f %.2f %.0f\n", run.size, run.messages, took, run.size * run.messages / took / 1e6, run.messages / took);
    } else {
        say(&end, &run);
        receive_all(&end, &run, untimed);
        say(&end, &run);
        receive_all(&end, &run, run.messages);
        say(&end, &run);
    }
    /* Nobody leaves while the other one waits for an answer. */
    swap(connection, &byte, &byte, 1);
    fi_close(&end.ep->fid);
    return 0;
}
