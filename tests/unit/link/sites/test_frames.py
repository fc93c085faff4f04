"""Binary frames: whatever way bytes arrive, the same frames come out, and bad ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.codec import Unreadable
from commonage.link.sites.transport.frames import (
    CHUNK_BYTES,
    Frame,
    FrameDecoder,
    FrameType,
    decode_count,
    decode_time,
    encode,
    encode_time,
)

FRAMES = st.lists(
    st.one_of(
        st.tuples(st.just(FrameType.DATA), st.integers(1, 2**64 - 1), st.binary(max_size=300)),
        st.tuples(st.just(FrameType.CONTROL), st.just(0), st.binary(max_size=300)),
        st.tuples(st.just(FrameType.END), st.integers(1, 2**64 - 1), st.just(b"")),
    ),
    max_size=10,
)


@given(FRAMES, st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_frames_survive_any_cutting_of_the_bytes(frames: list[Frame], cuts: list[int]) -> None:
    data = b"".join(encode(*one) for one in frames)
    decoder, received, at = FrameDecoder(), list[Frame](), 0
    for index in range(len(data)):
        size = cuts[index % len(cuts)]
        received += decoder.feed(data[at : at + size])
        at += size
    assert received == frames


def test_a_frame_of_a_newer_type_is_skipped() -> None:
    newer = bytearray(encode(FrameType.DATA, 7, b"what a later version says"))
    newer[4] = 200
    received = list(FrameDecoder().feed(bytes(newer) + encode(FrameType.END, 7)))
    assert received == [(FrameType.END, 7, b"")]


@pytest.mark.parametrize(
    "frame",
    [
        encode(FrameType.DATA, 1, b"x" * (CHUNK_BYTES + 1)),
        encode(FrameType.END, 1, b"x"),
        encode(FrameType.DATA, 0, b"x"),
        encode(FrameType.CONTROL, 4, b"{}"),
        b"\xff" * 13,
    ],
    ids=["too large", "content where there is none", "data of no stream", "control of a stream", "noise"],
)
def test_a_frame_that_breaks_the_rules_is_refused(frame: bytes) -> None:
    with pytest.raises(Unreadable):
        list(FrameDecoder().feed(frame))


def test_the_size_is_refused_before_the_content_arrives() -> None:
    header = encode(FrameType.DATA, 1, b"x" * (CHUNK_BYTES + 1))[:13]
    with pytest.raises(Unreadable, match="limit"):
        list(FrameDecoder().feed(header))


def test_counts_and_times_have_a_fixed_form() -> None:
    assert decode_time(encode_time(1.5)) == 1.5
    with pytest.raises(Unreadable):
        decode_time(encode_time(float("nan")))
    with pytest.raises(Unreadable):
        decode_count(b"123")
