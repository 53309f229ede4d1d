"""What all store URLs have in common.

No message quotes a URL, or what a parser says of one: whatever is misplaced in it may be the password.
"""

from __future__ import annotations

import re

from task_contract.errors import ConfigurationError


def refuse_unclear(url: str) -> None:
    """A password with / ? # or @ in it moves what follows into other parts, which the drivers would then quote."""
    scheme, _, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    path, _, query = rest[len(authority) :].partition("?")
    logins = authority.count("@")
    if "#" in rest or "@" in path or logins > 1 or ("@" in query and not logins):
        raise ConfigurationError(
            f"this {scheme}:// URL is not clear: percent-encode what is special in a URL (@ : / ? # %) "
            "in its user, password, path and options"
        )
