"""A client of `firn cache`: stores points by key and time range on one or several servers.

One file, standard library only. docs/cache-protocol.md defines the protocol. The tests of this
client and of the one in Rust read clients/vectors.txt: both choose the same keys and servers.

    cache = Client(["10.0.0.1:9421", "10.0.0.2:9421"])
    statement = "SELECT mean(load) FROM cpu WHERE time >= {start} AND time <= {end}"
    points = cache.fetch(statement, 1000, 9000, query_database)

`query_database(start, end)` returns all points of a range as [[time, value], ...]. `fetch` calls it
for the range that the cache lacks, and for the whole range if the cache cannot be reached.
"""

import json
import socket
import time
import zlib

KEY_BYTES_MAX = 4096
_GETS_MAX = 16
_LINE_BYTES_MAX = 64 << 10
_MASK = (1 << 64) - 1
_PART_BYTES_MAX = 512 << 10
_MEASURED_EVERY = 16


class CacheError(Exception):
    """The cache rejects a request or fails to execute it."""


class CacheUnavailable(CacheError):
    """The cache cannot be reached, or its response violates the protocol."""


def key_of(statement):
    """Returns the key of a query's statement, which has {start} and {end} in place of its times.

    Only blanks around the statement are removed: blanks inside may be significant, for example in
    a regular expression.
    """
    text = statement.strip(" \t\r\n").encode("utf-8")
    key = "".join(chr(b) if 0x21 <= b <= 0x7E and b != 0x25 else "%%%02X" % b for b in text)
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise ValueError("statement: expected a key of 1 to %d bytes, got %d" % (KEY_BYTES_MAX, len(key)))
    return key


def server_of(key, servers):
    """Returns the server with the highest score for a key (rendezvous hashing).

    Adding or removing a server moves no key between the other servers."""
    key_crc = zlib.crc32(key.encode("ascii"))

    def score(server):
        bits = zlib.crc32(server.encode("utf-8")) << 32 | key_crc
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & _MASK
        return bits ^ (bits >> 31)

    # Of two servers with equal scores the first by name wins, regardless of their order here.
    return max(sorted(servers), key=score)


