/* The aggregator as a TC (tcx) ingress program: it respects queues, takes any MTU, and runs on every network device. */
#include <linux/pkt_cls.h>

#include "reply.h"

enum { PASS = TC_ACT_UNSPEC }; /* to the next program, and on to the stack */

static __always_inline int pass(__u32 reason) {
  refuse(reason);
  return PASS;
}

/* One copy to each worker that is known; `o` holds the addresses of the reply to its sender. */
static __always_inline int send_to_all(struct __sk_buff *skb, const struct request *r, struct outer *o, __u32 length) {
  __u32 base = r->job->index * SW_MAX_WORKERS, workers = r->job->workers, sent = 0;
  __u32 pending = 0;
  for (__u32 w = 0; w < SW_MAX_WORKERS; w++) {
    if (w >= workers) break;
    __u32 place = base + w;
    struct sw_peer *peer = bpf_map_lookup_elem(&peers, &place);
    if (!peer || !peer->ifindex) continue;
    if (pending && bpf_clone_redirect(skb, pending, 0)) r->counters->of[SW_REPLY_FAILURES]++;
    pending = peer->ifindex;
    readdress(o, peer);
    if (bpf_skb_store_bytes(skb, 0, o, sizeof(*o), 0)) return TC_ACT_SHOT;
    sent++;
  }
  r->counters->of[SW_BYTES_OUT] += (__u64)sent * (length - OUTER_LENGTH);
  return pending ? bpf_redirect(pending, 0) : TC_ACT_SHOT;
}

static __always_inline int send(struct __sk_buff *skb, const struct request *r, const struct reply *out) {
  __u32 length = reply_length(out);
  struct outer o;
  if (bpf_skb_change_tail(skb, length, 0) || bpf_skb_pull_data(skb, length)) goto lost;
  void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
  struct packet *p = data;
  if ((void *)(p + 1) > end) goto lost;
  if (out->kind == SW_RESULT && !copy_result(r, p->body, end)) return TC_ACT_SHOT;
  write_header(&p->sw, r, out);
  turn_around(data, length);
  if (out->to == SENDER) {
    r->counters->of[SW_BYTES_OUT] += length - OUTER_LENGTH;
    return bpf_redirect(skb->ifindex, 0);
  }
  __builtin_memcpy(&o, data, sizeof(o));
  return send_to_all(skb, r, &o, length);
lost:
  r->counters->of[SW_REPLY_FAILURES]++;
  return TC_ACT_SHOT;
}

SEC("tc")
int aggregate_tc(struct __sk_buff *skb) {
  void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
  struct packet *p = data;
  if (data + OUTER_LENGTH > end || skb->len < sizeof(struct packet) || !is_datagram(p)) return pass(SW_FOREIGN);
  /* Several datagrams in one buffer: nothing that a worker sends. */
  if (skb->gso_size) return pass(SW_FOREIGN);
  if (end - data < skb->len && skb->len <= sizeof(struct packet) + SW_BODY_9000) {
    if (bpf_skb_pull_data(skb, skb->len)) return pass(SW_FOREIGN);
    data = (void *)(long)skb->data;
    end = (void *)(long)skb->data_end;
    p = data;
  }
  if ((void *)(p + 1) > end) return pass(SW_FOREIGN);
  struct request r = {};
  struct reply out = {};
  int refused = parse(p, end - data - OUTER_LENGTH, skb->ifindex, &r);
  if (refused) return pass(refused - 1);
  take(&r, p->body, end, &out);
  return out.to == NOBODY ? TC_ACT_SHOT : send(skb, &r, &out);
}

char LICENSE[] SEC("license") = "Apache-2.0";
