"""The registry of images: where it is, tokens for it in the form that registries' clients know, what was thrown out."""

from __future__ import annotations

from pydantic import BaseModel, Field


class RegistryOut(BaseModel):
    """The site's registry."""

    address: str = Field(
        description="`HOST:PORT`, the first part of the names of its images.", examples=["hub.example.org:5000"]
    )
    certificate: str = Field(description="The authority that its certificate is checked by, PEM.")


class RegistryTokenOut(BaseModel):
    """A token of the registry; the names are those of the registries' protocol."""

    token: str
    access_token: str = Field(description="The same again.")
    expires_in: int = Field(description="Seconds.")
    issued_at: str = Field(description="RFC 3339.")


class CollectedOut(BaseModel):
    """What was thrown out of the registry."""

    images: list[str]
    freed_bytes: int
