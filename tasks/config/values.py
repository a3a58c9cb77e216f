"""The kinds of value that configuration files hold, and the strict mapping that all of their models are."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictStr

Count = Annotated[int, Field(strict=True, ge=1)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Part = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Text = Annotated[StrictStr, Field(min_length=1)]


class Strict(BaseModel):
    """A mapping of the YAML: unknown keys are errors, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def only(**later: str) -> BeforeValidator:
    """Refuse values that are planned but do not work yet, and say what works."""

    def check(value: Any) -> Any:
        if isinstance(value, str) and value in later:
            raise ValueError(f"{value!r} does not work yet; {later[value]}")
        return value

    return BeforeValidator(check)
