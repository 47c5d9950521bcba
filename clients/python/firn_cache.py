"""A client of `firn cache`: points by key and time range, kept on one server or several.

One file, standard library only. The protocol is in docs/cache-protocol.md; clients/vectors.txt holds this client and the
one in Rust to the same keys and servers.

    cache = Client(["10.0.0.1:9421", "10.0.0.2:9421"])
    statement = "SELECT mean(load) FROM cpu WHERE time >= {start} AND time <= {end} GROUP BY time(1m)"
    points = cache.fetch(statement, 1000, 9000, ask_database)

`ask_database(start, end)` returns all points of a range as [[time, value], ...]; it is asked for what the cache does not
have, and for everything when the cache cannot be reached.
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
    """The cache refuses a request, or cannot do it."""


class CacheUnavailable(CacheError):
    """The cache cannot be reached, or says what it should not."""


def key_of(statement):
    """The key of a query's statement, which has {start} and {end} where its times belong.

    Nothing but blanks around it is made equal: blanks may mean something, in a regular expression for one.
    """
    text = statement.strip(" \t\r\n").encode("utf-8")
    key = "".join(chr(b) if 0x21 <= b <= 0x7E and b != 0x25 else "%%%02X" % b for b in text)
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise ValueError("a statement whose key has %d bytes; wanted are 1 to %d" % (len(key), KEY_BYTES_MAX))
    return key


def server_of(key, servers):
    """The server with the highest score for a key (rendezvous hashing): when one comes or goes, no other key moves."""
    key_crc = zlib.crc32(key.encode("ascii"))

    def score(server):
        bits = zlib.crc32(server.encode("utf-8")) << 32 | key_crc
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & _MASK
        return bits ^ (bits >> 31)

    # Two of one score: the first by name, in whatever order they are given.
    return max(sorted(servers), key=score)


class Client:
    """Connections to some servers, opened when first needed and after one broke. For one thread.

    Servers are "host:port", the same text in every client: a key's server is chosen by it.
    """

    def __init__(self, servers, token=None, timeout_s=5.0):
        if not servers:
            raise ValueError("no servers; wanted is at least one host:port")
        self._servers = list(servers)
        self._token = token
        self._timeout_s = timeout_s
        self._connections = {}
        self._break_even = BreakEven()

    def get(self, key, start, end, field=0):
        """(points, missing): the points that are there, and the one range (start, end) that is not, or None."""
        return self.get_many([(key, start, end, field)])[0]

    def get_many(self, questions):
        """Answers to [(key, start, end, field), ...], some of them at a time, in the order of the questions."""
        return [answer[:2] for answer in self._get_many(questions, "")]

    def _get_many(self, questions, least):
        """With what of the missing range is really unknown, and how many bytes the points' values had; parts of fewer bytes
        than `least` are not wanted."""
        answers = [None] * len(questions)
        by_server = {}
        for at, question in enumerate(questions):
            by_server.setdefault(server_of(_checked(question[0]), self._servers), []).append(at)
        for server, own in by_server.items():
            for first in range(0, len(own), _GETS_MAX):
                some = own[first : first + _GETS_MAX]
                asked = [questions[at] for at in some]
                lines = ["get %s %d %d %d json%s\r\n" % (k, f, s, e, least) for k, s, e, f in asked]
                read = lambda file: [_read_found(file, questions[at]) for at in some]
                for at, answer in zip(some, self._exchange(server, "".join(lines).encode("ascii"), read)):
                    answers[at] = answer
        for answer in answers:
            if isinstance(answer, CacheError):
                raise answer
        return answers

    def set(self, key, start, end, points, field=0):
        """Keeps all points of a range; (start, end) of the part that is kept, or None if there is no room."""
        return self._set(key, start, end, points, field)[0]

    def _set(self, key, start, end, points, field):
        """What is kept, and how many bytes the points' values have."""
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
        """Forgets a range; whether anything of the key was there."""
        request = "delete %s %d %d %d\r\n" % (_checked(key), field, start, end)
        answer = self._exchange(server_of(key, self._servers), request.encode("ascii"), _read_line)
        if answer in ("DELETED", "NOT_FOUND"):
            return answer == "DELETED"
        raise _refusal(answer)

    def fetch(self, statement, start, end, query, field=0):
        """All points of a range: those that the cache has, and those that `query(start, end)` returns.

        Parts are taken from the cache from the size on at which that pays, measured as it goes."""
        key, least = key_of(statement), " %d" % self._break_even.least()
        begun = time.monotonic()
        try:
            points, missing, absent, value_bytes = self._get_many([(key, start, end, field)], least)[0]
        except CacheError:
            return query(start, end)
        asked = time.monotonic()
        if points:
            self._break_even.looked(value_bytes, asked - begun)
        if missing is None:
            return points
        new = query(*missing)
        took_s = time.monotonic() - asked
        try:
            # Of what was asked anew for a part that was too small, the cache has some already.
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
        # A connection that broke since it was used last is opened anew once: asking a cache twice does no harm.
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
    """From how many bytes on a part from the cache is worth having, measured (TSCache 3.3).

    A part saves the database its bytes and costs the time of a get. What a byte costs the database is the slope of the line
    through its answers' sizes and times; what a get costs is where the line through the gets begins, since what it takes longer
    for more bytes it takes for bytes that are saved. Old sizes and times fade."""

    def __init__(self):
        self._database = [0.0] * 5
        self._looks = [0.0] * 5
        self._asked = 0

    def computed(self, byte_count, took_s):
        """The database took so long for an answer of so many bytes."""
        self._database = _with(self._database, float(byte_count), took_s)

    def looked(self, byte_count, took_s):
        """The cache took so long to give so many bytes, a part or all; one slow look is a busy machine."""
        start_s, slope = self._look()
        expected_s = start_s + slope * byte_count
        self._looks = _with(self._looks, float(byte_count), min(took_s, 10.0 * expected_s))

    def least(self):
        """The smallest part to take now: bytes_min, and now and then 0, so that it goes on being measured."""
        self._asked += 1
        return 0 if self._asked % _MEASURED_EVERY == 1 else self.bytes_min()

    def bytes_min(self):
        """0, every part, until enough is measured; 512 KiB at most."""
        slope, look_s = _line(self._database)[1], self._look()[0]
        if self._database[0] < 8.0 or slope <= 0.0:
            return 0
        return min(int(look_s / slope), _PART_BYTES_MAX)

    def _look(self):
        return _line(self._looks) if self._looks[0] >= 8.0 else (1e-4, 0.0)


