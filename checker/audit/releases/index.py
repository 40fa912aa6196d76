"""The package index as pip is set up to reach it: which files a project has, and pieces of them by HTTP.

pip is asked where the index is, and with which certificates, proxy and time limits it is to be reached; it
cannot fetch a part of a file itself.
"""

from __future__ import annotations

import ast
import base64
import http.client
import json
import netrc
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urljoin, urlsplit

from kvfence.spec.errors import CannotRun

LARGEST_PAGE: Final = 64 << 20
"""Bytes of the list of a project's files; vLLM's has a tenth of a million."""
_PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_ACCEPT: Final = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_TRIES: Final = 3
_CHUNK: Final = 1 << 16
_T = TypeVar("_T")


class Unreachable(CannotRun):
    """The index did not answer, or not in time."""


class NotServed(Exception):  # noqa: N818 - what the index answers
    """The index answers, and has no such page or file, or no parts of files."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a project, as an index lists it."""

    name: str
    url: str
    sha256: str = ""
    """As the index states it; empty if it does not."""
    size: int | None = None
    yanked: bool = False


class Index:
    """The indexes and folders that ``settings`` of pip name, asked for ``patience`` seconds from now on."""

    def __init__(self, settings: Mapping[str, str], patience: float) -> None:
        self._end = time.monotonic() + patience
        self._timeout = float(settings.get("default-timeout") or settings.get("timeout") or 15)
        nowhere = settings.get("no-index", "").lower() in {"1", "true", "yes", "on"}
        indexes = [*settings.get("index-url", "").split(), *settings.get("extra-index-url", "").split()]
        self.indexes = [] if nowhere else [url.rstrip("/") for url in indexes]
        self.links = settings.get("find-links", "").split()
        self._users = {_host(url): _user(url) for url in [*self.indexes, *self.links]}
        self._trusted = set(settings.get("trusted-host", "").split())
        given = settings.get("proxy")
        proxy = urllib.request.ProxyHandler({"http": given, "https": given} if given else None)
        self._opener, self._lenient = (
            urllib.request.build_opener(proxy, urllib.request.HTTPSHandler(context=context), _Redirects)
            for context in _contexts(settings)
        )

    def files(self, project: str) -> list[File]:
        """All files of ``project``, from everywhere. Unreachable if one of the places does not answer."""
        found: list[File] = []
        for place in self.links:
            folder = on_disk(place)
            if folder is None:
                found += self._page(place)
            elif folder.is_dir():
                found += [File(path.name, path.resolve().as_uri()) for path in sorted(folder.iterdir())]
        for index in self.indexes:
            local = on_disk(index)
            if local is not None:
                page = local / project / "index.html"
                found += _of_html(page.read_text(), page.resolve().as_uri()) if page.is_file() else []
            else:
                found += self._page(f"{index}/{project}/")
        start = project.replace("-", "_")
        return [file for file in found if re.sub(r"[-_.]+", "_", file.name).lower().startswith(f"{start}_")]

    def _page(self, url: str) -> list[File]:
        def read() -> list[File]:
            with self.opened(url, {"Accept": _ACCEPT}) as answer:
                text = self.body(answer, LARGEST_PAGE).decode("utf-8", "replace")
                at, kind = answer.geturl(), answer.headers.get_content_type()
            listed = _of_json(text, at) if kind.endswith("json") else _of_html(text, at)
            # What a server names on this machine's disk is none of its files.
            return [file for file in listed if urlsplit(file.url).scheme in {"http", "https"}]

        try:
            return self.tried(read)
        except NotServed:
            return []

    @contextmanager
    def opened(self, url: str, headers: Mapping[str, str]) -> Iterator[Any]:
        """The answer to a GET, of status 200 or 206. NotServed for 404, 410 and 416; CannotRun for others."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"}:
            raise CannotRun(f"{shown(url)}: an index is reached by http or https, or is a folder")
        sent = {"Accept-Encoding": "identity", **headers}
        request = urllib.request.Request(_without_user(url), headers=sent)
        # Who asks for the list asks for its files, where these are on the same host.
        if user := self._users.get(_host(url)) or _user(url):
            # Not sent on to where a redirection leads.
            request.add_unredirected_header("Authorization", user)
        opener = self._lenient if {_host(url), parts.hostname} & self._trusted else self._opener
        try:
            answer = opener.open(request, timeout=min(self._timeout, self.left()))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in {404, 410, 416}:
                raise NotServed(f"{error.code} {error.reason}") from error
            problem = f"{shown(url)}: the package index answers {error.code} {error.reason}"
            if error.code >= 500 or error.code == 429:
                raise Unreachable(problem) from error
            raise CannotRun(f"{problem}: see pip config list") from error
        with answer:
            yield answer

    def body(self, answer: Any, most: int, part: Callable[[bytes], object] | None = None) -> bytes:
        """What ``answer`` brings, or all of it bit by bit to ``part``. CannotRun beyond ``most`` bytes."""
        whole, length = bytearray(), 0
        while piece := answer.read1(_CHUNK):
            length += len(piece)
            if length > most:
                source = shown(answer.geturl())
                raise CannotRun(f"{source}: more than {most:,} bytes come from the package index")
            self.left()
            if part is None:
                whole += piece
            else:
                part(piece)
        promised = answer.headers.get("Content-Length")
        if promised is not None and promised.isdigit() and length != int(promised):
            raise http.client.IncompleteRead(b"", int(promised) - length)
        return bytes(whole)

    def tried(self, ask: Callable[[], _T]) -> _T:
        """What ``ask`` returns, which is tried up to three times where the connection is the trouble."""
        for attempt in range(_TRIES):
            try:
                return ask()
            except (OSError, http.client.HTTPException, Unreachable) as error:
                if attempt == _TRIES - 1:
                    raise Unreachable(f"the package index cannot be reached: {_reason(error)}") from error
                time.sleep(min(0.3 * 3**attempt, self.left()))
        raise AssertionError

    def left(self) -> float:
        """Seconds until the end. Unreachable when it is over."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise CannotRun("the package index did not send everything in time: try again")
        return left


