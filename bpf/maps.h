/* The memory of the aggregator, which user space configures and reads. Sizes marked 1 are set when it is loaded. */
#ifndef SUMWIRE_MAPS_H
#define SUMWIRE_MAPS_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "frame.h"

struct slot {
  struct bpf_spin_lock lock;
  __u32 reserved;
  struct sw_slot state;
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct slot);
} slots SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, SW_MAX_JOBS);
  __type(key, __u32);
  __type(value, struct sw_job);
} jobs SEC(".maps");

/* SW_MAX_WORKERS for each job. */
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct sw_peer);
} peers SEC(".maps");

/* SW_MAX_TABLES for each job. */
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct sw_table);
} tables SEC(".maps");

struct counters {
  __u64 of[SW_COUNTERS];
};

/* SW_MAX_WORKERS for each job. */
struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct counters);
} traffic SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, SW_REFUSALS);
  __type(key, __u32);
  __type(value, __u64);
} refusals SEC(".maps");

static __always_inline void refuse(__u32 reason) {
  __u64 *count = bpf_map_lookup_elem(&refusals, &reason);
  if (count) ++*count;
}

#endif
