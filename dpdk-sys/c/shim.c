#include <errno.h>
#include <semaphore.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include <rte_alarm.h>
#include <rte_cycles.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_ring.h>

#include "shim.h"

/* Stored at the beginning of the own buffer of an mbuf that refers to foreign memory. */
struct attached {
	struct rte_mbuf_ext_shared_info shared;
	_Alignas(8) unsigned char owner[WEFT_OWNER_SIZE];
};

static struct attached *attached(struct rte_mbuf *tail)
{
	return (struct attached *)((char *)tail + sizeof(*tail) + tail->priv_size);
}

uint16_t weft_rte_eth_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count)
{
	return rte_eth_rx_burst(port, queue, frames, count);
}

uint16_t weft_rte_eth_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, frames, count);
}

struct rte_mbuf *weft_rte_pktmbuf_alloc(struct rte_mempool *pool)
{
	return rte_pktmbuf_alloc(pool);
}

int weft_rte_pktmbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **frames, unsigned int count)
{
	return rte_pktmbuf_alloc_bulk(pool, frames, count);
}

void weft_rte_pktmbuf_free(struct rte_mbuf *frame)
{
	rte_pktmbuf_free(frame);
}

int weft_rte_pktmbuf_attach(struct rte_mbuf *head, struct rte_mbuf *tail, void *data, uint16_t length,
			    void (*release)(void *data, void *owner))
{
	struct attached *own = attached(tail);

	own->shared.free_cb = release;
	own->shared.fcb_opaque = own->owner;
	rte_mbuf_ext_refcnt_set(&own->shared, 1);
	/* Only devices that read through virtual addresses are handed such mbufs. */
	rte_pktmbuf_attach_extbuf(tail, data, (rte_iova_t)(uintptr_t)data, length, &own->shared);
	tail->data_len = length;
	tail->pkt_len = length;
	return rte_pktmbuf_chain(head, tail);
}

void *weft_rte_pktmbuf_owner(struct rte_mbuf *tail)
{
	return attached(tail)->owner;
}

void weft_rte_pktmbuf_gather(const struct rte_mbuf *frame, void *to)
{
	char *place = to;

	for (; frame != NULL; frame = frame->next) {
		memcpy(place, rte_pktmbuf_mtod(frame, const void *), frame->data_len);
		place += frame->data_len;
	}
}

/* Seconds after which the interrupt thread counts as stuck. */
#define CLOSING_PATIENCE 2

struct closing {
	uint16_t port;
	sem_t done;
};

static void stop_and_close(void *argument)
{
	struct closing *closing = argument;

	rte_eth_dev_stop(closing->port);
	rte_eth_dev_close(closing->port);
	sem_post(&closing->done);
}

void weft_rte_eth_dev_close_in_order(uint16_t port)
{
	struct closing closing = { .port = port };
	struct timespec limit;

	sem_init(&closing.done, 0, 0);
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += CLOSING_PATIENCE;
	/* DPDK runs alarms on its interrupt thread, between interrupts. */
	bool set = rte_eal_alarm_set(1, stop_and_close, &closing) == 0;
	while (set && sem_timedwait(&closing.done, &limit) != 0) {
		/* Cancelling waits for an alarm that has begun. */
		if (errno != EINTR && rte_eal_alarm_cancel(stop_and_close, &closing) > 0)
			set = false;
	}
	if (!set)
		stop_and_close(&closing);
	sem_destroy(&closing.done);
}

int weft_rte_eth_link(uint16_t port, uint32_t *mbps)
{
	struct rte_eth_link link = { 0 };
	int result = rte_eth_link_get_nowait(port, &link);

	*mbps = link.link_speed;
	return result < 0 ? result : link.link_status == RTE_ETH_LINK_UP;
}

uint16_t weft_rte_pktmbuf_data_room_size(struct rte_mempool *pool)
{
	return rte_pktmbuf_data_room_size(pool);
}

int weft_rte_ring_dequeue(struct rte_ring *ring, void **object)
{
	return rte_ring_dequeue(ring, object);
}

int weft_rte_errno(void)
{
	return rte_errno;
}

unsigned int weft_rte_lcore_id(void)
{
	return rte_lcore_id();
}

uint64_t weft_rte_rdtsc(void)
{
	return rte_rdtsc();
}
