"""A link's connections to all shards of its server."""

from __future__ import annotations

from sumwire.aggregate.protocol.connection import ShardConnection


class Shards(list[ShardConnection]):
    """A link's connections, by shard; none before it is opened and after it is closed."""

    def send(self, shard: int, messages: list[list[bytes | memoryview]]) -> int:
        """Send to one shard; returns the bytes sent."""
        return sum(each.send(pieces) for each in self[shard : shard + 1] for pieces in messages if pieces)

    async def drain(self, patience: float) -> None:
        """Wait until this process holds nothing any more of what was sent."""
        for shard in self:
            await shard.drain(patience)
