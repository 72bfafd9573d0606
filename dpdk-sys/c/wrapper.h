/* Input of bindgen. Only names that build.rs allow-lists reach Rust. */
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_version.h>

#include "shim.h"

/* Macros with casts or function-like parts are opaque to bindgen; constants are not. */
static const uint64_t WEFT_RX_OFFLOAD_IPV4_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
static const uint64_t WEFT_RX_OFFLOAD_UDP_CKSUM = RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
static const uint64_t WEFT_TX_OFFLOAD_IPV4_CKSUM = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
static const uint64_t WEFT_TX_OFFLOAD_UDP_CKSUM = RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
static const uint64_t WEFT_TX_OFFLOAD_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;

static const uint64_t WEFT_RX_OFFLOAD_TIMESTAMP = RTE_ETH_RX_OFFLOAD_TIMESTAMP;
static const uint32_t WEFT_MQ_RX_RSS = RTE_ETH_MQ_RX_RSS;
static const uint32_t WEFT_SPEED_UNKNOWN = RTE_ETH_SPEED_NUM_UNKNOWN;

/* Hash types over IP addresses alone, whatever the packet carries, and types that include more fields. */
static const uint64_t WEFT_RSS_ADDRESSES = RTE_ETH_RSS_IPV4 | RTE_ETH_RSS_FRAG_IPV4 | RTE_ETH_RSS_NONFRAG_IPV4_OTHER |
	RTE_ETH_RSS_IPV6 | RTE_ETH_RSS_FRAG_IPV6 | RTE_ETH_RSS_NONFRAG_IPV6_OTHER | RTE_ETH_RSS_IPV6_EX;
static const uint64_t WEFT_RSS_PORTS = RTE_ETH_RSS_UDP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_SCTP;

static const uint64_t WEFT_F_RX_IP_CKSUM_MASK = RTE_MBUF_F_RX_IP_CKSUM_MASK;
static const uint64_t WEFT_F_RX_IP_CKSUM_GOOD = RTE_MBUF_F_RX_IP_CKSUM_GOOD;
static const uint64_t WEFT_F_RX_IP_CKSUM_BAD = RTE_MBUF_F_RX_IP_CKSUM_BAD;
static const uint64_t WEFT_F_RX_L4_CKSUM_MASK = RTE_MBUF_F_RX_L4_CKSUM_MASK;
static const uint64_t WEFT_F_RX_L4_CKSUM_GOOD = RTE_MBUF_F_RX_L4_CKSUM_GOOD;
static const uint64_t WEFT_F_RX_L4_CKSUM_BAD = RTE_MBUF_F_RX_L4_CKSUM_BAD;
static const uint64_t WEFT_F_TX_IPV4 = RTE_MBUF_F_TX_IPV4;
static const uint64_t WEFT_F_TX_IPV6 = RTE_MBUF_F_TX_IPV6;
static const uint64_t WEFT_F_TX_IP_CKSUM = RTE_MBUF_F_TX_IP_CKSUM;
static const uint64_t WEFT_F_TX_UDP_CKSUM = RTE_MBUF_F_TX_UDP_CKSUM;

static const uint32_t WEFT_PKTMBUF_HEADROOM = RTE_PKTMBUF_HEADROOM;
static const uint32_t WEFT_MEMPOOL_CACHE_MAX_SIZE = RTE_MEMPOOL_CACHE_MAX_SIZE;
static const uint32_t WEFT_LCORE_ID_ANY = LCORE_ID_ANY;
static const uint32_t WEFT_RING_F_SP_ENQ = RING_F_SP_ENQ;
static const uint32_t WEFT_RING_F_SC_DEQ = RING_F_SC_DEQ;
static const uint32_t WEFT_RING_F_EXACT_SZ = RING_F_EXACT_SZ;
static const uint32_t WEFT_RING_SZ_MASK = RTE_RING_SZ_MASK;
static const int WEFT_SOCKET_ID_ANY = SOCKET_ID_ANY;
