"""The page at "/", driven in headless Chromium by scripts/page_check.py."""

import http.client
import sys
import unittest
import urllib.parse

import support

sys.path.insert(0, str(support.ROOT / "scripts"))
import page_check


class Page(unittest.TestCase):
    def test_chat_stop_tools_and_dashboard(self):
        page_check.drive(support.SERVER.url, key=support.KEY)

    def test_allows_nothing_from_outside(self):
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(support.SERVER.url).netloc)
        connection.request("GET", "/")
        answer = connection.getresponse()
        page = answer.read().decode()
        connection.close()
        self.assertEqual(answer.status, 200)
        policy = answer.headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        for outside in ("https://", "src=", "@import", "url("):
            self.assertNotIn(outside, page)