def of_pip(patience: float) -> Index:
    """The index as pip of this Python is set up to reach it. CannotRun without pip."""
    settings = settings_of(_pip("config", "list"))
    if "index-url" not in settings:
        # pip says in its help what it falls back on.
        text = " ".join(_pip("download", "--help").split())
        usual = re.search(r"--index-url\s+<url>.*?\(default:?\s+(\S+?)\)", text)
        settings["index-url"] = usual[1] if usual else ""
    return Index(settings, patience)


def settings_of(listed: str) -> dict[str, str]:
    """By name: the settings for downloads among the lines of ``pip config list``."""
    settings: dict[str, str] = {}
    found = re.findall(r"(?m)^(global|download|:env:)\.([\w-]+)=(.*)$", listed)
    # As pip does: the environment counts more than what is set for one command, and that more than the rest.
    for section in ("global", "download", ":env:"):
        for where, name, value in found:
            if where == section:
                settings[name] = str(ast.literal_eval(value))
    return settings


def _pip(*arguments: str) -> str:
    environment = {**os.environ, "COLUMNS": "5000", "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            [*_PIP, *arguments], capture_output=True, text=True, timeout=120, check=False, env=environment
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise CannotRun(f"pip does not say where its package index is: {error}") from error
    if "No module named pip" in done.stderr:
        missing = "this Python has no pip, which knows where the package index is"
        raise CannotRun(f"{missing}: {sys.executable} -m ensurepip")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it does not say why"])[-1]
        raise CannotRun(f"pip does not say where its package index is: {last}")
    return done.stdout


def shown(url: str) -> str:
    """``url`` without a password and without what follows the path."""
    return urlsplit(_without_user(url))._replace(query="").geturl()


def _reason(error: BaseException) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return " ".join(str(reason).split()) or type(reason).__name__


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def _without_user(url: str) -> str:
    return urlsplit(url)._replace(netloc=_host(url), fragment="").geturl()


def _user(url: str) -> str:
    """The header that says who asks; empty if neither the URL nor netrc names a user."""
    parts = urlsplit(url)
    name, password = unquote(parts.username or ""), unquote(parts.password or "")
    if not name:
        try:
            known = netrc.netrc(os.environ.get("NETRC")).authenticators(parts.hostname or "")
        except (OSError, netrc.NetrcParseError):
            known = None
        if known is None:
            return ""
        name, password = known[0], known[2] or ""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def _contexts(settings: Mapping[str, str]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For hosts whose certificate is checked, and for those that pip is set up to trust without."""
    given = settings.get("cert") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    try:
        if given and Path(given).is_dir():
            checked = ssl.create_default_context(capath=given)
        else:
            checked = ssl.create_default_context(cafile=given or None)
        unchecked = ssl.create_default_context()
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        if own := settings.get("client-cert"):
            checked.load_cert_chain(own)
            unchecked.load_cert_chain(own)
    except (OSError, ssl.SSLError) as error:
        problem = f"the certificates that pip is set up with cannot be read: {given}: {error}"
        raise CannotRun(problem) from error
    return checked, unchecked


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections, but from https to http none."""

    max_redirections = 8

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """The request to make next."""
        if urlsplit(req.full_url).scheme == "https" and urlsplit(newurl).scheme != "https":
            leads = f"the package index leads from https to {shown(newurl)}"
            raise CannotRun(f"{shown(req.full_url)}: {leads}: not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def on_disk(place: str) -> Path | None:
    """Where ``place`` is on this machine's disk; None if it is reached by HTTP."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme in {"http", "https"} else Path(place).expanduser()


def _of_json(text: str, at: str) -> list[File]:
    try:
        listed = json.loads(text)["files"]
        return [
            File(
                name=str(entry["filename"]),
                url=urljoin(at, str(entry["url"])),
                sha256=_digest(str(entry.get("hashes", {}).get("sha256", ""))),
                size=entry["size"] if isinstance(entry.get("size"), int) else None,
                yanked=bool(entry.get("yanked")),
            )
            for entry in listed
        ]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CannotRun(f"{shown(at)}: the package index sends no list of files: {error}") from error


class _Anchors(HTMLParser):
    def __init__(self, at: str) -> None:
        super().__init__()
        self.at, self.found = at, list[File]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes note of a file."""
        given = dict(attrs)
        if tag == "base" and given.get("href"):
            self.at = urljoin(self.at, given["href"])
        elif tag == "a" and given.get("href"):
            url, _, fragment = urljoin(self.at, given["href"] or "").partition("#")
            stated = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
            name = unquote(urlsplit(url).path.rsplit("/", 1)[-1])
            self.found.append(File(name, url, _digest(stated), yanked="data-yanked" in given))


def _of_html(text: str, at: str) -> list[File]:
    parser = _Anchors(at)
    parser.feed(text)
    return parser.found


def _digest(stated: str) -> str:
    return stated.lower() if re.fullmatch(r"[0-9a-fA-F]{64}", stated) else ""
