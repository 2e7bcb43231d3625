"""Define shapes that contain other shapes: lists, mappings by name, and records with known keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from fairway.files.diagnostics import FaultCode, Faults, Location, listed, shown
from fairway.files.schema.values import FieldPath, ParsedValue, Schema, Text, ValueSchema, wrong_type
from fairway.files.yaml import MappingEntry, MappingNode, Node, ScalarNode, SequenceNode
from fairway.model.text import nearest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ListOf(ValueSchema[tuple[ParsedValue[T], ...]]):
    """A list without duplicates."""

    item: ValueSchema[T]
    plural: str
    """What the items are, in the plural, for a fault's message."""
    max_items: int | None = None

    def read(
        self, node: Node, at: FieldPath, faults: Faults
    ) -> ParsedValue[tuple[ParsedValue[T], ...]] | None:
        if not isinstance(node, SequenceNode):
            word = f"[{shown(node.text)}]" if isinstance(node, ScalarNode) else "[first, second]"
            wrong_type(node, at, faults, f"a list of {self.plural}", f"write it in brackets:  {word}")
            return None
        if self.max_items is not None and len(node.items) > self.max_items:
            _too_many(node, at, faults, len(node.items), self.max_items, self.plural)
            return None
        found: dict[T, ParsedValue[T]] = {}
        for i, item in enumerate(node.items):
            read = self.item.read(item, FieldPath((*at.path, i), item.mark), faults)
            if read is None:
                continue
            before = found.setdefault(read.value, read)
            if before is not read:
                faults.add(
                    FaultCode.REPEATED_VALUE,
                    read.location,
                    f"{at.label} names {read.location.value} twice",
                    expected=f"different {self.plural}",
                    hint="take one of them away",
                    related=[before.location],
                )
        return ParsedValue(tuple(found.values()), at.location(node))

    def schema(self) -> Schema:
        schema: Schema = {"type": "array", "items": self.item.schema(), "uniqueItems": True}
        return schema | ({"maxItems": self.max_items} if self.max_items is not None else {})


@dataclass(frozen=True, slots=True)
class MapOf(ValueSchema[Mapping[str, ParsedValue[T]]]):
    """A mapping from names to values of one shape."""

    key: Text
    value: ValueSchema[T]
    plural: str
    min_entries: int = 0
    max_entries: int | None = None

    def read(
        self, node: Node, at: FieldPath, faults: Faults
    ) -> ParsedValue[Mapping[str, ParsedValue[T]]] | None:
        if not isinstance(node, MappingNode):
            wrong_type(
                node, at, faults, f"a mapping of {self.plural}", "write one 'name: value' a line, indented"
            )
            return None
        if len(node.entries) < self.min_entries:
            faults.add(
                FaultCode.MISSING_KEY,
                at.location(node),
                f"{at.label} has none of the {self.plural}",
                expected=f"at least {self.min_entries} of the {self.plural}",
                hint="add one; the files in examples/ show how",
            )
        if self.max_entries is not None and len(node.entries) > self.max_entries:
            _too_many(node, at, faults, len(node.entries), self.max_entries, self.plural)
            return None
        found: dict[str, ParsedValue[T]] = {}
        for entry in node.entries:
            inner = FieldPath((*at.path, entry.key.text), entry.key.mark)
            name = self.key.read(entry.key, inner, faults)
            read = self.value.read(entry.value, inner, faults)
            if name is not None and read is not None:
                found[name.value] = read
        return ParsedValue(found, at.key_location())

    def schema(self) -> Schema:
        schema: Schema = {
            "type": "object",
            "propertyNames": self.key.schema(),
            "additionalProperties": self.value.schema(),
        }
        schema |= {"minProperties": self.min_entries} if self.min_entries else {}
        return schema | ({"maxProperties": self.max_entries} if self.max_entries is not None else {})


@dataclass(frozen=True, slots=True)
class Key(Generic[T]):
    """One key of a record: its name, the shape of its value, and its description."""

    name: str
    shape: ValueSchema[T]
    about: str
    required: bool = False
    example: str = ""
    """An example value, for the hint when the key is missing."""
    default: Any = None
    """Only for the JSON Schema; the model applies the default."""

    def schema(self) -> Schema:
        schema = {**self.shape.schema(), "description": self.about}
        return schema | ({"default": self.default} if self.default is not None else {})