class Client:
    """Connections to servers, opened on first use and again after one broke. For one thread.

    Servers are "host:port". Every client must use the same text, because it selects the server of
    a key. With `tls`, an `ssl.SSLContext`, connections are encrypted.
    """

    def __init__(self, servers, token=None, timeout_s=5.0, tls=None):
        if not servers:
            raise ValueError("servers: expected at least one host:port, got none")
        self._servers = list(servers)
        self._token = token
        self._timeout_s = timeout_s
        self._tls = tls
        self._connections = {}
        self._break_even = BreakEven()

    def get(self, key, start, end, field=0):
        """Returns (points, missing): stored points, and the missing range (start, end) or None."""
        return self.get_many([(key, start, end, field)])[0]

    def get_many(self, requests):
        """Returns the result of `get` for each (key, start, end, field) in `requests`, in order."""
        return [answer[:2] for answer in self._get_many(requests, "")]

    def _get_many(self, requests, least):
        """Returns (points, missing, absent, value_bytes) for each request.

        `absent` is the part of `missing` that the cache does not store. The server omits parts of
        fewer bytes than `least`."""
        answers = [None] * len(requests)
        by_server = {}
        for at, request in enumerate(requests):
            by_server.setdefault(server_of(_checked(request[0]), self._servers), []).append(at)
        for server, own in by_server.items():
            for first in range(0, len(own), _GETS_MAX):
                some = own[first : first + _GETS_MAX]
                batch = [requests[at] for at in some]
                lines = ["get %s %d %d %d json%s\r\n" % (k, f, s, e, least) for k, s, e, f in batch]
                read = lambda file: [_read_value(file, requests[at]) for at in some]
                text = "".join(lines).encode("ascii")
                for at, answer in zip(some, self._exchange(server, text, read)):
                    answers[at] = answer
        for answer in answers:
            if isinstance(answer, CacheError):
                raise answer
        return answers

    def set(self, key, start, end, points, field=0):
        """Stores all points of a range. Returns the stored part (start, end) or None."""
        return self._set(key, start, end, points, field)[0]

    def _set(self, key, start, end, points, field):
        """Returns the stored part and the bytes of the points' values."""
        value = json.dumps(points, separators=(",", ":")).encode("utf-8")
        line = "set %s %d %d %d json %d\r\n" % (_checked(key), field, start, end, len(value))
        request = line.encode("ascii") + value + b"\r\n"
        words = self._exchange(server_of(key, self._servers), request, _read_line).split(" ")
        if words[0] == "STORED" and len(words) == 3:
            return (int(words[1]), int(words[2])), _value_bytes(len(value), points)
        if words[0] == "NOT_STORED":
            return None, _value_bytes(len(value), points)
        raise _refusal(" ".join(words))

    def delete(self, key, start, end, field=0):
        """Deletes a range. Returns whether the cache had any range of the key and field."""
        request = "delete %s %d %d %d\r\n" % (_checked(key), field, start, end)
        answer = self._exchange(server_of(key, self._servers), request.encode("ascii"), _read_line)
        if answer in ("DELETED", "NOT_FOUND"):
            return answer == "DELETED"
        raise _refusal(answer)

    def fetch(self, statement, start, end, query, field=0):
        """Returns all points of a range from the cache and from `query(start, end)`.

        A cached part is used if it is large enough to be cheaper than a query; see `BreakEven`."""
        key, least = key_of(statement), " %d" % self._break_even.least()
        begun = time.monotonic()
        try:
            points, missing, absent, value_bytes = self._get_many([(key, start, end, field)], least)[0]
        except CacheError:
            return query(start, end)
        looked_up = time.monotonic()
        if points:
            self._break_even.looked(value_bytes, looked_up - begun)
        if missing is None:
            return points
        new = query(*missing)
        took_s = time.monotonic() - looked_up
        try:
            # The cache stores parts of the queried range already if they were too small to use.
            unknown = [point for point in new if absent[0] <= point[0] <= absent[1]]
            set_bytes = self._set(key, absent[0], absent[1], unknown, field)[1]
            if absent == missing:
                self._break_even.computed(set_bytes, took_s)
        except CacheError:
            pass
        before = [point for point in points if point[0] < missing[0]]
        return before + new + [point for point in points if point[0] > missing[1]]

    def close(self):
        """Closes all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections = {}

    def _exchange(self, server, request, read):
        # A connection may have broken since its last use: it is opened again once. Requests are
        # idempotent.
        while True:
            file = self._connections.pop(server, None)
            is_fresh = file is None
            try:
                file = file or self._connect(server)
                file.write(request)
                file.flush()
                answer = read(file)
            except CacheUnavailable:
                _close(file)
                if is_fresh:
                    raise
            except (OSError, ValueError) as error:
                _close(file)
                if is_fresh:
                    raise CacheUnavailable("the cache at %s: %s" % (server, error)) from error
            else:
                self._connections[server] = file
                return answer

    def _connect(self, server):
        host, _, port = server.rpartition(":")
        connection = socket.create_connection((host.strip("[]"), int(port)), self._timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_hostname=host.strip("[]"))
        file = connection.makefile("rwb")
        # The file keeps the connection open.
        connection.close()
        if self._token is not None:
            file.write(("auth %s\r\n" % self._token).encode("ascii"))
            file.flush()
            answer = _read_line(file)
            if answer != "OK":
                raise _refusal(answer)
        return file


class BreakEven:
    """Measures from which size on a cached part is cheaper than a query (TSCache, section 3.3).

    A part saves the database its bytes and costs the time of a get. The database's cost of a byte
    is the slope of the line through the sizes and times of its responses. The cost of a get is the
    intercept of the line through the gets: longer gets return more bytes, which are saved. Old
    measurements fade."""

    def __init__(self):
        self._database = [0.0] * 5
        self._looks = [0.0] * 5
        self._gets = 0

    def computed(self, byte_count, took_s):
        """Records the size and time of a database response."""
        self._database = _with(self._database, float(byte_count), took_s)

    def looked(self, byte_count, took_s):
        """Records the size and time of a get. One slow get counts little: the machine was busy."""
        start_s, slope = self._look()
        expected_s = start_s + slope * byte_count
        self._looks = _with(self._looks, float(byte_count), min(took_s, 10.0 * expected_s))

    def least(self):
        """Returns the smallest part to use now: bytes_min, or 0 every 16th time to measure gets."""
        self._gets += 1
        return 0 if self._gets % _MEASURED_EVERY == 1 else self.bytes_min()

    def bytes_min(self):
        """Returns 0, which is every part, until there are 8 measurements; at most 512 KiB."""
        slope, look_s = _line(self._database)[1], self._look()[0]
        if self._database[0] < 8.0 or slope <= 0.0:
            return 0
        return min(int(look_s / slope), _PART_BYTES_MAX)

    def _look(self):
        return _line(self._looks) if self._looks[0] >= 8.0 else (1e-4, 0.0)


def _with(sums, x, y):
    return [0.98 * old + new for old, new in zip(sums, (1.0, x, y, x * x, x * y))]


def _line(sums):
    """Returns intercept and slope of the line through the measurements.

    The mean and 0 if times do not grow with sizes."""
    count, x, y, xx, xy = sums
    spread = count * xx - x * x
    slope = (count * xy - x * y) / spread if spread > 0.01 * count * xx else 0.0
    mean = y / max(count, 1.0)
    return (max(mean - slope * x / count, 0.0), slope) if slope > 0.0 else (mean, 0.0)


def _checked(key):
    if not 1 <= len(key) <= KEY_BYTES_MAX or not all("!" <= c <= "~" for c in key):
        raise ValueError("key: expected 1 to %d characters from ! to ~; use key_of" % KEY_BYTES_MAX)
    return key


def _close(file):
    try:
        if file is not None:
            file.close()
    except OSError:
        pass


def _read_line(file):
    line = file.readline(_LINE_BYTES_MAX)
    if not line.endswith(b"\n"):
        raise CacheUnavailable("the server closed the connection")
    return line.rstrip(b"\r\n").decode("utf-8", "replace")


def _read_value(file, request):
    """Returns (points, missing, absent, value_bytes), or the error that the server reports."""
    line = _read_line(file)
    words = line.split(" ")
    if words == ["NOT_FOUND"]:
        return [], (request[1], request[2]), (request[1], request[2]), 0
    absent = None
    if words[0] == "INCOMPLETE" and len(words) == 6:
        absent = int(words[4]), int(words[5])
        words = words[:4]
    if len(words) != 4 or words[0] not in ("VALUE", "INCOMPLETE"):
        error = _refusal(line)
        if isinstance(error, CacheUnavailable):
            raise error
        return error
    value = file.read(int(words[3]) + 2)
    if not value.endswith(b"\r\n"):
        raise CacheUnavailable("the response is cut short")
    missing = (int(words[1]), int(words[2])) if words[0] == "INCOMPLETE" else None
    points = json.loads(value)
    return points, missing, absent or missing, _value_bytes(len(value) - 2, points)


def _value_bytes(text_bytes, points):
    """Returns the bytes of the values in a JSON list of points; the cache compares LEAST with it.

    All times are assumed to have as many digits as the last one."""
    if not points:
        return 0
    around = len(str(points[-1][0])) + len("[,],")
    return max(text_bytes - 1 - around * len(points), 0)


def _refusal(answer):
    kind, _, message = answer.partition(" ")
    if kind in ("CLIENT_ERROR", "SERVER_ERROR"):
        return CacheError(message)
    return CacheUnavailable("expected a response of the cache protocol, got %r" % answer)
