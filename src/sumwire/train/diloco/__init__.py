"""Training across sites: workers train alone for many steps, then average how far they have come."""

from sumwire.train.diloco.diloco import DiLoCo
from sumwire.train.diloco.options import DiLoCoOptions

__all__ = ["DiLoCo", "DiLoCoOptions"]