@dataclass(frozen=True, slots=True)
class Section:
    """A record that was read: its valid values and their positions."""

    location: Location
    """The position of the record's key."""
    name: str
    _values: dict[str, ParsedValue[Any]]
    _node: MappingNode
    _invalid: frozenset[str] = frozenset()

    def found(self, key: Key[T]) -> ParsedValue[T] | None:
        """Return the value of a key with its position. Returns None if the key is missing or invalid."""
        return cast("ParsedValue[T] | None", self._values.get(key.name))

    def get(self, key: Key[T]) -> T | None:
        """Return the value of a key. Returns None if the key is missing or invalid."""
        found = self.found(key)
        return found.value if found else None

    def valid(self, *keys: Key[Any]) -> bool:
        """Return whether the values under these keys, if present, have no errors at any depth."""
        return self._invalid.isdisjoint(key.name for key in keys)

    def names_in(self, key: Key[Any]) -> tuple[str, ...]:
        """Return the names in the mapping under a key, including those of invalid values."""
        entry = self._node.entry(key.name)
        inner = entry.value if entry else None
        return tuple(e.key.text for e in inner.entries) if isinstance(inner, MappingNode) else ()

    def require(self, key: Key[T]) -> T:
        """Return the value of a required key of a section that is known to have no errors."""
        return cast("T", self._values[key.name].value)


Sections = Mapping[str, ParsedValue[Section]]
"""Records by name, as read by a MapOf."""


@dataclass(frozen=True, slots=True)
class ExactlyOne:
    """A group of keys of which a record must have exactly one."""

    keys: tuple[Key[Any], ...]
    hint: str


@dataclass(frozen=True, slots=True)
class Record(ValueSchema[Section]):
    """A mapping with known keys."""

    title: str
    keys: tuple[Key[Any], ...]
    exactly_one: ExactlyOne | None = None
    later: tuple[str, ...] = ()
    """Keys that a future release will support."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Keys that belong to a sibling variant of this record, with a description of that variant."""

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[Section] | None:
        if not isinstance(node, MappingNode):
            names = listed(key.name for key in self.keys)
            wrong_type(
                node,
                at,
                faults,
                f"a mapping with the keys {names}",
                "write one 'key: value' a line, indented",
            )
            return None
        values: dict[str, ParsedValue[Any]] = {}
        meant: set[str] = set()
        invalid: set[str] = set()
        by_name = {key.name: key for key in self.keys}
        absent = by_name.keys() - {entry.key.text for entry in node.entries}
        for entry in node.entries:
            key = by_name.get(entry.key.text)
            if key is None:
                meant.update(self._unknown(entry, absent, at, faults))
                continue
            errors_before = faults.error_count
            read = key.shape.read(entry.value, FieldPath((*at.path, key.name), entry.key.mark), faults)
            if faults.error_count > errors_before:
                invalid.add(key.name)
            if read is not None:
                values[key.name] = read
        for key in self.keys:
            # A key that is there but mistyped is one fault, not two.
            if key.required and key.name not in meant and node.entry(key.name) is None:
                self._missing(key, at, faults)
        self._check_group(node, at, faults)
        name = str(at.path[-1]) if at.path else ""
        section = Section(at.key_location(), name, values, node, frozenset(invalid))
        return ParsedValue(section, at.key_location())

    def schema(self) -> Schema:
        schema: Schema = {
            "title": self.title,
            "type": "object",
            "properties": {key.name: key.schema() for key in self.keys},
            "required": [key.name for key in self.keys if key.required],
            "additionalProperties": False,
        }
        if self.exactly_one:
            schema["oneOf"] = [{"required": [key.name]} for key in self.exactly_one.keys]
        return schema

    def _missing(self, key: Key[Any], at: FieldPath, faults: Faults) -> None:
        faults.add(
            FaultCode.MISSING_KEY,
            at.key_location(key.name),
            f"{at.label} has no {key.name}",
            expected=f"the key {key.name}: {key.about}",
            hint=f"add:  {key.name}: {key.example}" if key.example else f"add the key {key.name}",
        )

    def _check_group(self, node: MappingNode, at: FieldPath, faults: Faults) -> None:
        if self.exactly_one is None:
            return
        names = [key.name for key in self.exactly_one.keys]
        present = [entry.key for entry in node.entries if entry.key.text in names]
        if len(present) == 1:
            return
        locations = [Location(*key.mark, at.key_location(key.text).path) for key in present]
        faults.add(
            FaultCode.NOT_EXACTLY_ONE,
            locations[0] if locations else at.key_location(),
            f"{at.label} has {' and '.join(key.text for key in present) or 'none of ' + listed(names)}",
            expected=f"exactly one of {listed(names)}",
            hint=self.exactly_one.hint,
            related=locations[1:],
        )

    def _unknown(
        self, entry: MappingEntry, absent: Collection[str], at: FieldPath, faults: Faults
    ) -> list[str]:
        """Report an unknown key and return those of the absent keys that were probably meant."""
        if faults.full:  # only counted: what it would say is the slow part
            faults.add(FaultCode.UNKNOWN_KEY, Location(*entry.key.mark), "", hint="")
            return []
        written = entry.key.text
        name, inner = shown(written), FieldPath((*at.path, written), entry.key.mark)
        if written in self.later:
            faults.add(
                FaultCode.NOT_SUPPORTED_YET,
                inner.key_location(),
                f"{name} is not supported yet",
                hint=f"take the section {name} out for now; a coming release will read it",
            )
            return []
        expected = f"one of {listed(key.name for key in self.keys)}"
        near: list[str] = []
        if written in self.elsewhere:
            hint = f"take it away: it belongs to {self.elsewhere[written]}"
        else:
            near = nearest(written, [key.name for key in self.keys if key.name in absent])
            hint = f"did you mean {' or '.join(near)}?" if near else f"take it away, or use {expected}"
        faults.add(
            FaultCode.UNKNOWN_KEY,
            inner.key_location(),
            f"{at.label} has no key called {name}",
            expected=expected,
            hint=hint,
        )
        return near


