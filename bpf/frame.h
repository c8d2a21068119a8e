/* The packets of in-network aggregation, version 1: the only definition, shared by BPF programs, C++ and (checked by a
 * test) Python. docs/in-network.md explains the protocol.
 *
 * A packet is Ethernet, IPv4 without options, UDP, this header and a body. All numbers are little-endian, as everywhere
 * in Sumwire. */
#ifndef SUMWIRE_FRAME_H
#define SUMWIRE_FRAME_H

#include <stdint.h>

enum {
  SW_MAGIC = 0x504d5553, /* "SUMP" */
  SW_VERSION = 1,
  SW_PORT = 4660, /* of aggregator and workers, unless configured otherwise */

  SW_HEADER = 48,
  SW_OUTER = 28,       /* IPv4 and UDP headers: what an MTU counts beside header and body */
  SW_GRAIN = 64,       /* results are a multiple of this, so that loops need no tail */
  SW_BODY_1500 = 1408, /* the longest body at an MTU of 1500 */
  SW_BODY_9000 = 8896, /* ... of 9000: the longest of all */
  SW_BODY_XDP = 3392,  /* ... that native XDP can take: its packets lie in one page */

  SW_MAX_JOBS = 64,
  SW_MAX_WORKERS = 64, /* per job: a bit each */
  SW_MAX_CHANNELS = 4, /* per job: sequences of chunks that do not wait for each other */
  SW_MAX_TABLES = 32,  /* per job */
  SW_MAX_SLOTS = 4096, /* per channel; a power of two, at least twice the window */
  SW_MAX_COUNT = 65535,
};

/* What a packet is. Requests go up, replies come down. */
enum sw_kind {
  SW_HELLO = 1,     /* up: JSON; answered by user space, never by BPF */
  SW_WELCOME = 2,   /* down: JSON */
  SW_TABLE = 3,     /* up: JSON; a table to look up indices in */
  SW_REFUSED = 4,   /* down: JSON; why a HELLO or TABLE was refused */
  SW_MERGE = 5,     /* up: a worker's part of a chunk */
  SW_POLL = 6,      /* up: MERGE without its body: is the chunk complete? */
  SW_RESULT = 7,    /* down: a complete chunk, to all workers, or once more to one that asks */
  SW_WAITING = 8,   /* down: the chunk is not complete; `members` tells who is in it */
  SW_EXPIRED = 9,   /* down: the slot has gone on to chunk `tag` */
  SW_MISMATCH = 10, /* down: others sent another tag, operation or length for this chunk; those are in this header */
  SW_STALE = 11,    /* down: the job is in session `session` now */
};

/* How a body is merged into a slot. All but LOOKUP take as many bytes as they give. */
enum sw_op {
  SW_LOOKUP = 1, /* indices of 1, 2, 4 or 8 bits, the lowest bits of a byte first: lane k += table[index k]; words of 64
                  * bits hold as many whole lanes as whole bytes of indices give */
  SW_ADD8 = 2,   /* lanes of 1, 2, 4 or 8 bytes, each modulo its width */
  SW_ADD16 = 3,
  SW_ADD32 = 4,
  SW_ADD64 = 5,
  SW_MAX32 = 6, /* unsigned */
  SW_MAX64 = 7,
  SW_OR = 8,
};

/* The header. Fields that a kind does not use are 0. */
struct sw_header {
  uint32_t magic;
  uint8_t version;
  uint8_t kind;
  uint8_t op;
  uint8_t table; /* LOOKUP: number of the table */
  uint16_t job;
  uint8_t worker;  /* up: the sender; down: the addressee, or SW_EVERYONE */
  uint8_t channel; /* which sequence of chunks */
  uint16_t length; /* bytes of the body; whatever follows it is padding */
  uint16_t result; /* bytes of the result's body */
  uint64_t key;    /* up: the job's key; down: its reply key */
  uint32_t session;
  uint32_t chunk; /* sequence number, from 0 on, modulo 2^32 */
  uint32_t tag;   /* names what is merged, so that workers that are out of step find out */
  uint16_t count; /* payloads in the body: 1 from a worker, more in a sum of an aggregator below */
  uint16_t reserved;
  uint64_t members; /* down: bit w is set if worker w is in it; HELLO and WELCOME: the worker's random id */
};

enum { SW_EVERYONE = 255 };

