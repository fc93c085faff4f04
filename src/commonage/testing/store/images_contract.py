"""Contract tests for images in a store. Part of `contract`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from commonage.domain.images import Image, Removal
from commonage.ports.store import Batch, Store
from commonage.testing import factories as make
from commonage.testing import strategies as some
from commonage.testing.store.reading_contract import some_examples


@pytest.mark.anyio
class StoreImagesContract:
    """Images are found by name, even after their removal."""

    @some_examples
    @given(written=some.images())
    async def test_an_image_is_read_as_it_was_written(self, store: Store, written: Image) -> None:
        await store.commit(Batch(images=[written]))
        assert written in await store.images()

    async def test_images_come_by_their_names(self, store: Store) -> None:
        written = [make.image(name) for name in ("lab/b", "lab/A0", "lab/a:2", "public/z", "lab/a")]
        await store.commit(Batch(images=written))
        assert [one.name for one in await store.images()] == ["lab/A0", "lab/a", "lab/a:2", "lab/b", "public/z"]

    async def test_a_newer_image_takes_the_name_of_the_older(self, store: Store) -> None:
        first = make.image("lab/torch")
        second = replace(first, reference=first.reference.replace("ab", "cd"), by="bob", at=first.at + 1)
        await store.commit(Batch(images=[first]))
        await store.commit(Batch(images=[first, second]))
        assert await store.images() == [second]

    async def test_what_was_removed_is_remembered_with_who_did_it(self, store: Store) -> None:
        gone = replace(make.image("lab/torch"), removed=Removal("ann", make.NOW + 7))
        await store.commit(Batch(images=[gone, make.image("lab/other")]))
        assert [one.removed for one in await store.images()] == [None, gone.removed]

    async def test_odd_text_does_no_harm_to_an_image(self, store: Store) -> None:
        await store.commit(Batch(images=[make.image("lab/odd", title="nul \x00 and \ud800")]))
        (found,) = await store.images()
        assert (found.name, found.title[:4]) == ("lab/odd", "nul ")
