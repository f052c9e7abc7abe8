"""Frozen data ↔ the text of a column. What comes back equals what went in, to the last bit of a float."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)


def dump(value: BaseModel | Sequence[BaseModel] | Any) -> str:
    """ASCII JSON of a model, or of anything that is JSON already.

    NaN and the infinities are kept, as Python's `NaN` and `Infinity`: an odd number in a measurement must not cost a
    level that took minutes. Non-ASCII, NUL and lone surrogates out of logs are escaped, which PostgreSQL needs.
    """
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return json.dumps(plain, ensure_ascii=True, separators=(",", ":"))


def load(model: type[Model], text: str) -> Model:
    """The model that `dump` wrote. Raises pydantic's ValidationError for a document of another shape."""
    return model.model_validate(json.loads(text))


def load_optional(model: type[Model], text: str | None) -> Model | None:
    """As `load`; None stays None."""
    return None if text is None else load(model, text)


def plain_text(text: str) -> str:
    """`text` fit for a text column of every database: no NUL, no lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
