"""From the name of a profile to a validated Profile, or to the list of everything that is wrong with it."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from framekeeper.profiles import rules
from framekeeper.profiles.document import Document, KeyPath, read
from framekeeper.profiles.facts import UNKNOWN, HostFacts
from framekeeper.profiles.fallbacks import FIXED, merge
from framekeeper.profiles.faults import Fault, ProfileError
from framekeeper.profiles.schema import Profile

ENDINGS = (".yaml", ".yml")
#: Where the name of a profile comes from: the argument of a command, or the setting.
ARGUMENT = "NAME"
VARIABLE = "FRAMEKEEPER_PROFILE"
# A variation has not run where its base has; it must claim that itself.
_NOT_INHERITED = ("extends", "verified", "accept_risk", "name")


@dataclass(frozen=True)
class Sources:
    """The files a profile came from, the named one first, its bases after it."""

    documents: tuple[Document, ...]

    def where(self, path: KeyPath) -> str:
        """`file:line` of a key: of the file that sets it, nearest to the named one."""
        for document in self.documents:
            if path in document.lines:
                return document.where(path)
        for document in self.documents:
            if path and path[:1] in document.lines:
                return document.where(path)
        return self.documents[0].where(path)


def profile_path(name_or_path: str, directory: Path) -> Path:
    """File of a profile: a path if it looks like one, else `directory`/name.yaml."""
    if "/" in name_or_path or name_or_path.endswith(ENDINGS):
        return Path(name_or_path)
    return directory / f"{name_or_path}.yaml"


def profile_names(directory: Path) -> list[str]:
    """Names of all profiles in a directory, sorted."""
    return sorted(path.stem for path in directory.glob("*.yaml"))


def _documents(path: Path) -> list[Document]:
    """The named file and all that it extends, in that order. Raises ProfileError on a circle or a gap."""
    documents = [read(path)]
    seen = [path.stem]
    while isinstance(base := documents[-1].data.get("extends"), str):
        where = documents[-1].where(("extends",))
        following = path.parent / f"{base}.yaml"
        if base in seen:
            reason, advice = f"goes in a circle ({' -> '.join([*seen, base])})", "another base, or none"
        elif not following.is_file():
            near = difflib.get_close_matches(base, profile_names(path.parent), n=1)
            reason = "names no profile beside this one"
            advice = f"extends: {near[0]}" if near else "the name of a profile in this directory"
        else:
            seen.append(base)
            documents.append(read(following))
            continue
        raise ProfileError([Fault(where=where, key="extends", value=base, reason=reason, advice=advice)])
    return documents


def _merged(documents: Sequence[Document], name: str) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for document in reversed(documents):
        for key in _NOT_INHERITED:
            data.pop(key, None)
        data = merge(data, document.data)
    return data | {"name": name}


def _name_faults(document: Document, name: str) -> list[Fault]:
    """Caches, metrics and incidents go by the profile's name: two files of one name would share them."""
    given = document.data.get("name", name)
    if given == name:
        return []
    return [
        Fault(
            where=document.where(("name",)),
            key="name",
            value=repr(given),
            reason="is not the file's name, which a profile has for its own",
            advice="no name, or rename the file",
        )
    ]


def _known_keys(path: KeyPath) -> list[str]:
    """Keys that the schema knows where `path` stands, [] where it is no section."""
    model: Any = Profile
    for part in path:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        candidates = [field.annotation, *_flat_args(field.annotation)] if field else []
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if model is None:
            return []
    return list(model.model_fields)


def _flat_args(annotation: Any) -> Iterable[Any]:
    for each in get_args(annotation):
        yield each
        yield from _flat_args(each)


def _form_fault(error: ErrorDetails, where: str, path: KeyPath) -> Fault:
    """One pydantic error as a fault that says what to set. `path` is where the key stands in its file."""
    known = _known_keys(tuple(error["loc"])[:-1])
    value = "" if error["type"] == "missing" else repr(error["input"])
    reason = error["msg"][0].lower() + error["msg"][1:]
    advice = "a value of the right kind"
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.7)
        reason = "is not a key that profiles have"
        advice = f"{near[0]} instead" if near else f"one of {', '.join(known)}"
    elif error["type"] == "missing":
        reason, advice = "is missing", f"{path[-1]}: and its value"
    elif error["type"] == "literal_error":
        advice = f"one of {error['ctx']['expected']}"
    elif error["type"].endswith("_type"):
        advice = f"{error['type'].removesuffix('_type')} instead of {type(error['input']).__name__}"
    elif "ctx" in error:
        bounds = [f"{key} {bound}" for key, bound in error["ctx"].items() if key != "error"]
        advice = ", ".join(bounds) or advice
    return Fault(where=where, key=".".join(map(str, path)), value=value, reason=reason, advice=advice)


def _known_part(loc: tuple[str | int, ...]) -> KeyPath:
    """A pydantic location without the tags of unions, which are no keys: devices.uuids.tuple[…].0."""
    return tuple(part for part in loc if isinstance(part, int) or part.isidentifier())


def _form_faults(error: ValidationError, sources: Sources, prefix: KeyPath = ()) -> list[Fault]:
    faults: dict[KeyPath, Fault] = {}
    for each in error.errors():
        path = prefix + _known_part(tuple(each["loc"]))
        # A value of several kinds fails once for each kind; one fault says enough.
        if not any(path[:length] in faults for length in range(1, len(path) + 1)):
            faults[path] = _form_fault(each, sources.where(path), path)
    return list(faults.values())


