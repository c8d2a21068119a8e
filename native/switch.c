/* Loads bpf/ from light skeletons, which `make bpf` writes: nothing is compiled, and no library is needed. */
#include "switch.h"

#include <bpf/skel_internal.h>

#include "../bpf/frame.h"
#include "../bpf/skeleton/aggregate_tc.lskel.h"
#include "../bpf/skeleton/aggregate_xdp.lskel.h"
#include "../bpf/skeleton/impair.lskel.h"

/* Newer than the kernel headers of some distributions. */
enum { ATTACH_XDP = 37, ATTACH_TCX_INGRESS = 46, ATTACH_TCX_EGRESS = 47, XDP_GENERIC = 1 << 1, XDP_NATIVE = 1 << 2 };

/* The descriptor, which then belongs to the caller and not to the skeleton. */
static int32_t taken(int *fd) {
  int32_t mine = *fd;
  *fd = 0;
  return mine;
}

/* Both skeletons have the same maps under the same names. */
#define SIZE_MAPS(maps, n_jobs, n_slots)                                                                               \
  do {                                                                                                                 \
    (maps).slots.max_entries = n_slots;                                                                                \
    (maps).peers.max_entries = (n_jobs) * SW_MAX_WORKERS;                                                              \
    (maps).tables.max_entries = (n_jobs) * SW_MAX_TABLES;                                                              \
    (maps).traffic.max_entries = (n_jobs) * SW_MAX_WORKERS;                                                            \
  } while (0)

#define TAKE_MAPS(maps, out)                                                                                           \
  do {                                                                                                                 \
    (out)->slots = taken(&(maps).slots.map_fd);                                                                        \
    (out)->jobs = taken(&(maps).jobs.map_fd);                                                                          \
    (out)->peers = taken(&(maps).peers.map_fd);                                                                        \
    (out)->tables = taken(&(maps).tables.map_fd);                                                                      \
    (out)->traffic = taken(&(maps).traffic.map_fd);                                                                    \
    (out)->refusals = taken(&(maps).refusals.map_fd);                                                                  \
  } while (0)

static int32_t load_tc(uint32_t jobs, uint32_t slots, struct sw_switch *out) {
  struct aggregate_tc *skeleton = aggregate_tc__open();
  if (!skeleton) return -ENOMEM;
  SIZE_MAPS(skeleton->maps, jobs, slots);
  int32_t done = aggregate_tc__load(skeleton);
  if (done == 0) {
    TAKE_MAPS(skeleton->maps, out);
    out->program = taken(&skeleton->progs.aggregate_tc.prog_fd);
    out->egress = out->ports = -1;
  }
  aggregate_tc__destroy(skeleton);
  return done;
}

static int32_t load_xdp(uint32_t jobs, uint32_t slots, uint32_t ports, struct sw_switch *out) {
  struct aggregate_xdp *skeleton = aggregate_xdp__open();
  if (!skeleton) return -ENOMEM;
  SIZE_MAPS(skeleton->maps, jobs, slots);
  skeleton->maps.ports.max_entries = ports; /* no more: a result to all walks through all of them */
  int32_t done = aggregate_xdp__load(skeleton);
  if (done == 0) {
    TAKE_MAPS(skeleton->maps, out);
    out->ports = taken(&skeleton->maps.ports.map_fd);
    out->program = taken(&skeleton->progs.aggregate_xdp.prog_fd);
    out->egress = taken(&skeleton->progs.address_result.prog_fd);
  }
  aggregate_xdp__destroy(skeleton);
  return done;
}

int32_t sw_switch_load(int32_t mode, uint32_t jobs, uint32_t slots, uint32_t ports, struct sw_switch *out) {
  return mode == SW_MODE_TC ? load_tc(jobs, slots, out) : load_xdp(jobs, slots, ports, out);
}

int32_t sw_impair_load(struct sw_impair *out) {
  struct impair *skeleton = impair__open();
  if (!skeleton) return -ENOMEM;
  int32_t done = impair__load(skeleton);
  if (done == 0) {
    out->inward = taken(&skeleton->progs.impair_inward.prog_fd);
    out->outward = taken(&skeleton->progs.impair_outward.prog_fd);
    out->impairments = taken(&skeleton->maps.impairments.map_fd);
  }
  impair__destroy(skeleton);
  return done;
}

static int32_t attach(int32_t program, uint32_t ifindex, uint32_t where, uint32_t flags) {
  union bpf_attr attr;
  memset(&attr, 0, sizeof(attr));
  attr.link_create.prog_fd = program;
  attr.link_create.target_ifindex = ifindex;
  attr.link_create.attach_type = where;
  attr.link_create.flags = flags;
  return sw_bpf(BPF_LINK_CREATE, &attr);
}

int32_t sw_attach_tc(int32_t program, uint32_t ifindex, int32_t outward) {
  return attach(program, ifindex, outward ? ATTACH_TCX_EGRESS : ATTACH_TCX_INGRESS, 0);
}

int32_t sw_attach_xdp(int32_t program, uint32_t ifindex, int32_t generic) {
  return attach(program, ifindex, ATTACH_XDP, generic ? XDP_GENERIC : XDP_NATIVE);
}

int32_t sw_map_update(int32_t map, uint32_t key, const void *value) {
  union bpf_attr attr;
  memset(&attr, 0, sizeof(attr));
  attr.map_fd = map;
  attr.key = (__u64)(long)&key;
  attr.value = (__u64)(long)value;
  return sw_bpf(BPF_MAP_UPDATE_ELEM, &attr);
}

int32_t sw_map_lookup(int32_t map, uint32_t key, void *value) {
  union bpf_attr attr;
  memset(&attr, 0, sizeof(attr));
  attr.map_fd = map;
  attr.key = (__u64)(long)&key;
  attr.value = (__u64)(long)value;
  return sw_bpf(BPF_MAP_LOOKUP_ELEM, &attr);
}

int32_t sw_program_run(int32_t program, const void *packet, uint32_t *size, void *out, uint32_t room, uint32_t repeat,
                       uint32_t *verdict, uint32_t *nanoseconds) {
  union bpf_attr attr;
  memset(&attr, 0, sizeof(attr));
  attr.test.prog_fd = program;
  attr.test.data_in = (__u64)(long)packet;
  attr.test.data_size_in = *size;
  attr.test.data_out = (__u64)(long)out;
  attr.test.data_size_out = room;
  attr.test.repeat = repeat;
  int32_t done = sw_bpf(BPF_PROG_RUN, &attr);
  *size = attr.test.data_size_out;
  *verdict = attr.test.retval;
  *nanoseconds = attr.test.duration;
  return done;
}
