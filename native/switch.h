/* C ABI of the in-network aggregator's loader: Linux only. Every function returns 0 or more, or -errno. */
#ifndef SUMWIRE_SWITCH_H
#define SUMWIRE_SWITCH_H

#include <stdint.h>

#define SW_EXPORT __attribute__((visibility("default")))

enum sw_mode { SW_MODE_TC = 0, SW_MODE_XDP = 1, SW_MODE_GENERIC = 2 };

/* Descriptors of a loaded aggregator, all to be closed by the caller; -1 for what its mode does not have. */
struct sw_switch {
  int32_t program;
  int32_t egress; /* XDP: addresses results as they leave */
  int32_t slots;
  int32_t jobs;
  int32_t peers;
  int32_t tables;
  int32_t traffic;
  int32_t refusals;
  int32_t ports; /* XDP: where results leave */
};

struct sw_impair {
  int32_t inward;
  int32_t outward;
  int32_t impairments;
};

/* Load the programs, with room for these numbers of jobs, slots (of all jobs) and network devices. */
SW_EXPORT int32_t sw_switch_load(int32_t mode, uint32_t jobs, uint32_t slots, uint32_t ports, struct sw_switch *out);
SW_EXPORT int32_t sw_impair_load(struct sw_impair *out);

/* Attach a program to a device of this thread's network namespace. The program stays until the descriptor that is
 * returned is closed, by whatever. */
SW_EXPORT int32_t sw_attach_tc(int32_t program, uint32_t ifindex, int32_t outward);
SW_EXPORT int32_t sw_attach_xdp(int32_t program, uint32_t ifindex, int32_t generic);

/* One element of a map; per-CPU maps give a value for each possible CPU. Keys are uint32. */
SW_EXPORT int32_t sw_map_update(int32_t map, uint32_t key, const void *value);
SW_EXPORT int32_t sw_map_lookup(int32_t map, uint32_t key, void *value);

/* Run a program on a packet, `repeat` times. `size` is the length of `packet`, and then that of `out`, which has room
 * for `room` bytes; `verdict` is what the program returned, `nanoseconds` the mean duration. */
SW_EXPORT int32_t sw_program_run(int32_t program, const void *packet, uint32_t *size, void *out, uint32_t room,
                                 uint32_t repeat, uint32_t *verdict, uint32_t *nanoseconds);

#endif