@dataclass(frozen=True, slots=True)
class Recursive(ValueSchema[T]):
    """A recursive shape: resolved lazily when read, and defined once in the JSON Schema."""

    name: str
    """The name under `$defs` of the schema, where fleet_schema() puts it."""
    shape: Callable[[], ValueSchema[T]]

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[T] | None:
        return self.shape().read(node, at, faults)

    def schema(self) -> Schema:
        return {"$ref": f"#/$defs/{self.name}"}


@dataclass(frozen=True, slots=True)
class Variants(ValueSchema[Section]):
    """A record whose keys depend on the value of one of them, e.g. a cluster on its engine."""

    title: str
    by: Key[Any]
    records: Mapping[str, Record]

    def read(self, node: Node, at: FieldPath, faults: Faults) -> ParsedValue[Section] | None:
        if not isinstance(node, MappingNode):
            hint = "write one 'key: value' a line, indented"
            wrong_type(node, at, faults, f"a mapping that begins with {self.by.name}", hint)
            return None
        entry = node.entry(self.by.name)
        if entry is None:
            self._missing_discriminator(node, at, faults)
            return None
        word = self.by.shape.read(entry.value, FieldPath((*at.path, self.by.name), entry.key.mark), faults)
        return self.records[str(word.value)].read(node, at, faults) if word else None

    def schema(self) -> Schema:
        return {
            "title": self.title,
            "type": "object",
            "required": [self.by.name],
            "oneOf": [self._variant_schema(word, record) for word, record in self.records.items()],
        }

    def _variant_schema(self, word: str, record: Record) -> Schema:
        schema = record.schema()
        discriminator = {"const": word, "description": self.by.about}
        return schema | {"properties": {**schema["properties"], self.by.name: discriminator}}

    def _missing_discriminator(self, node: MappingNode, at: FieldPath, faults: Faults) -> None:
        near = next((e for e in node.entries[:100] if nearest(e.key.text, [self.by.name])), None)
        location = (
            FieldPath((*at.path, near.key.text), near.key.mark).key_location()
            if near
            else at.key_location(self.by.name)
        )
        faults.add(
            FaultCode.MISSING_KEY,
            location,
            f"{at.label} has no {self.by.name}",
            expected=f"the key {self.by.name}, one of {listed(self.records)}",
            hint=f"did you mean {self.by.name}?" if near else f"add:  {self.by.name}: {self.by.example}",
        )


def variants(title: str, by: Key[Any], records: Mapping[str, Record]) -> Variants:
    """Build Variants from records by the value of `by`; each record knows the keys of its siblings."""
    owners: dict[str, list[str]] = {}
    for word, record in records.items():
        for key in record.keys:
            owners.setdefault(key.name, []).append(word)
    linked = {
        word: Record(
            record.title,
            (by, *record.keys),
            record.exactly_one,
            record.later,
            {name: f"{by.name}: {' or '.join(words)}" for name, words in owners.items() if word not in words},
        )
        for word, record in records.items()
    }
    return Variants(title, by, linked)


def _too_many(node: Node, at: FieldPath, faults: Faults, count: int, most: int, plural: str) -> None:
    faults.add(
        FaultCode.OUT_OF_RANGE,
        at.location(node),
        f"{at.label} has {count:,} {plural}",
        expected=f"at most {most:,} {plural}",
        hint="remove some of them",
    )
