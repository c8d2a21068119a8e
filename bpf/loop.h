/* Loops whose length the verifier need not walk: `may_goto`, Linux 6.9. */
#ifndef SUMWIRE_LOOP_H
#define SUMWIRE_LOOP_H

/* True, but the verifier believes that it may be false. By bytes, since compilers before clang 19 cannot write it. */
#define can_loop                                                                                                       \
  ({                                                                                                                   \
    __label__ stop, done;                                                                                              \
    int go = 1;                                                                                                        \
    asm volatile goto("1:.byte 0xe5;.byte 0;.long ((%l[stop] - 1b - 8) / 8) & 0xffff;.short 0" :: ::stop);             \
    goto done;                                                                                                         \
  stop:                                                                                                                \
    go = 0;                                                                                                            \
  done:                                                                                                                \
    go;                                                                                                                \
  })

#endif
