/* Linkable names for what DPDK defines `static inline` or as a macro. */
#ifndef WEFT_SHIM_H
#define WEFT_SHIM_H

#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;
struct rte_ring;

/* Up to `count` frames from a receive queue; returns how many. */
uint16_t weft_rte_eth_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count);

/* Up to `count` frames to a transmit queue; returns how many it took, from the front. */
uint16_t weft_rte_eth_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count);

/* One initialised buffer with reference count 1, or NULL when the pool is empty. */
struct rte_mbuf *weft_rte_pktmbuf_alloc(struct rte_mempool *pool);

/* Gives a buffer and all segments chained to it back to their pools. */
void weft_rte_pktmbuf_free(struct rte_mbuf *frame);

/* Bytes of a buffer of this pool, headroom included. */
uint16_t weft_rte_pktmbuf_data_room_size(struct rte_mempool *pool);

/* 0 and the oldest object of the ring, or a negative error when it is empty. */
int weft_rte_ring_dequeue(struct rte_ring *ring, void **object);

/* The calling thread's error number of the last call that failed. */
int weft_rte_errno(void);

/* The calling thread's lcore, or LCORE_ID_ANY. */
unsigned int weft_rte_lcore_id(void);

/* The time-stamp counter. */
uint64_t weft_rte_rdtsc(void);

#endif
