"""The logger of the HTTP servers, without what anybody can make them say."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError


class _NoClientFaults(logging.Filter):
    """Garbage sent to an open port, and clients that leave, must not fill the journal, nor put a request's text in."""

    def filter(self, record: logging.LogRecord) -> bool:
        fault = record.exc_info[1] if record.exc_info else None
        return not isinstance(fault, HttpProcessingError | ConnectionError)


http_log = logging.getLogger("glm_spark.api.http")
http_log.addFilter(_NoClientFaults())
