#!/usr/bin/env python3
"""Reads every table of a slow tier that is a folder, and prints each series: `reader.py FOLDER`.

It uses only manifest.md, table.md and chunk.md; a test compares its output with the samples sent
(crates/firn/tests/e2e/documents.rs). It checks all checksums and ignores deletes, patches and
labels. Each series is one line: group, slot, then `timestamp:bits` of every sample, the bits of the
64-bit float in hexadecimal.

Packed blocks need Python 3.14 (compression.zstd), the package zstandard, or the program zstd.
"""

import struct
import subprocess
import sys
import zlib


def unpack(frame):
    try:
        from compression import zstd  # Python 3.14
        return zstd.decompress(frame)
    except ImportError:
        pass
    try:
        import zstandard
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=64 << 20)
    except ImportError:
        pass
    return subprocess.run(["zstd", "-dc"], input=frame, capture_output=True, check=True).stdout


class Input:
    """Takes fields from the front of some bytes."""

    def __init__(self, data):
        self.data = data

    def take(self, count):
        assert len(self.data) >= count, "cut short"
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def number(self, count):
        return int.from_bytes(self.take(count), "little")

    def varint(self):
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value & (1 << 64) - 1

    def zigzag(self):
        return unzigzag(self.varint())

    def end(self):
        assert not self.data, f"{len(self.data)} bytes too many"


class Bits:
    """Takes bits, the least significant of each byte first."""

    def __init__(self, data):
        self.value, self.at = int.from_bytes(data, "little"), 0

    def take(self, count):
        taken = self.value >> self.at & (1 << count) - 1
        self.at += count
        return taken

    def bytes(self):
        return (self.at + 7) // 8


def unzigzag(value):
    return value >> 1 ^ -(value & 1)


def wrapped(value):
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def to_bits(value):
    return int.from_bytes(struct.pack("<d", value), "little")


def to_float(bits):
    return struct.unpack("<d", bits.to_bytes(8, "little"))[0]


def check(wanted, *parts):
    assert zlib.crc32(b"".join(parts)) == int.from_bytes(wanted, "little"), "checksum"


# manifest.md


def records(data):
    """The tree's table records in the object `manifest`, from its first copy."""
    check(data[20:24], data[:20])
    assert data[:8] == b"FIRNMAN1"
    end = 40 + int.from_bytes(data[24:28], "little")
    check(data[28:32], data[24:28], data[32:end])
    edit = Input(data[40:end])
    while edit.data:
        room, part = edit.number(1), edit.take(edit.varint())
        if room == 4:
            yield from tables_of(Input(part))


def tables_of(part):
    assert part.number(1) == 4, "a whole state"
    part.varint()
    for _ in range(part.varint()):
        record = {"id": part.varint(), "level": part.number(1), "patch": part.number(1)}
        record["partition"] = (part.zigzag(), part.number(1))
        record["bytes"], record["suffix bytes"] = part.varint(), part.varint()
        record["salt"] = part.take(4)
        record["groups"] = (part.varint(), part.varint())
        record["times"] = (part.zigzag(), part.zigzag())
        record["commits"] = (part.varint(), part.varint())
        for name in ["types", "blocks", "chunks", "rows", "values"]:
            record[name] = part.varint()
        record["written"], record["deletes"] = part.zigzag(), part.varint()
        yield record
    for _ in range(part.varint()):
        part.varint(), part.zigzag()
    part.end()


# table.md


