/* First stage: is this packet for us, and may its sender say that? Whatever is not passes untouched. */
#ifndef SUMWIRE_PARSE_H
#define SUMWIRE_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>

#include "maps.h"

/* Not aligned to bytes, or clang would take its fields apart into these. */
struct packet {
  struct ethhdr eth;
  struct iphdr ip;
  struct udphdr udp;
  struct sw_header sw;
  __u8 body[];
} __attribute__((packed, aligned(2)));

enum { OUTER_LENGTH = sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr) };

/* What later stages need to know of a request. They must not read the packet again: it may be rewritten by then. */
struct request {
  struct sw_job *job;
  struct sw_peer *peer;
  struct sw_table *table; /* only if op is SW_LOOKUP */
  struct counters *counters;
  __u32 session;
  __u32 chunk;
  __u32 tag;
  __u32 result;
  __u16 count;
  __u8 kind;
  __u8 op;
  __u8 lane;
  __u8 per_word;
  __u8 worker;
  __u8 channel;
  __u8 stale; /* it is of another session */
};

/* Whether the outer headers are those of a datagram to an aggregator's port; the caller has checked their length. */
static __always_inline int is_datagram(const struct packet *p) {
  return p->eth.h_proto == bpf_htons(ETH_P_IP) && p->ip.version == 4 && p->ip.ihl == 5 &&
         p->ip.protocol == IPPROTO_UDP && !(p->ip.frag_off & bpf_htons(0x3fff));
}

/* Bytes of result that a body gives; 0 if there is no such operation or the lengths do not fit. What belongs to another
 * session is only answered, and its tables are gone. */
static __always_inline __u32 result_of(const struct sw_header *sw, struct request *r) {
  __u32 length = sw->length;
  __u32 result = sw->result;
  __u32 bytes = 8;
  __u32 words = 1;
  r->lane = 0;
  r->per_word = 0;
  r->table = 0;
  r->stale = sw->session != r->job->session;
  if (r->stale) return result;
  if (sw->op == SW_LOOKUP) {
    __u32 index = r->job->index * SW_MAX_TABLES + (sw->table & (SW_MAX_TABLES - 1));
    struct sw_table *table = bpf_map_lookup_elem(&tables, &index);
    if (!table || !table->bits || sw->table >= SW_MAX_TABLES) return 0;
    r->table = table;
    r->lane = table->lane;
    r->per_word = table->per_word;
    bytes = table->bytes;
    words = table->words;
  } else if (sw->op < SW_ADD8 || sw->op > SW_OR) {
    return 0;
  }
  /* A poll has no body: it only names the result's length. */
  int fits = sw->kind == SW_POLL ? !length : result / 8 * bytes == length * words;
  return fits && result % SW_GRAIN == 0 ? result : 0;
}

/* Note where a worker is when it says HELLO, so that results find it. */
static __always_inline void learn(struct sw_peer *peer, const struct packet *p, __u32 ifindex) {
  if (peer->fixed_ifindex && peer->fixed_ifindex != ifindex) return;
  __builtin_memcpy(peer->mac, p->eth.h_source, ETH_ALEN);
  peer->port = p->udp.source;
  peer->ifindex = ifindex;
}

/* Fills in the request. Returns 0, or 1 + the reason for which the packet passes; the caller has checked that the
 * packet has all of its headers, and gives the length of the datagram's payload that it holds. */
static __always_inline int parse(const struct packet *p, __u32 held, __u32 ifindex, struct request *r) {
  const struct sw_header *sw = &p->sw;
  if (sw->magic != SW_MAGIC) return 1 + SW_FOREIGN;
  if (sw->version != SW_VERSION) return 1 + SW_WRONG_VERSION;
  __u32 number = sw->job;
  struct sw_job *job = bpf_map_lookup_elem(&jobs, &number);
  if (!job || !job->session || p->ip.daddr != job->address || p->udp.dest != job->port) return 1 + SW_UNKNOWN_JOB;
  if (sw->key != job->key) return 1 + SW_WRONG_KEY;
  if (sw->worker >= job->workers || sw->worker >= SW_MAX_WORKERS) return 1 + SW_WRONG_PEER;
  __u32 place = job->index * SW_MAX_WORKERS + sw->worker;
  struct sw_peer *peer = bpf_map_lookup_elem(&peers, &place);
  if (!peer || peer->address != p->ip.saddr) return 1 + SW_WRONG_PEER;
  if (sw->kind == SW_HELLO) learn(peer, p, ifindex);
  if (sw->kind == SW_HELLO || sw->kind == SW_TABLE) return 1 + SW_CONTROL;
  if (peer->ifindex != ifindex || peer->port != p->udp.source) return 1 + SW_WRONG_PEER;
  if (sw->kind != SW_MERGE && sw->kind != SW_POLL) return 1 + SW_MALFORMED;
  if (sw->channel >= job->channels || sw->reserved || !sw->count || sw->members) return 1 + SW_MALFORMED;
  if (bpf_ntohs(p->udp.len) < sizeof(struct udphdr) + SW_HEADER + sw->length) return 1 + SW_MALFORMED;
  if (held < SW_HEADER + sw->length) return 1 + SW_MALFORMED;
  r->job = job;
  r->peer = peer;
  r->result = result_of(sw, r);
  if (!r->result) return 1 + SW_MALFORMED;
  if (r->result > job->body || r->result > SW_BODY_9000) return 1 + SW_OVERSIZED;
  if (job->flags & SW_PADDED && held < SW_HEADER + r->result) return 1 + SW_OVERSIZED;
  if (sw->count > job->headroom) return 1 + SW_OVERFLOWS;
  r->counters = bpf_map_lookup_elem(&traffic, &place);
  if (!r->counters) return 1 + SW_UNKNOWN_JOB;
  r->counters->of[SW_BYTES_IN] += held;
  r->session = sw->session;
  r->chunk = sw->chunk;
  r->tag = sw->tag;
  r->count = sw->count;
  r->kind = sw->kind;
  r->op = sw->op;
  r->worker = sw->worker;
  r->channel = sw->channel;
  return 0;
}

#endif
