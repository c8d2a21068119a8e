/* Fourth stage: the request's own packet becomes the reply. */
#ifndef SUMWIRE_REPLY_H
#define SUMWIRE_REPLY_H

#include "slot.h"

/* Ethernet, IP and UDP headers of a packet, on the stack. */
struct outer {
  struct ethhdr eth;
  struct iphdr ip;
  struct udphdr udp;
} __attribute__((packed, aligned(2)));

/* Bytes of the whole reply. */
static __always_inline __u32 reply_length(const struct reply *out) {
  return sizeof(struct packet) + (out->kind == SW_RESULT ? out->result : 0);
}

static __always_inline void write_header(struct sw_header *sw, const struct request *r, const struct reply *out) {
  sw->kind = out->kind;
  sw->op = out->op;
  sw->table = 0;
  sw->worker = out->to == ALL ? SW_EVERYONE : r->worker;
  sw->length = out->kind == SW_RESULT ? out->result : 0;
  sw->result = out->result;
  sw->key = r->job->reply_key;
  sw->session = out->session;
  sw->tag = out->tag;
  sw->count = out->count;
  sw->members = out->members;
}

static __always_inline void write_ip_checksum(struct iphdr *ip) {
  const __u16 *halves = (const __u16 *)ip;
  __u32 sum = 0;
  ip->check = 0;
  _Pragma("unroll") for (int i = 0; i < 10; i++) sum += halves[i];
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  ip->check = ~sum;
}

/* From us to the sender: `length` is that of the whole packet. UDP gets no checksum, since the body is a new one. */
static __always_inline void turn_around(struct outer *o, __u32 length) {
  __u8 mac[ETH_ALEN];
  __builtin_memcpy(mac, o->eth.h_source, ETH_ALEN);
  __builtin_memcpy(o->eth.h_source, o->eth.h_dest, ETH_ALEN);
  __builtin_memcpy(o->eth.h_dest, mac, ETH_ALEN);
  __be32 address = o->ip.saddr;
  o->ip.saddr = o->ip.daddr;
  o->ip.daddr = address;
  __be16 port = o->udp.source;
  o->udp.source = o->udp.dest;
  o->udp.dest = port;
  o->udp.len = bpf_htons(length - sizeof(struct ethhdr) - sizeof(struct iphdr));
  o->udp.check = 0;
  o->ip.tot_len = bpf_htons(length - sizeof(struct ethhdr));
  o->ip.ttl = 64;
  write_ip_checksum(&o->ip);
}

static __always_inline void readdress(struct outer *o, const struct sw_peer *peer) {
  __builtin_memcpy(o->eth.h_dest, peer->mac, ETH_ALEN);
  o->ip.daddr = peer->address;
  o->udp.dest = peer->port;
  write_ip_checksum(&o->ip);
}

#endif
