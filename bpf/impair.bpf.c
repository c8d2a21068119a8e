/* A bad link, for the lab: loses, doubles and reorders datagrams that enter or leave a device. Not part of the switch.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "impair.h"

enum {
  MARK = 0x53554d50, /* of packets that have been dealt with: they pass */
  LONGEST = 9216,
  FARTHEST = 8, /* datagrams that overtake one */
};

enum { EMPTY, FILLING, FULL, EMPTYING };

/* A datagram that waits for others to overtake it. */
struct held {
  __u32 state;
  __s32 ahead; /* how many still have to */
  __u32 length;
  __u8 data[LONGEST];
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct sw_impairment);
} impairments SEC(".maps");

/* One for each direction. */
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 2);
  __type(key, __u32);
  __type(value, struct held);
} waiting SEC(".maps");

static __always_inline int is_datagram(struct __sk_buff *skb) {
  void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
  struct ethhdr *eth = data;
  struct iphdr *ip = (void *)(eth + 1);
  return (void *)(ip + 1) <= end && eth->h_proto == bpf_htons(ETH_P_IP) && ip->protocol == IPPROTO_UDP;
}

/* Whether the datagram is held back now. */
static __always_inline int hold(struct __sk_buff *skb, struct held *held) {
  __u32 length = skb->len;
  if (length == 0 || length > LONGEST || __sync_val_compare_and_swap(&held->state, EMPTY, FILLING) != EMPTY) return 0;
  int kept = bpf_skb_load_bytes(skb, 0, held->data, length) == 0;
  held->length = length;
  held->ahead = 1 + bpf_get_prandom_u32() % FARTHEST;
  __sync_lock_test_and_set(&held->state, kept ? FULL : EMPTY);
  return kept;
}

/* If one has waited long enough: send a copy of this datagram, and let this one become it. */
static __always_inline void release(struct __sk_buff *skb, struct held *held, __u64 where) {
  if (held->state != FULL || __sync_fetch_and_add(&held->ahead, -1) > 1) return;
  if (__sync_val_compare_and_swap(&held->state, FULL, EMPTYING) != FULL) return;
  __u32 length = held->length;
  skb->mark = MARK;
  if (length && length <= LONGEST && !bpf_clone_redirect(skb, skb->ifindex, where) &&
      !bpf_skb_change_tail(skb, length, 0))
    bpf_skb_store_bytes(skb, 0, held->data, length, 0);
  skb->mark = 0;
  __sync_lock_test_and_set(&held->state, EMPTY);
}

static __always_inline int impair(struct __sk_buff *skb, __u32 inward) {
  __u32 first = 0;
  __u64 where = inward ? BPF_F_INGRESS : 0;
  struct sw_impairment *how = bpf_map_lookup_elem(&impairments, &first);
  struct held *held = bpf_map_lookup_elem(&waiting, &inward);
  if (!how || !held || !is_datagram(skb)) return TC_ACT_UNSPEC;
  if (skb->mark == MARK) {
    skb->mark = 0;
    return TC_ACT_UNSPEC;
  }
  if (bpf_get_prandom_u32() < how->loss) {
    __sync_fetch_and_add(&how->lost, 1);
    return TC_ACT_SHOT;
  }
  if (bpf_get_prandom_u32() < how->duplicate) {
    skb->mark = MARK;
    if (!bpf_clone_redirect(skb, skb->ifindex, where)) __sync_fetch_and_add(&how->doubled, 1);
    skb->mark = 0;
  }
  if (bpf_get_prandom_u32() < how->reorder && hold(skb, held)) {
    __sync_fetch_and_add(&how->reordered, 1);
    return TC_ACT_SHOT;
  }
  release(skb, held, where);
  return TC_ACT_UNSPEC;
}

SEC("tc")
int impair_inward(struct __sk_buff *skb) { return impair(skb, 1); }

SEC("tc")
int impair_outward(struct __sk_buff *skb) { return impair(skb, 0); }

char LICENSE[] SEC("license") = "Apache-2.0";