/* One chunk's memory. BPF puts a spin lock in front. A slot of another session, or of an earlier chunk, is empty. */
struct sw_slot {
  uint32_t session;
  uint32_t chunk;
  uint64_t members; /* who is in the sum */
  uint64_t begun;   /* nanoseconds, when the first one came; 0 if nobody has */
  uint32_t tag;
  uint16_t count;
  uint16_t result; /* bytes of the sum */
  uint8_t op;
  uint8_t lane; /* LOOKUP: bits of a lane, since workers may use different tables for one chunk */
  uint8_t complete;
  uint8_t arrived;  /* how many members there are */
  uint8_t per_word; /* LOOKUP: lanes of a word */
  uint8_t reserved[3];
  uint64_t sum[SW_BODY_9000 / 8];
};

/* What user space configures of a job. */
enum { SW_PADDED = 1 /* requests are as long as results: XDP cannot lengthen packets */ };

struct sw_job {
  uint64_t key;
  uint64_t reply_key;
  uint64_t deadline; /* nanoseconds from the first arrival until a chunk is complete without those missing; 0: never */
  uint32_t session;  /* 0: the job does not exist */
  uint32_t address;  /* of the aggregator, as it is in the IP header */
  uint16_t port;     /* of the aggregator, as it is in the UDP header */
  uint16_t headroom; /* payloads that lanes have room for */
  uint8_t workers;
  uint8_t quorum; /* workers that complete a chunk */
  uint8_t channels;
  uint8_t flags;
  uint32_t first_slot; /* of channel 0; channels follow each other */
  uint32_t slots;      /* per channel */
  uint16_t body;       /* the longest result */
  uint16_t index;      /* where its tables, peers and counters are: jobs are numbered without gaps there */
  uint32_t zero;       /* where loops start: if the verifier knew, it would walk through all of their iterations */
};

/* Where a worker is. Address is configured; the rest is learned from its HELLO, or configured too. */
struct sw_peer {
  uint32_t address; /* as in the IP header */
  uint32_t ifindex; /* 0: not known yet */
  uint16_t port;    /* as in the UDP header */
  uint8_t mac[6];
  uint32_t fixed_ifindex; /* 0: any port */
  uint32_t reserved;
};

/* A table, spread out: what each of the 256 payload bytes gives, `words` words each, one after another. */
struct sw_table {
  uint8_t bits;     /* of an index: 1, 2, 4 or 8; 0 if there is no such table */
  uint8_t lane;     /* bits of a lane */
  uint8_t bytes;    /* payload bytes that make a word of the result, 1..8 */
  uint8_t words;    /* words of the result that a payload byte makes: 1, 2 or 4; one of both is 1 */
  uint8_t shift;    /* bits that a payload byte gives, if several make a word */
  uint8_t per_word; /* lanes of a word */
  uint8_t reserved[2];
  uint64_t spread[256 * 4];
  uint16_t short_spread[256]; /* the same, if 4 bytes make a word: small enough to stay in the nearest cache */
};

/* What became of packets. Per job and worker; and, where no job is known, of all. */
enum sw_counter {
  SW_MERGED = 0, /* added to a slot */
  SW_DUPLICATES, /* already in the slot */
  SW_LATE,       /* came after the chunk was complete without them */
  SW_EXPIRIES,   /* came after the slot had gone on */
  SW_MISMATCHES, /* not what the others sent */
  SW_STALES,     /* of another session */
  SW_POLLS,
  SW_COMPLETED, /* chunks that this worker's packet completed */
  SW_DEADLINES, /* ... of these, by the deadline */
  SW_BYTES_IN,  /* of UDP payload */
  SW_BYTES_OUT,
  SW_REPLY_FAILURES, /* replies that could not be sent */
  SW_LANES,          /* that indices were looked up for */
  SW_COUNTERS,
};

enum sw_refusal {
  SW_FOREIGN = 0, /* not UDP to an aggregator's port, or without our magic number */
  SW_MALFORMED,   /* lengths, operation, table or channel that cannot be */
  SW_OVERSIZED,   /* a result longer than the job allows, or a packet shorter than the result where it must not */
  SW_WRONG_VERSION,
  SW_UNKNOWN_JOB,
  SW_WRONG_KEY,
  SW_WRONG_PEER, /* address, UDP port or network port is not the worker's */
  SW_CONTROL,    /* HELLO and TABLE, which user space answers */
  SW_OVERFLOWS,  /* more payloads than lanes have room for */
  SW_REFUSALS,
};

#ifdef __cplusplus
static_assert(sizeof(sw_header) == SW_HEADER, "48 bytes, without holes");
#endif

#endif
