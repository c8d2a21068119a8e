#include "load.h"

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "worker") == 0) return worker_main(argc - 1, argv + 1);
  if (argc > 1 && strcmp(argv[1], "server") == 0) return server_main(argc - 1, argv + 1);
  fprintf(stderr, "switch-load: the first argument is worker or server\n");
  return 2;
}
