"""Tests of firn_cache.py: `python3 -m unittest` in this folder.

With FIRN_CACHE_SERVERS=host:port,... (empty caches without a token) also against servers."""

import os
import socket
import threading
import unittest

from firn_cache import BreakEven, CacheError, CacheUnavailable, Client, key_of, server_of

SERVERS = [server for server in os.environ.get("FIRN_CACHE_SERVERS", "").split(",") if server]


class Vectors(unittest.TestCase):
    def test_keys_and_servers_are_those_of_the_other_clients(self):
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "vectors.txt")
        count = 0
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith("#"):
                    continue
                kind, *cells = line.rstrip("\n").split("\t")
                if kind == "key":
                    self.assertEqual(key_of(cells[0].replace("\\n", "\n")), cells[1])
                else:
                    self.assertEqual(server_of(cells[1], cells[0].split(",")), cells[2])
                count += 1
        self.assertGreaterEqual(count, 20)

    def test_invalid_keys_are_refused(self):
        for statement in ["", " \n", "x" * 4097]:
            with self.assertRaises(ValueError):
                key_of(statement)
        with self.assertRaises(ValueError):
            Client(["a:1"]).get("no key", 0, 1)


class Parts(unittest.TestCase):
    def test_break_even_is_the_cost_of_a_get_in_bytes_of_the_database(self):
        even = BreakEven()
        self.assertEqual(even.bytes_min(), 0)
        for _ in range(200):
            even.looked(1000, 0.001)
        for number in range(100):
            byte_count = 1000 * (number % 10)
            even.computed(byte_count, 0.05 + byte_count * 1e-6)
        # A get of one millisecond against a microsecond per byte.
        self.assertAlmostEqual(even.bytes_min(), 1000, delta=5)
        even.looked(1000, 10.0)
        self.assertLess(even.bytes_min(), 2000, "one slow get counts little")
        for _ in range(200):
            even.looked(1000, 10.0)
        self.assertEqual(even.bytes_min(), 512 << 10)
        self.assertEqual([even.least() for _ in range(32)].count(0), 2)
        for _ in range(1000):
            even.looked(1000, 0.001)
        self.assertAlmostEqual(even.bytes_min(), 1000, delta=5)
        for number in range(1000):
            even.computed(1000 * (number % 10), 0.05 - number % 10)
        self.assertEqual(even.bytes_min(), 0, "times that fall with sizes have no slope")

    def test_long_hits_do_not_raise_the_cost_of_short_parts(self):
        even = BreakEven()
        for number in range(500):
            byte_count = 1000 + 400000 * (number % 9)
            even.looked(byte_count, 0.001 + byte_count * 1e-8)
            even.computed(1000 * (number % 10), 0.05 + 1000 * (number % 10) * 1e-6)
        self.assertAlmostEqual(even.bytes_min(), 1000, delta=50)

    def test_sizes_are_measured_in_bytes_of_values(self):
        looked, computed = [], []

        class Recorder:
            least = lambda self: 0
            looked = lambda self, byte_count, took_s: looked.append(byte_count)
            computed = lambda self, byte_count, took_s: computed.append(byte_count)

        with socket.create_server(("127.0.0.1", 0)) as listener:
            def serve():
                connection, _ = listener.accept()
                with connection, connection.makefile("rwb") as file:
                    for answer in [b'INCOMPLETE 120 199 28\r\n[[100,2.5],[101,{"a": [1]}]]\r\n', b"STORED 120 199\r\n"]:
                        if file.readline().startswith(b"set"):
                            file.readline()
                        file.write(answer)
                        file.flush()

            thread = threading.Thread(target=serve)
            thread.start()
            client = Client(["127.0.0.1:%d" % listener.getsockname()[1]], timeout_s=5.0)
            client._break_even = Recorder()
            points = client.fetch("k", 100, 199, lambda start, end: [[start, 1], [start + 1, "ab"], [end, None]])
            thread.join()
            client.close()
        self.assertEqual(len(points), 5)
        self.assertEqual((looked, computed), ([len('2.5{"a": [1]}')], [len('1"ab"null')]))

    def test_cached_points_are_not_set_again(self):
        received = []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            def serve():
                connection, _ = listener.accept()
                with connection, connection.makefile("rwb") as file:
                    for answer in [b"INCOMPLETE 0 9 2 4 9\r\n[]\r\n", b"STORED 4 9\r\n"]:
                        received.append(file.readline())
                        if received[-1].startswith(b"set"):
                            received.append(file.readline())
                        file.write(answer)
                        file.flush()

            thread = threading.Thread(target=serve)
            thread.start()
            client = Client(["127.0.0.1:%d" % listener.getsockname()[1]], timeout_s=5.0)
            points = client.fetch("k", 0, 9, lambda start, end: [[ts, ts] for ts in range(start, end + 1)])
            thread.join()
            client.close()
        self.assertEqual(points, [[ts, ts] for ts in range(10)])
        self.assertEqual(received[0], b"get k 0 0 9 json 0\r\n")
        self.assertEqual(received[1:], [b"set k 0 4 9 json 37\r\n", b"[[4,4],[5,5],[6,6],[7,7],[8,8],[9,9]]\r\n"])


