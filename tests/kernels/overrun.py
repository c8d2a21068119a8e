"""Reads beyond an array, which must end the process: `make sanitize` runs it to see that its build is in use."""

from __future__ import annotations

import numpy as np

from sumwire.kernels.hashing import crc32c

data = np.zeros(5000, np.uint8)
crc32c(np.lib.stride_tricks.as_strided(data, (5008,)))
