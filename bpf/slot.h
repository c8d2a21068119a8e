/* Third stage: what a request does to its slot, and which reply follows. docs/in-network.md has the table. */
#ifndef SUMWIRE_SLOT_H
#define SUMWIRE_SLOT_H

#include "merge.h"

enum { NOBODY = 0, SENDER = 1, ALL = 2 };

/* The reply, if any. */
struct reply {
  __u64 members;
  __u32 session;
  __u32 tag;
  __u32 result; /* bytes that follow the header */
  __u16 count;
  __u8 kind;
  __u8 op;
  __u8 to;
};

static __always_inline struct slot *slot_of(const struct request *r) {
  __u32 slots_per_channel = r->job->slots;
  __u32 index = r->job->first_slot + r->channel * slots_per_channel + (r->chunk & (slots_per_channel - 1));
  return bpf_map_lookup_elem(&slots, &index);
}

static __always_inline int is_due(const struct sw_slot *s, const struct sw_job *job, __u64 now) {
  /* Signed: another CPU may have begun the slot after this one has looked at the clock. */
  return job->deadline && (__s64)(now - s->begun) >= (__s64)job->deadline;
}

static __always_inline void answer(struct reply *out, __u8 kind, __u8 to, const struct sw_slot *s) {
  out->kind = kind;
  out->to = to;
  out->members = s->members;
  out->count = s->count;
}

/* Under the lock. */
static __always_inline void apply(struct sw_slot *s, const struct request *r, const __u8 *body, const __u8 *end,
                                  __u64 now, struct reply *out) {
  const struct sw_job *job = r->job;
  struct counters *counters = r->counters;
  __u64 bit = 1ULL << (r->worker & 63);
  __s32 newer = s->begun ? (__s32)(r->session - s->session) : 1;
  __s32 later = (__s32)(r->chunk - s->chunk);
  __u64 keep = ~0ULL;
  out->to = NOBODY;
  if (newer < 0) {
    /* A session began between the check of the job and the lock. */
    out->kind = SW_STALE;
    out->session = s->session;
    out->to = SENDER;
    counters->of[SW_STALES]++;
    return;
  }
  if (!newer && later < 0) {
    out->kind = SW_EXPIRED;
    out->tag = s->chunk;
    out->to = SENDER;
    counters->of[SW_EXPIRIES]++;
    return;
  }
  if (newer || later) {
    if (r->kind == SW_POLL) {
      out->kind = SW_WAITING;
      out->to = SENDER;
      return;
    }
    s->session = r->session;
    s->chunk = r->chunk;
    s->tag = r->tag;
    s->op = r->op;
    s->lane = r->lane;
    s->per_word = r->per_word;
    s->result = r->result;
    s->members = 0;
    s->count = 0;
    s->arrived = 0;
    s->complete = 0;
    s->begun = now;
    keep = 0;
  } else if (s->tag != r->tag || s->op != r->op || s->result != r->result || s->lane != r->lane ||
             s->per_word != r->per_word) {
    answer(out, SW_MISMATCH, SENDER, s);
    out->tag = s->tag;
    out->op = s->op;
    counters->of[SW_MISMATCHES]++;
    return;
  }
  if (s->complete) {
    answer(out, SW_RESULT, SENDER, s);
    counters->of[s->members & bit ? SW_DUPLICATES : SW_LATE]++;
    return;
  }
  if (r->kind == SW_MERGE && !(s->members & bit)) {
    if ((__u32)s->count + r->count > job->headroom) {
      answer(out, SW_MISMATCH, SENDER, s);
      counters->of[SW_MISMATCHES]++;
      return;
    }
    merge(s, r, body, end, keep);
    s->members |= bit;
    s->count += r->count;
    s->arrived++;
    counters->of[SW_MERGED]++;
    counters->of[SW_LANES] += r->result / 8 * r->per_word;
  } else {
    answer(out, SW_WAITING, SENDER, s);
    if (r->kind == SW_MERGE) counters->of[SW_DUPLICATES]++;
  }
  if (s->arrived >= job->quorum || is_due(s, job, now)) {
    s->complete = 1;
    answer(out, SW_RESULT, ALL, s);
    counters->of[SW_COMPLETED]++;
    if (s->arrived < job->quorum) counters->of[SW_DEADLINES]++;
  }
}

/* The whole stage. */
static __always_inline void take(const struct request *r, const __u8 *body, const __u8 *end, struct reply *out) {
  out->session = r->session;
  out->tag = r->tag;
  out->op = r->op;
  out->result = r->result;
  out->members = 0;
  out->count = 0;
  out->to = NOBODY;
  if (r->kind == SW_POLL) r->counters->of[SW_POLLS]++;
  if (r->stale) {
    out->kind = SW_STALE;
    out->session = r->job->session;
    out->to = SENDER;
    r->counters->of[SW_STALES]++;
    return;
  }
  struct slot *slot = slot_of(r);
  if (!slot) return;
  __u64 now = r->job->deadline ? bpf_ktime_get_ns() : 1; /* a slot that has begun is not 0 */
  bpf_spin_lock(&slot->lock);
  apply(&slot->state, r, body, end, now, out);
  bpf_spin_unlock(&slot->lock);
}

/* The words of a complete chunk. False if the slot has gone on since. */
static __always_inline int copy_result(const struct request *r, __u8 *body, const __u8 *end) {
  struct slot *slot = slot_of(r);
  __u32 zero = r->job->zero;
  __u32 words = r->result / 8;
  if (!slot) return 0;
  bpf_spin_lock(&slot->lock);
  int same = slot->state.session == r->session && slot->state.chunk == r->chunk;
  if (same) {
    for (__u32 i = zero; i < words && i <= MAX_WORDS - WORDS && can_loop; i += WORDS) {
      word *to = (word *)(body + i * 8);
      const uint64_t *from = slot->state.sum + i;
      if ((__u8 *)(to + WORDS) > end) break;
      _Pragma("clang loop unroll(full)") for (__u32 k = 0; k < WORDS; k++) to[k] = from[k];
    }
  }
  bpf_spin_unlock(&slot->lock);
  return same;
}

#endif
