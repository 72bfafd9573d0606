/* Linkable names for functions and constants that DPDK defines `static inline` or as macros. */
#ifndef WEFT_SHIM_H
#define WEFT_SHIM_H

#include <stdint.h>

/* Bytes that an mbuf which refers to foreign memory keeps for the owner of that memory. */
#define WEFT_OWNER_SIZE 64

struct rte_mbuf;
struct rte_mempool;
struct rte_ring;

/* Up to `count` frames from a receive queue; returns how many. */
uint16_t weft_rte_eth_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count);

/* Up to `count` frames to a transmit queue; returns how many it took, from the front. */
uint16_t weft_rte_eth_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **frames, uint16_t count);

/* One initialised buffer with reference count 1, or NULL when the pool is empty. */
struct rte_mbuf *weft_rte_pktmbuf_alloc(struct rte_mempool *pool);

/* `count` such buffers, and 0; or, when the pool has fewer, none of them, and a negative error. */
int weft_rte_pktmbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **frames, unsigned int count);

/* Gives a buffer and all segments chained to it back to their pools. */
void weft_rte_pktmbuf_free(struct rte_mbuf *frame);

/*
 * Chains `tail`, an mbuf without data, behind `head` and makes it refer to `length` bytes at `data`. When the
 * last reference is gone, `release` is called with `data` and a pointer to the WEFT_OWNER_SIZE bytes that
 * weft_rte_pktmbuf_owner gives. Returns 0, or a negative error if the chain would be too long.
 */
int weft_rte_pktmbuf_attach(struct rte_mbuf *head, struct rte_mbuf *tail, void *data, uint16_t length,
			    void (*release)(void *data, void *owner));

/* WEFT_OWNER_SIZE bytes, aligned to 8, inside the mbuf's own buffer, which is not in use while it refers to others. */
void *weft_rte_pktmbuf_owner(struct rte_mbuf *tail);

/* Copies the data of all segments, pkt_len bytes, to `to`. */
void weft_rte_pktmbuf_gather(const struct rte_mbuf *frame, void *to);

/*
 * Stops and closes a device on the thread that handles interrupts, and returns when that is done: for drivers whose
 * interrupt handlers and close function free the same state. Falls back to the calling thread if that one is stuck.
 */
void weft_rte_eth_dev_close_in_order(uint16_t port);

/*
 * 1 if the link is up, 0 if it is down, or a negative error. Stores the driver's value for the speed in
 * `mbps`, in Mbit/s: it may be 0 or WEFT_SPEED_UNKNOWN. Does not wait.
 */
int weft_rte_eth_link(uint16_t port, uint32_t *mbps);

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