def chunks_of(table, record):
    """Group and bytes of each chunk."""
    assert len(table) == record["bytes"] and table[:8] == b"FIRNTABL"
    check(table[12:16], table[:12])
    check(table[20:24], table[:20])
    salt = table[16:20]
    assert salt == record["salt"]
    at = len(table) - record["suffix bytes"]
    suffix, footer = table[at:-32], table[-32:]
    check(footer[28:], salt, struct.pack("<Q", at), suffix, footer[:28])
    suffix = Input(suffix)
    for _ in range(suffix.varint()):
        suffix.take(suffix.varint())  # a presence set: answers lookups without reading blocks
    offset, last_group, chunk_count = 24, 0, 0
    for _ in range(int.from_bytes(footer[16:20], "little")):
        block_bytes = suffix.varint()
        first_group = last_group + suffix.varint()
        last_group = first_group + suffix.varint()
        chunk_count += suffix.varint()
        suffix.zigzag(), suffix.varint(), suffix.varint()
        if first_group != last_group:
            groups = postings(suffix)
            suffix.take((len(groups) * suffix.number(1) + 7) // 8)
        block = table[offset : offset + block_bytes]
        check(block[4:8], salt, struct.pack("<Q", offset), block[:4], block[8:])
        yield from chunks_of_block(Input(block[8:]))
        offset += block_bytes
    suffix.end()
    assert (offset, chunk_count) == (at, record["chunks"])


def chunks_of_block(body):
    if body.number(1) == 1:
        payload_bytes = body.varint()
        body = Input(unpack(body.data))
        assert len(body.data) == payload_bytes
    group, directory = 0, []
    for _ in range(body.varint()):
        group += body.varint()
        directory.append((group, body.varint()))
    for group, chunk_bytes in directory:
        yield group, Input(body.take(chunk_bytes))
    body.end()


# chunk.md


def columns_of(chunk, group):
    """Slot, timestamps and values of each member."""
    flags = chunk.number(1)
    assert flags in (0x01, 0x11, 0x31) and chunk.varint() == group
    chunk.varint(), chunk.varint()  # commits
    start = chunk.zigzag()
    span = chunk.varint()
    if flags != 0x01:
        count = chunk.varint()
        if flags == 0x31:
            times = [start + span // max(count - 1, 1) * idx for idx in range(count)]
        else:
            times = [start + distance for distance in integers(chunk, count)]
        yield 0, times, values(chunk, count)
        chunk.end()
        return
    slots = postings(chunk)
    base_count, subset_count = chunk.varint(), chunk.varint()
    shapes = []
    for _ in range(base_count):
        count = chunk.varint()
        times = Input(chunk.take(chunk.varint()))
        shapes.append([start + distance for distance in integers(times, count)])
        times.end()
    for _ in range(subset_count):
        base = shapes[chunk.varint()]
        shapes.append([base[entry] for entry in postings(chunk)])
    shape_of = [0] * len(slots) if len(shapes) == 1 else []
    while len(shape_of) < len(slots):
        shape, more = chunk.varint(), chunk.varint()
        shape_of += [shape] * (more + 1)
    directory_bytes = chunk.varint()
    step_count = (len(slots) - 1) // 64
    if step_count:
        chunk.take(3 * chunk.number(1) * step_count)
    lengths = Input(chunk.take(directory_bytes))
    column = b""
    for slot, shape in zip(slots, shape_of):
        length = lengths.varint()
        column = chunk.take(length) if length else column
        here = Input(column)
        yield slot, shapes[shape], values(here, len(shapes[shape]))
        here.end()
    lengths.end()
    chunk.end()


def postings(data):
    header = data.varint()
    count, form = header >> 2, header & 3
    first = data.varint() if count else 0
    if count < 2:
        return [first] * count
    payload = Input(data.take(data.varint()))
    ids = [first]
    if form == 0:
        while len(ids) < count:
            ids.append(ids[-1] + payload.varint() + 1)
    elif form == 1:
        ids.extend(range(first + 1, first + payload.varint() + 1))
        while len(ids) < count:
            start = ids[-1] + payload.varint() + 2
            ids.extend(range(start, start + payload.varint() + 1))
    else:
        bits = Bits(payload.take(len(payload.data)))
        ids = [first + bit for bit in range(bits.value.bit_length()) if bits.value >> bit & 1]
    payload.end()
    assert len(ids) == count
    return ids


def integers(data, count):
    flags = data.number(1)
    form, rice, patched, divided = flags & 7, flags & 8, flags & 16, flags & 32
    divisor, divided_first = (data.varint(), data.zigzag()) if divided else (1, 0)
    first = data.zigzag()
    low = data.zigzag() if form in (1, 3, 4) else 0
    slope = data.varint() if form == 4 else 0
    missing = {0: 0, 1: 1, 2: 1, 3: 2, 4: 0}[form]
    residuals = residuals_of(data, max(count - missing, 0), rice, patched)
    if form == 0:
        found = [first + residual for residual in residuals]
    elif form == 4:
        found = [first + (idx * slope >> 16) + low + one for idx, one in enumerate(residuals)]
    else:
        found, delta = [first], low
        if form == 3 and count > 1:
            found.append(first + low)
        for residual in residuals:
            if form == 1:
                delta = residual + low
            else:
                delta = unzigzag(residual) + (delta if form == 3 else 0)
            found.append(found[-1] + delta)
    return [wrapped(wrapped(one) * divisor + divided_first) for one in found[:count]]


def residuals_of(data, count, rice, patched):
    width = data.number(1)
    if rice:
        bits, found = Bits(data.data), []
        for _ in range(count):
            zeros = 0
            while not bits.take(1):
                zeros += 1
            found.append(bits.take(64) if zeros == 24 else zeros << width | bits.take(width))
        data.take(bits.bytes())
        return found
    bits = Bits(data.take((count * width + 7) // 8))
    found = [bits.take(width) for _ in range(count)]
    at = -1
    for _ in range(data.varint() if patched else 0):
        at += data.varint() + 1
        found[at] |= data.varint() << width
    return found


def decimal(scale, integer):
    if scale <= 22:
        return float(integer) / float(10**scale)
    return float(integer) * float(f"1e-{scale - 32}")


def values(data, count):
    tag = data.number(1)
    if tag <= 54:
        return [decimal(tag, integer) for integer in integers(data, count)]
    if tag == 64:
        return [to_float(data.number(8))] * count
    if tag in (65, 66):
        scale = data.number(1) if tag == 65 else 0
        return [decimal(scale, data.zigzag())] * count
    if tag == 67:
        scale, at, exceptions = data.number(1), -1, {}
        for _ in range(data.varint()):
            at += data.varint() + 1
            exceptions[at] = to_float(data.number(8))
        found = [decimal(scale, integer) for integer in integers(data, count)]
        return [exceptions.get(idx, value) for idx, value in enumerate(found)]
    if tag == 68:
        ends = postings(data) + [count]
        found = []
        for value, end in zip(values(data, len(ends)), ends):
            found += [value] * (end - len(found))
        return found
    if tag == 69:
        shift = data.number(1)
        return [to_float(bits << shift & (1 << 64) - 1) for bits in integers(data, count)]
    if tag == 70:
        return xor(data, count)
    if tag == 71:
        return [to_float(data.number(8)) for _ in range(count)]
    if tag == 72:
        distinct_count, column_bytes = data.varint(), data.varint()
        distinct = values(Input(data.take(column_bytes)), distinct_count)
        return [distinct[place] for place in integers(data, count)]
    assert tag == 73, f"tag {tag}"
    scale = data.number(1)
    near, errors = integers(data, count), integers(data, count)
    return [to_float(to_bits(decimal(scale, one)) + error) for one, error in zip(near, errors)]


def xor(data, count):
    bits = Bits(data.data)
    place_bits = min((count - 1).bit_length(), 7)
    found, leading = [bits.take(64)], 0
    classes = [0, 8, 12, 16, 18, 20, 22, 24]
    for _ in range(count - 1):
        kind = bits.take(2)
        if kind < 2:
            before = found[-1 - bits.take(place_bits)]
            changed = 0
            if kind == 1:
                zeros, length = classes[bits.take(3)], bits.take(6) or 64
                changed = bits.take(length) << 64 - zeros - length
        else:
            before = found[-1]
            leading = classes[bits.take(3)] if kind == 3 else leading
            changed = bits.take(64 - leading)
        found.append(before ^ changed)
    data.take(bits.bytes())
    return [to_float(one) for one in found]


def main(folder):
    series = {}
    with open(f"{folder}/manifest", "rb") as file:
        manifest = file.read()
    for record in records(manifest):
        with open(f"{folder}/tables/{record['id']}.fst", "rb") as file:
            table = file.read()
        value_count = 0
        for group, chunk in chunks_of(table, record):
            for slot, times, column in columns_of(chunk, group):
                value_count += len(column)
                series.setdefault((group, slot), {}).update(zip(times, column))
        assert value_count == record["values"]
    for (group, slot), samples in sorted(series.items()):
        line = " ".join(f"{ts}:{to_bits(value):016x}" for ts, value in sorted(samples.items()))
        print(group, slot, line)


if __name__ == "__main__":
    main(sys.argv[1])
