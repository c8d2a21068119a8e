/* The aggregator as an XDP program: before the kernel makes a socket buffer of a packet, or (generic) right after.
 * Packets cannot be lengthened here, so that requests come padded to the length of their results. */
#include "reply.h"

/* By ifindex: every port, with `address_result` as the program that runs when a packet leaves by it. */
struct {
  __uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
  __uint(max_entries, 1); /* set when it is loaded */
  __type(key, __u32);
  __type(value, struct bpf_devmap_val);
} ports SEC(".maps");

static __always_inline int pass(__u32 reason) {
  refuse(reason);
  return XDP_PASS;
}

static __always_inline int send(struct xdp_md *ctx, const struct request *r, const struct reply *out) {
  __u32 length = reply_length(out);
  void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
  long held = end - data;
  asm volatile("" : "+r"(held)); /* or clang would subtract 32-bit pointers, which the verifier forbids */
  if (bpf_xdp_adjust_tail(ctx, (int)length - (int)held)) goto lost;
  data = (void *)(long)ctx->data;
  end = (void *)(long)ctx->data_end;
  struct packet *p = data;
  if ((void *)(p + 1) > end) goto lost;
  if (out->kind == SW_RESULT && !copy_result(r, p->body, end)) return XDP_DROP;
  write_header(&p->sw, r, out);
  turn_around(data, length);
  r->counters->of[SW_BYTES_OUT] += (out->to == ALL ? r->job->workers : 1) * (__u64)(length - OUTER_LENGTH);
  if (out->to == ALL) return bpf_redirect_map(&ports, 0, BPF_F_BROADCAST);
  return bpf_redirect_map(&ports, ctx->ingress_ifindex, 0);
lost:
  r->counters->of[SW_REPLY_FAILURES]++;
  return XDP_DROP;
}

SEC("xdp")
int aggregate_xdp(struct xdp_md *ctx) {
  void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
  struct packet *p = data;
  if ((void *)(p + 1) > end || !is_datagram(p)) return pass(SW_FOREIGN);
  struct request r = {};
  struct reply out = {};
  int refused = parse(p, end - data - OUTER_LENGTH, ctx->ingress_ifindex, &r);
  if (refused) return pass(refused - 1);
  take(&r, p->body, end, &out);
  return out.to == NOBODY ? XDP_DROP : send(ctx, &r, &out);
}

/* A result to all workers leaves by every port: address it to the job's worker there, if there is one. */
SEC("xdp/devmap")
int address_result(struct xdp_md *ctx) {
  void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
  struct packet *p = data;
  if ((void *)(p + 1) > end) return XDP_DROP;
  if (p->sw.worker != SW_EVERYONE) return XDP_PASS;
  __u32 number = p->sw.job;
  struct sw_job *job = bpf_map_lookup_elem(&jobs, &number);
  if (!job) return XDP_DROP;
  __u32 base = job->index * SW_MAX_WORKERS, workers = job->workers;
  for (__u32 w = 0; w < SW_MAX_WORKERS; w++) {
    if (w >= workers) break;
    __u32 place = base + w;
    struct sw_peer *peer = bpf_map_lookup_elem(&peers, &place);
    if (!peer || peer->ifindex != ctx->egress_ifindex) continue;
    readdress(data, peer);
    return XDP_PASS;
  }
  return XDP_DROP;
}

char LICENSE[] SEC("license") = "Apache-2.0";
