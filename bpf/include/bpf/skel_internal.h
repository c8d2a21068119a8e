/* What headers made by `bpftool gen skeleton -L` need. libbpf has such a file, too; this one is enough for ours, so
 * that building Sumwire needs the kernel's headers only. The structures are the loader programs' interface. */
#ifndef SUMWIRE_SKEL_INTERNAL_H
#define SUMWIRE_SKEL_INTERNAL_H

#include <errno.h>
#include <linux/bpf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct bpf_map_desc {
  int map_fd;        /* set by the loader program */
  __u32 max_entries; /* 0: as in the source */
  __u64 initial_value;
};

struct bpf_prog_desc {
  int prog_fd;
};

struct bpf_loader_ctx {
  __u32 sz;
  __u32 flags;
  __u32 log_level;
  __u32 log_size;
  __u64 log_buf;
};

struct bpf_load_and_run_opts {
  struct bpf_loader_ctx *ctx;
  const void *data;
  const void *insns;
  __u32 data_sz;
  __u32 insns_sz;
  const char *errstr;
};

/* The system call: 0 or more, or -errno. */
static inline int sw_bpf(enum bpf_cmd command, union bpf_attr *attr) {
  long done = syscall(__NR_bpf, command, attr, sizeof(*attr));
  return done < 0 ? -errno : (int)done;
}

static inline void *skel_alloc(size_t size) { return calloc(1, size); }

static inline void skel_free(void *skeleton) { free(skeleton); }

static inline void skel_closenz(int fd) {
  if (fd > 0) close(fd);
}

/* The loader program creates maps and loads programs inside the kernel: run it once. */
static inline int bpf_load_and_run(struct bpf_load_and_run_opts *opts) {
  union bpf_attr attr;
  __u32 first = 0;
  int program = -1, done;
  memset(&attr, 0, sizeof(attr));
  attr.map_type = BPF_MAP_TYPE_ARRAY;
  attr.key_size = sizeof(first);
  attr.value_size = opts->data_sz;
  attr.max_entries = 1;
  int map = done = sw_bpf(BPF_MAP_CREATE, &attr);
  if (done < 0) return done;

  memset(&attr, 0, sizeof(attr));
  attr.map_fd = map;
  attr.key = (__u64)(long)&first;
  attr.value = (__u64)(long)opts->data;
  done = sw_bpf(BPF_MAP_UPDATE_ELEM, &attr);
  if (done < 0) goto out;

  memset(&attr, 0, sizeof(attr));
  attr.prog_type = BPF_PROG_TYPE_SYSCALL;
  attr.insns = (__u64)(long)opts->insns;
  attr.insn_cnt = opts->insns_sz / sizeof(struct bpf_insn);
  attr.license = (__u64)(long)"Dual BSD/GPL";
  attr.fd_array = (__u64)(long)&map;
  attr.prog_flags = BPF_F_SLEEPABLE;
  program = done = sw_bpf(BPF_PROG_LOAD, &attr);
  if (done < 0) goto out;

  memset(&attr, 0, sizeof(attr));
  attr.test.prog_fd = program;
  attr.test.ctx_in = (__u64)(long)opts->ctx;
  attr.test.ctx_size_in = opts->ctx->sz;
  done = sw_bpf(BPF_PROG_RUN, &attr);
  if (done == 0) done = (int)attr.test.retval;
out:
  close(map);
  if (program >= 0) close(program);
  return done < 0 ? done : 0;
}

#endif
