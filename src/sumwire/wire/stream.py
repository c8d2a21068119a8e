"""Frames and control messages on a byte stream: TCP, or TLS over it.

Both ends of a connection are this protocol. Small messages are read many at once; a large one is read straight into
memory of its own.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import numpy as np

from sumwire.errors import FrameError, SumwireError
from sumwire.kernels.hashing import crc32c
from sumwire.wire import control
from sumwire.wire.control import CONTROL_SIZE, Control
from sumwire.wire.frame import Frame, checked, header_crc, parse_header
from sumwire.wire.header import HEADER_SIZE, MAGIC, Header
from sumwire.wire.sender import Sender

_log = logging.getLogger(__name__)

FRONT = 1 << 14
"""Bytes: messages up to here are copied out of a buffer that each connection has."""
_MAGIC_SIZE = len(MAGIC)


class Admission(Enum):
    """Whether there is room for the message at the front."""

    UNASKED = auto()
    HELD = auto()
    """There was none: nothing more is read until `read_on` or `skip`."""
    GRANTED = auto()


class Stream(Sender):
    """One connection. Subclasses say what is done with what arrives."""

    def __init__(self, max_frame: int) -> None:
        super().__init__()
        self.max_frame = max_frame
        """Bytes of a body: a longer one is refused before memory is asked for."""
        self.bytes_in = 0
        self._front = memoryview(bytearray(FRONT))
        self._header: Header | None = None
        """Of the message that comes in; None if it is no frame, or its header is not here yet."""
        self._large: memoryview | None = None
        self._crc = 0
        """Of the large frame so far: each piece is looked at while the cache has it."""
        self._filled = 0
        """Bytes of the large message, if there is one, or of the front."""
        self._skipped = 0
        """Bytes to come that nobody wants."""
        self._admission = Admission.UNASKED
        self._held_length = 0
        """Of the message for which there was no room."""
        self._stopped = False
        """Nothing more is handled until `resume`."""

    # What subclasses do

    @abstractmethod
    def control_received(self, message: Control) -> None: ...

    @abstractmethod
    def frame_received(self, frame: Frame) -> None: ...

    @abstractmethod
    def refused(self, error: SumwireError) -> None:
        """What arrived cannot be read, or was refused by one of the above: the connection is of no use any more."""

    def may_read(self, header: Header) -> bool:
        """Whether there is room for a frame now; if not, nothing more is read until `read_on` or `skip`."""
        return True

    def may_read_control(self, word: control.Word, length: int) -> bool:
        """The same for a control message, which is large only if it carries a frame."""
        return True

    # Reading

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._filled :]
        if self._skipped:
            return self._front[: min(FRONT, self._skipped)]
        return self._front[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_in += nbytes
        if self._skipped:
            self._skipped -= nbytes
            return
        if self._large is not None and self._header is not None:
            piece = np.asarray(self._large[self._filled : self._filled + nbytes])
            self._crc = crc32c(piece, self._crc)
        self._filled += nbytes
        self.guarded(self._read)

    def catch_up(self) -> None:
        """Handle what came before the connection was said to be made."""
        self.guarded(self._read)

    @property
    def reading(self) -> bool:
        """Whether the peer is being listened to."""
        return self._admission is not Admission.HELD and not self._stopped

    def stop(self) -> None:
        """Handle no more messages until `resume`: the peer has to wait."""
        self._stopped = True
        if self.transport is not None:
            self.transport.pause_reading()

    def resume(self) -> None:
        """Go on after `stop`."""
        self._stopped = False
        if self._admission is not Admission.HELD:
            self._resume()

    def read_on(self) -> None:
        """Read the frame for which there was no room."""
        if self._admission is Admission.HELD:
            self._admission = Admission.GRANTED
            self._resume()

    def skip(self) -> None:
        """Throw away the frame for which there was no room, and go on with what follows it."""
        if self._admission is Admission.HELD:
            length, self._admission = self._held_length, Admission.UNASKED
            self._header = None
            self._skipped = max(0, length - self._filled)
            self._drop(min(length, self._filled))
            self._resume()

    def _resume(self) -> None:
        # Not at once: whoever has made room is in the midst of something.
        if self._stopped:
            return
        asyncio.get_running_loop().call_soon(self.guarded, self._read)
        if self.transport is not None:
            self.transport.resume_reading()

    def guarded(self, work: Callable[[], Any]) -> None:
        """Nothing that a peer sends may do more than end its own connection."""
        if self.transport is None or self.transport.is_closing():
            return
        try:
            work()
        except SumwireError as error:
            self.refused(error)
        except Exception:
            _log.exception("a connection is ended by an error that should not happen")
            self.refused(FrameError("this message cannot be handled: see the log of the other end"))

    def _read(self) -> None:
        """Handle all messages that are here."""
        if self._large is not None:
            if self._filled == len(self._large):
                message, self._large, self._filled = self._large, None, 0
                self._handle(message, self._crc)
            return
        at = 0
        while self.transport is not None and not self.transport.is_closing() and not self._stopped:
            rest = self._front[at : self._filled]
            length = self._length(rest)
            if length is None or self._admission is Admission.HELD:
                break
            if length > FRONT:
                self._begin_large(rest, length)
                return
            if length > len(rest):
                break
            self._admission = Admission.UNASKED
            at += length
            message = memoryview(bytes(rest[:length]))
            self._handle(message, self._crc_of(message))
        self._drop(at)

    def _length(self, rest: memoryview) -> int | None:
        """Bytes of the message that begins here, once that can be told and if there is room for it."""
        if len(rest) < _MAGIC_SIZE:
            return None
        if rest[:_MAGIC_SIZE] == control.MAGIC:
            if len(rest) < CONTROL_SIZE:
                return None
            length = CONTROL_SIZE + control.read_length(rest, max_body=self.max_frame)
            return self._admit(length, lambda: self.may_read_control(control.Word(rest[5]), length))
        if rest[:_MAGIC_SIZE] != MAGIC:
            raise FrameError(f"{bytes(rest[:4])!r} is neither a frame nor a control message: is this a Sumwire peer?")
        if len(rest) < HEADER_SIZE:
            return None
        if self._header is None:
            self._header = parse_header(rest[:HEADER_SIZE], max_body=self.max_frame)
        header = self._header
        return self._admit(HEADER_SIZE + header.length, lambda: self.may_read(header))

    def _admit(self, length: int, may_read: Callable[[], bool]) -> int:
        if self._admission is Admission.UNASKED:
            self._admission = Admission.GRANTED if may_read() else Admission.HELD
            if self._admission is Admission.HELD and self.transport is not None:
                self._held_length = length
                self.transport.pause_reading()
        return length

    def _begin_large(self, rest: memoryview, length: int) -> None:
        """On with this message in memory of its own. NumPy's is not cleared first."""
        self._large = np.empty(length, np.uint8).data.cast("B")
        self._large[: len(rest)] = rest
        self._crc = self._crc_of(rest)
        self._filled, self._admission = len(rest), Admission.UNASKED

    def _crc_of(self, front: memoryview) -> int:
        """Of a frame whose header is here, as far as it has come."""
        return 0 if self._header is None else crc32c(np.asarray(front[HEADER_SIZE:]), header_crc(front))

    def _drop(self, nbytes: int) -> None:
        """Forget the first bytes of the front."""
        if nbytes:
            rest = bytes(self._front[nbytes : self._filled])
            self._front[: len(rest)] = rest
            self._filled = len(rest)

    def _handle(self, message: memoryview, crc: int) -> None:
        header, self._header = self._header, None
        if header is not None:
            self.frame_received(checked(header, message, crc))
        else:
            self.control_received(control.read(message))

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._large, self._admission = None, Admission.UNASKED
