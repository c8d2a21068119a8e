/* C ABI of aggregation by packets, in user space and on Linux: a worker's link, an aggregator, and the order of lanes.
 * bpf/frame.h defines the packets, docs/in-network.md the protocol. */
#pragma once
#include <cstddef>

#include "../bpf/frame.h"

#define SW_EXPORT extern "C" __attribute__((visibility("default")))

/* Where a worker sends to, and what WELCOME said. */
struct sw_link_options {
  uint32_t address; /* IPv4, as in the packet */
  uint16_t port;    /* host order */
  uint16_t job;
  uint64_t key;
  uint64_t reply_key;
  uint64_t rate;        /* bytes per second of UDP payload to send at most; 0: as fast as windows allow */
  uint64_t deadline_ns; /* of the aggregator; 0: none */
  uint64_t timeout_ns;  /* without any answer, or with a chunk that others do not complete */
  uint32_t session;     /* 0 before WELCOME */
  uint32_t window;
  uint32_t body;
  uint8_t worker;
  uint8_t padded;
  uint8_t reserved[2];
};

/* A run of lanes, words or indices that becomes one chunk after another. `bytes` bytes of the body give `words` words
 * of the result; zeros follow the body where the result is longer. */
struct sw_stream {
  const uint8_t *body;
  uint8_t *result;
  uint64_t body_bytes;
  uint64_t result_bytes;
  uint32_t chunk_bytes; /* of result per chunk, a multiple of SW_GRAIN */
  uint32_t tag;
  uint8_t op;
  uint8_t table;
  uint8_t bytes;
  uint8_t words;
  uint8_t absent;   /* this worker sends nothing of it, and only asks for the others' sum */
  uint8_t once;     /* a lost body is not sent again: the aggregator's deadline ends its chunk */
  uint8_t tolerant; /* a result that is gone counts as one of nobody */
  uint8_t reserved[5];
};

/* How a transfer ends, other than with all its results. */
enum sw_link_status {
  SW_LINK_DONE = 0,
  SW_LINK_BUSY = 1,     /* not ended yet */
  SW_LINK_SILENT = 2,   /* no answer from the aggregator */
  SW_LINK_WAITING = 3,  /* `members` are in the chunk, others do not come */
  SW_LINK_EXPIRED = 4,  /* the slot has gone on to chunk `tag` */
  SW_LINK_MISMATCH = 5, /* others sent `tag`, `op`, `result` */
  SW_LINK_STALE = 6,    /* the job is in session `session` */
  SW_LINK_CLOSED = 7,
  SW_LINK_ERROR = 8,   /* of the socket: `error` is errno */
  SW_LINK_REFUSED = 9, /* the aggregator does not take this worker's packets; sw_link_read_refusal tells why */
};

struct sw_link_outcome {
  uint64_t members;
  uint32_t chunk;
  uint32_t tag;
  uint32_t session;
  int32_t error;
  uint16_t result;
  uint8_t op;
  uint8_t reserved;
};

/* What a link has done so far. */
struct sw_link_counts {
  uint64_t bytes_sent;
  uint64_t packets_sent;
  uint64_t merges_again;
  uint64_t polls;
  uint64_t results;
  uint64_t round_trip_ns;
};

struct sw_link;

/* A socket and a thread; null, with errno, if there is none. */
SW_EXPORT sw_link *sw_link_open(const sw_link_options *options);
SW_EXPORT void sw_link_welcome(sw_link *link, const sw_link_options *options);
/* End the thread and all that is waited for; other threads may still call the functions below. Close frees it all. */
SW_EXPORT void sw_link_stop(sw_link *link);
SW_EXPORT void sw_link_close(sw_link *link);
SW_EXPORT void sw_link_read_counts(sw_link *link, sw_link_counts *out);
/* What the aggregator last said to packets that it did not take: JSON; returns its length. */
SW_EXPORT uint32_t sw_link_read_refusal(sw_link *link, uint8_t *out, uint32_t room);

/* Send a control packet until an answer with the same `members` comes; returns its length, 0 if none does, -errno if it
 * cannot be sent. */
SW_EXPORT int32_t sw_link_control(sw_link *link, const uint8_t *packet, uint32_t length, uint8_t *out, uint32_t room,
                                  uint32_t milliseconds);

/* Begin to exchange streams on a channel, whose next chunk is `first`; the memory must stay until it ends. `members`
 * and `counts` have an element for each chunk. Then wait for its end, or end it. */
SW_EXPORT void sw_link_start(sw_link *link, uint32_t channel, uint32_t first, const sw_stream *streams, uint32_t count,
                             uint64_t *members, uint16_t *counts);
SW_EXPORT int32_t sw_link_wait(sw_link *link, uint32_t channel, uint32_t milliseconds, sw_link_outcome *out);
SW_EXPORT void sw_link_abort(sw_link *link, uint32_t channel);

/* The aggregator, which one thread calls. Returns 0 or more, or -errno. */
struct sw_aggregator;
struct sw_sender {
  uint32_t address; /* as in the packet */
  uint16_t port;
  uint16_t reserved;
};

SW_EXPORT sw_aggregator *sw_aggregator_open(uint32_t address, uint16_t port);
SW_EXPORT void sw_aggregator_close(sw_aggregator *a);
SW_EXPORT int32_t sw_aggregator_port(sw_aggregator *a);
/* Begin a session of a job: its slots are empty from now on. */
SW_EXPORT void sw_aggregator_begin(sw_aggregator *a, uint16_t number, const sw_job *job);
SW_EXPORT void sw_aggregator_peer(sw_aggregator *a, uint16_t number, uint32_t worker, uint32_t address);
SW_EXPORT void sw_aggregator_table(sw_aggregator *a, uint16_t number, uint32_t table, const sw_table *values);
/* Merge and answer until a control packet comes, which is then in `out`, or so much time has passed. */
SW_EXPORT int32_t sw_aggregator_serve(sw_aggregator *a, uint32_t milliseconds, uint8_t *out, uint32_t room,
                                      sw_sender *from);
SW_EXPORT int32_t sw_aggregator_reply(sw_aggregator *a, const uint8_t *packet, uint32_t length, const sw_sender *to);
SW_EXPORT void sw_aggregator_counters(sw_aggregator *a, uint16_t number, uint64_t *out); /* [worker][counter] */
SW_EXPORT void sw_aggregator_refusals(sw_aggregator *a, uint64_t out[SW_REFUSALS]);
