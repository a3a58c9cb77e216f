"""Where a job begins: the newest checkpoint that is whole, from the nearest place that has it.

A damaged one is put aside with its reason and the next older one is taken; how many steps that loses is said. A place
that does not answer is passed over and named, but never taken for an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from training import manifest
from training.manifest import Manifest, ManifestError
from training.store import keep
from training.store.errors import Absent, Damaged, StoreError, Unreachable
from training.store.read import fetch
from training.store.series import Series


@dataclass(frozen=True)
class PassedOver:
    """A checkpoint that was newer and is not used."""

    step: int
    place: str
    reason: str


@dataclass(frozen=True)
class Found:
    """What to go on from."""

    checkpoint: Manifest
    place: str  # where it came from: the local folder, or a store's address
    passed_over: tuple[PassedOver, ...] = ()

    @property
    def lost_steps(self) -> int:
        """Steps between the newest checkpoint that was named anywhere and the one that is used."""
        return max((one.step for one in self.passed_over), default=self.checkpoint.step) - self.checkpoint.step


def newest_whole(
    local: Path,
    stores: Sequence[Series],
    *,
    at_most: int | None = None,
    put_aside: bool = True,
    not_from: Callable[[int, float], bool] = lambda step, written: False,
) -> Found | None:
    """Return the newest whole checkpoint in the local folder or, fetched into it, from the nearest store that has it.

    ``stores`` come nearest first; ``not_from`` says of a stored one's step and time that it is not to be taken. Returns
    None where no place names any; raises Unreachable where none is whole and a place did not answer, since then nobody
    knows.
    """
    passed: list[PassedOver] = []
    unreachable: list[str] = []
    places = _steps(local, stores, unreachable)
    for step in sorted((step for step in places if at_most is None or step <= at_most), reverse=True):
        for place in places[step]:
            try:
                folder = _take(place, step, local, put_aside, not_from)
            except Absent:
                continue  # pruned while we looked
            except Damaged as error:
                passed.append(PassedOver(step, _address(place), str(error)))
            except Unreachable as error:
                passed.append(PassedOver(step, _address(place), str(error)))
                unreachable.append(str(error))
            else:
                newer = tuple(one for one in passed if one.step > step or one.place != _address(place))
                return Found(manifest.read(folder), _address(place), newer)
    if unreachable:
        raise Unreachable(f"no whole checkpoint is at hand, and not every place answered: {'; '.join(unreachable)}")
    if passed:
        raise Damaged("no checkpoint is whole: " + "; ".join(one.reason for one in passed))
    return None


def _steps(local: Path, stores: Sequence[Series], unreachable: list[str]) -> dict[int, list[Path | Series]]:
    """Return the places that name a step, nearest first, by step."""
    places: dict[int, list[Path | Series]] = {}
    for folder in sorted(Path(local).glob("step_*")):
        digits = folder.name.removeprefix("step_")
        if digits.isdigit() and folder.is_dir():
            places.setdefault(int(digits), []).append(folder)
    for series in stores:
        try:
            for step in series.steps():
                places.setdefault(step, []).append(series)
        except Unreachable as error:
            unreachable.append(str(error))
    return places


def _take(
    place: Path | Series, step: int, local: Path, put_aside: bool, not_from: Callable[[int, float], bool]
) -> Path:
    """Return the folder of a whole checkpoint; put a damaged one aside and raise Damaged; Absent if not to be taken."""
    if isinstance(place, Path):
        if not (wrong := _wrong(place, step)):
            return place
        if put_aside:
            manifest.quarantine(place, "; ".join(wrong))
        raise Damaged("; ".join(wrong))
    try:
        if not_from(step, place.pointer(step).time):
            raise Absent(f"{place.address}: step {step} is not to be taken")
        return fetch(place, step, local)
    except Damaged as error:
        if put_aside:
            _quarantine(place, step, error)
        raise


def _wrong(folder: Path, step: int) -> list[str]:
    if wrong := manifest.verify(folder):
        return wrong
    try:
        found = manifest.read(folder).step
    except ManifestError as error:  # gone since it was verified
        return [str(error)]
    return [] if found == step else [f"{folder} holds step {found}"]


def _quarantine(series: Series, step: int, damage: Damaged) -> None:
    try:
        keep.quarantine(series, step, [damage])
    except Absent:
        raise Absent(f"{series.address}: step {step} was removed while it was read") from damage
    except StoreError:
        return  # a reader may not write; whoever may finds it again


def _address(place: Path | Series) -> str:
    return str(place.parent) if isinstance(place, Path) else place.address
