"""`GET /` and `/page/*`: the page in the browser. Static files, read once; the browser may load nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

router = APIRouter(include_in_schema=False)

FOLDER = Path(__file__).parents[1] / "page"
_INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    # Scripts, styles and connections only from here; no inline code, no plugins, no framing by other sites. Trusted
    # types close innerHTML and its kin, so that a model's text cannot become markup even by mistake.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # keep, but ask: an upgraded server must not run with half of the old page
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is sent."""

    data: bytes
    media_type: str
    etag: str


def _read(path: Path) -> PageFile:
    data = path.read_bytes()
    return PageFile(data, _TYPES[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:20]}"')


FILES: Mapping[str, PageFile] = MappingProxyType({path.name: _read(path) for path in sorted(FOLDER.iterdir())})


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    """The page."""
    return _sent(FILES[_INDEX], request)


@router.api_route("/page/{name}", methods=["GET", "HEAD"])
async def page_file(request: Request, name: str) -> Response:
    """What the page consists of. Names are looked up in a table, so no path leads out of the folder."""
    if name not in FILES:
        raise HTTPException(404)
    return _sent(FILES[name], request)


def _sent(file: PageFile, request: Request) -> Response:
    headers = {**_HEADERS, "ETag": file.etag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.data, media_type=file.media_type, headers=headers)