class Broken(unittest.TestCase):
    def test_without_a_cache_the_database_is_queried(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = "127.0.0.1:%d" % listener.getsockname()[1]
        client = Client([address], timeout_s=1.0)
        with self.assertRaises(CacheUnavailable):
            client.get("k", 0, 9)
        self.assertEqual(client.fetch("k", 0, 9, lambda start, end: [[start, end]]), [[0, 9]])

    def test_a_truncated_response_is_an_error(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            def serve():
                for answer in [b"VALUE 0 9 100\r\n[[1,", b"HELLO\r\n"]:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(100)
                        connection.sendall(answer)

            thread = threading.Thread(target=serve)
            thread.start()
            client = Client(["127.0.0.1:%d" % listener.getsockname()[1]], timeout_s=5.0)
            for _ in range(2):
                with self.assertRaises(CacheUnavailable):
                    client.get("k", 0, 9)
            thread.join()


    def test_a_broken_connection_is_opened_again(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            def serve():
                for _ in range(2):
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(100)
                        connection.sendall(b"NOT_FOUND\r\n")

            thread = threading.Thread(target=serve)
            thread.start()
            client = Client(["127.0.0.1:%d" % listener.getsockname()[1]], timeout_s=5.0)
            for _ in range(2):
                self.assertEqual(client.get("k", 0, 9), ([], (0, 9)))
            thread.join()
            client.close()


@unittest.skipUnless(SERVERS, "FIRN_CACHE_SERVERS is not set")
class Served(unittest.TestCase):
    def setUp(self):
        self.client = Client(SERVERS)
        self.addCleanup(self.client.close)

    def test_points_are_returned_by_range(self):
        for number in range(20):
            key = "python/%d" % number
            self.assertEqual(self.client.get(key, 0, 9), ([], (0, 9)))
            self.assertEqual(self.client.set(key, 0, 9, [[1, "a"], [5, {"x": [number]}]]), (0, 9))
            self.assertEqual(self.client.get(key, 2, 9), ([[5, {"x": [number]}]], None))
            self.assertEqual(self.client.get(key, 2, 9, field=1), ([], (2, 9)))
        requests = [("python/%d" % (number % 20), 5, 5, 0) for number in range(100)]
        for number, answer in enumerate(self.client.get_many(requests)):
            self.assertEqual(answer, ([[5, {"x": [number % 20]}]], None))
        self.assertTrue(self.client.delete("python/3", 4, 5))
        self.assertFalse(self.client.delete("python/none", 4, 5))

    def test_each_key_is_on_the_server_with_the_highest_score(self):
        for number in range(20):
            key = "sharded/%d" % number
            self.client.set(key, 0, 0, [])
            for server in SERVERS:
                is_there = Client([server]).get(key, 0, 0)[1] is None
                self.assertEqual(is_there, server == server_of(key, SERVERS))

    def test_only_missing_ranges_are_queried(self):
        queried = []

        def query(start, end):
            queried.append((start, end))
            return [[time, "x" * 1000] for time in range(start, end + 1)]

        statement = "SELECT x WHERE time >= {start} AND time <= {end}"
        for start, end in [(0, 999), (100, 999), (100, 1099), (0, 1099)]:
            self.assertEqual([p[0] for p in self.client.fetch(statement, start, end, query)], list(range(start, end + 1)))
        self.assertEqual(queried, [(0, 999), (1000, 1099)])

    def test_the_connection_survives_an_invalid_request(self):
        for start, end, points in [(9, 0, []), (0, 9, [[10, 1]]), (0, 9, [[2, 1], [1, 1]]), (0, 9, {"a": 1})]:
            with self.assertRaises(CacheError):
                self.client.set("wrong", start, end, points)
        self.assertEqual(self.client.get("wrong", 0, 9), ([], (0, 9)))


if __name__ == "__main__":
    unittest.main()
