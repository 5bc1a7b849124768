"""Sources: public datasets, one file each, read from a folder that the user names.

A source is a module: `from hubless.data.sources import mnist`, then `mnist.load()`. What several
of them need can be had from here, for a source of one's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.data.sources.base import Remote as Remote
    from hubless.data.sources.base import Split as Split
    from hubless.data.sources.base import cache_folder as cache_folder
    from hubless.data.sources.base import download as download
    from hubless.data.sources.base import find as find
    from hubless.data.sources.base import read_bytes as read_bytes
    from hubless.data.sources.base import require as require
    from hubless.data.sources.base import source_folder as source_folder

__getattr__, __dir__ = exported(__name__)
