"""Where the source of a release is: what PyPI shows beside it, and where the links of its description lead.

The address of the repository is not written down here. The workflow that builds a release knows it: it
gives the tag in HEADGATE_TAG, and GitHub gives the rest in GITHUB_SERVER_URL and GITHUB_REPOSITORY. Without a
tag, a build has no addresses, and its description is README.md as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# What each variable looks like, and an example.
_VARIABLES = {
    "GITHUB_SERVER_URL": (r"https://[\w.-]+(:\d+)?", "https://github.com"),
    "GITHUB_REPOSITORY": (r"[\w.-]+/[\w.-]+", "owner/name"),
}
# A fenced block, or code in a line, where nothing is a link; or a link or picture that is not absolute yet.
_CODE_OR_LINK = re.compile(
    r"(?P<code>^```.*?^```$|`[^`\n]+`)|(?P<before>(?P<picture>!?)\[(?:[^\]\\]|\\.)*\]\()(?!\w+:|#)(?P<path>[^)\s]+)\)",
    flags=re.MULTILINE | re.DOTALL,
)


class ReleaseAddresses(MetadataHookInterface):
    """Fills in `readme` and `urls`, which pyproject.toml leaves to it."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill them in. What an sdist says already, in its PKG-INFO, stays as it is."""
        root = Path(self.root)
        address = None if (root / "PKG-INFO").exists() else address_of(os.environ, metadata["version"])
        metadata.setdefault("urls", {} if address is None else urls_of(address))
        if "readme" not in metadata:
            text = (root / "README.md").read_text(encoding="utf-8")
            text = text if address is None else with_absolute_links(text, address)
            metadata["readme"] = {"content-type": "text/markdown", "text": text}


class Address:
    """A repository and the tag of a release in it."""

    def __init__(self, repository: str, tag: str) -> None:
        self.repository = repository
        self.tag = tag

    def page(self, path: str) -> str:
        """Where people read a file."""
        return f"{self.repository}/blob/{self.tag}/{path}"

    def raw(self, path: str) -> str:
        """The file itself, for pictures."""
        return f"{self.repository}/raw/{self.tag}/{path}"


def address_of(environment: Mapping[str, str], version: str) -> Address | None:
    """The address that the variables give; None without a tag. ValueError if it cannot be right."""
    tag = environment.get("HEADGATE_TAG", "")
    if not tag:
        return None
    if tag != f"v{version}":
        raise ValueError(
            f"HEADGATE_TAG={tag!r} is not the tag of version {version}, which is v{version}; change "
            "__version__ in src/headgate/__init__.py, or build from another tag"
        )
    found = {}
    for name, (pattern, example) in _VARIABLES.items():
        value = found[name] = environment.get(name, "")
        if not re.fullmatch(pattern, value, flags=re.ASCII):
            raise ValueError(
                f"{name}={value!r} cannot be part of the address of a repository; with HEADGATE_TAG it has "
                f"to be set as GitHub sets it, e.g. {example}"
            )
    return Address("/".join(found.values()), tag)


def urls_of(address: Address) -> dict[str, str]:
    """What PyPI shows beside a release."""
    return {
        "Repository": address.repository,
        "Documentation": address.page("docs/index.md"),
        "Changelog": address.page("CHANGELOG.md"),
        "Issues": f"{address.repository}/issues",
        "Release notes": f"{address.repository}/releases/tag/{address.tag}",
    }


def with_absolute_links(text: str, address: Address) -> str:
    """Markdown whose links and pictures lead into the repository wherever it is shown."""

    def absolute(found: re.Match[str]) -> str:
        if found["code"] is not None:
            return found[0]
        place = address.raw if found["picture"] else address.page
        return f"{found['before']}{place(found['path'])})"

    return _CODE_OR_LINK.sub(absolute, text)
