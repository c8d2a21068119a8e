"""A worker's side of the parameter server."""

from sumwire.aggregate.client.async_link import AsyncLink
from sumwire.aggregate.client.link import Link

__all__ = ["AsyncLink", "Link"]