def rule_faults(profile: Profile, facts: HostFacts, sources: Sources | None, rung: int = 0) -> list[Fault]:
    """Everything the rules have against one profile, warnings included."""
    faults = []
    for rule, finding in rules.check(profile, facts):
        path: KeyPath = tuple(finding.key.split("."))
        if sources is None:
            where = f"profile {profile.name}"
        elif rung:
            # The cause may be the rung's change or a key it leaves as it was; the rung is what to look at.
            changed = ("fallbacks", rung - 1, "change", *path)
            where = sources.where(changed)
        else:
            where = sources.where(path)
        key = f"fallbacks.{rung - 1} -> {finding.key}" if rung else finding.key
        faults.append(
            Fault(
                where=where,
                key=key,
                value=finding.value,
                reason=finding.reason,
                advice=finding.advice,
                rule=rule.id,
                evidence=rule.evidence,
                severity=rule.severity,
            )
        )
    return faults


def _rung_faults(profile: Profile, facts: HostFacts, sources: Sources) -> list[Fault]:
    """Faults of every rung, each checked as a profile of its own."""
    faults: list[Fault] = []
    data: dict[str, Any] = profile.model_dump()
    for number, rung in enumerate(profile.fallbacks, start=1):
        here: KeyPath = ("fallbacks", number - 1, "change")
        for key in sorted(FIXED & rung.change.keys()):
            faults.append(
                Fault(
                    where=sources.where((*here, key)),
                    key=f"fallbacks.{number - 1}.change.{key}",
                    value=repr(rung.change[key]),
                    reason="stays the same on every rung",
                    advice="this key outside fallbacks, or another profile",
                )
            )
        data = merge(data, {key: value for key, value in rung.change.items() if key not in FIXED})
        try:
            lower = Profile.model_validate(data)
        except ValidationError as error:
            # Later rungs would repeat the same fault; they are checked once this one is right.
            return faults + _form_faults(error, sources, here)
        faults += rule_faults(lower, facts, sources, number)
    return faults


def _faults_of_rules(profile: Profile, facts: HostFacts, sources: Sources) -> list[Fault]:
    """Those of the profile, and those that only its rungs have."""
    own = rule_faults(profile, facts, sources)
    said = {(fault.rule, fault.key) for fault in own}
    lower = [
        fault
        for fault in _rung_faults(profile, facts, sources)
        if not fault.rule or (fault.rule, fault.key.rpartition("-> ")[2]) not in said
    ]
    return own + lower


def _faults_beside(
    data: dict[str, Any], wrong: Sequence[KeyPath], facts: HostFacts, sources: Sources
) -> list[Fault]:
    """What the rules refuse in a profile of which some keys could not be read.

    Those keys are left out and have their defaults; a finding about one of them would be about the default.
    """
    rest = copy.deepcopy(data)
    for path in wrong:
        section: Any = rest
        for part in path[:-1]:
            section = section.get(part, {}) if isinstance(section, dict) else {}
        if isinstance(section, dict):
            section.pop(path[-1], None)
    try:
        readable = Profile.model_validate(rest)
    except ValidationError:  # a key that must be there
        return []
    unread = {".".join(map(str, path)) for path in wrong}
    found = _faults_of_rules(readable, facts, sources)
    return [fault for fault in found if fault.severity == "refuse" and fault.key not in unread]


def examine(
    name_or_path: str, directory: Path, facts: HostFacts = UNKNOWN, *, named_by: str = ARGUMENT
) -> tuple[Profile, list[Fault]]:
    """Read a profile and return it with the warnings about it.

    Raises ProfileError with every fault of the file, of its bases, of its rungs and of the rules; for a
    profile that is not there, with what named it.
    """
    path = profile_path(name_or_path, directory)
    if not path.is_file():
        near = difflib.get_close_matches(path.stem, profile_names(path.parent), n=1)
        known = ", ".join(profile_names(path.parent))
        none = f"FRAMEKEEPER_PROFILES to the folder of the profiles: {path.parent} holds none"
        advice = near[0] if near else f"one of: {known}" if known else none
        missing = Fault(
            where=str(path), key=named_by, value=name_or_path, reason="does not exist", advice=advice
        )
        raise ProfileError([missing])
    documents = _documents(path)
    sources = Sources(tuple(documents))
    data = _merged(documents, path.stem)
    named = _name_faults(documents[0], path.stem)
    try:
        profile = Profile.model_validate(data)
    except ValidationError as error:
        wrong = [_known_part(tuple(each["loc"])) for each in error.errors()]
        raise ProfileError(
            named + _form_faults(error, sources) + _faults_beside(data, wrong, facts, sources)
        ) from None
    faults = named + _faults_of_rules(profile, facts, sources)
    if any(fault.severity == "refuse" for fault in faults):
        raise ProfileError(faults)
    return profile, faults


def load_profile(
    name_or_path: str, directory: Path, facts: HostFacts = UNKNOWN, *, named_by: str = ARGUMENT
) -> Profile:
    """A profile by its name in `directory` or by its path. Raises ProfileError listing all its faults."""
    return examine(name_or_path, directory, facts, named_by=named_by)[0]
