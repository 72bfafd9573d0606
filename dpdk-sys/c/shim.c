#include <rte_cycles.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_ring.h>

#include "shim.h"

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

void weft_rte_pktmbuf_free(struct rte_mbuf *frame)
{
	rte_pktmbuf_free(frame);
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