def _with(sums, x, y):
    return [0.98 * old + new for old, new in zip(sums, (1.0, x, y, x * x, x * y))]


def _line(sums):
    """Start and slope of the line through what was measured; the mean and 0 if more bytes do not say to take longer."""
    count, x, y, xx, xy = sums
    spread = count * xx - x * x
    slope = (count * xy - x * y) / spread if spread > 0.01 * count * xx else 0.0
    mean = y / max(count, 1.0)
    return (max(mean - slope * x / count, 0.0), slope) if slope > 0.0 else (mean, 0.0)


def _checked(key):
    if not 1 <= len(key) <= KEY_BYTES_MAX or not all("!" <= c <= "~" for c in key):
        raise ValueError("a key is 1 to %d characters of ! to ~, as key_of makes them" % KEY_BYTES_MAX)
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


def _read_found(file, question):
    """(points, missing, what of it is really unknown, bytes of values), or what the server has against the question."""
    line = _read_line(file)
    words = line.split(" ")
    if words == ["NOT_FOUND"]:
        return [], (question[1], question[2]), (question[1], question[2]), 0
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
        raise CacheUnavailable("the answer broke off")
    missing = (int(words[1]), int(words[2])) if words[0] == "INCOMPLETE" else None
    points = json.loads(value)
    return points, missing, absent or missing, _value_bytes(len(value) - 2, points)


def _value_bytes(text_bytes, points):
    """Bytes of the values alone in a JSON list of points of so many: what the cache holds against LEAST. Times are taken to have as many
    digits as the last one."""
    if not points:
        return 0
    around = len(str(points[-1][0])) + len("[,],")
    return max(text_bytes - 1 - around * len(points), 0)


def _refusal(answer):
    kind, _, what = answer.partition(" ")
    if kind in ("CLIENT_ERROR", "SERVER_ERROR"):
        return CacheError(what)
    return CacheUnavailable("the server says %r, which is no answer" % answer)
