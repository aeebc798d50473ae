"""Taking out of texts and mappings what must not leave the host: keys, passwords, people's prompts.

Two nets: an allow-list of variables whose values are shown at all, and patterns for everything that is text.
Values of variables whose names speak of secrets are also removed wherever they appear literally.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from framekeeper.logs import PRIVATE_KEYS, redact

HIDDEN = "[removed]"

#: Variables whose values are shown: switches, sizes and places of this stack.
SHOWN = re.compile(
    r"FRAMEKEEPER_(?!.*(?:URL|KEY|SECRET|TOKEN|PASSWORD|WEBHOOK|DSN|SALT|HASH|CREDENTIAL))[A-Z0-9_]+"
    r"|CUDA_(?:VISIBLE_DEVICES|DEVICE_ORDER|LAUNCH_BLOCKING|CACHE_PATH|MODULE_LOADING|VERSION)"
    r"|NVIDIA_(?:VISIBLE_DEVICES|DRIVER_CAPABILITIES|REQUIRE_CUDA|DISABLE_REQUIRE)"
    r"|PYTORCH_(?:CUDA_)?ALLOC_CONF|TORCH(?:INDUCTOR|DYNAMO|_COMPILE|_CUDA|_LOGS|_NCCL|_HOME)?[A-Z0-9_]*"
    r"|TRITON_[A-Z0-9_]+|NCCL_[A-Z0-9_]+|OMP_[A-Z0-9_]+|MKL_[A-Z0-9_]+"
    r"|VLLM_(?!.*(?:KEY|TOKEN|URL))[A-Z0-9_]+|DIFFUSION_[A-Z0-9_]+"
    r"|HF_(?:HOME|HUB_OFFLINE|HUB_CACHE|DATASETS_OFFLINE|HUB_DISABLE_TELEMETRY|HUB_ENABLE_HF_TRANSFER)"
    r"|TRANSFORMERS_(?:OFFLINE|CACHE)|TOKENIZERS_PARALLELISM"
    r"|PATH|LD_LIBRARY_PATH|LD_PRELOAD|PYTHON(?:PATH|UNBUFFERED|NOUSERSITE|FAULTHANDLER|MALLOC)"
    r"|LANG|LC_[A-Z]+|TZ|TMPDIR|HOME|XDG_CACHE_HOME|container|KUBERNETES_SERVICE_HOST|WSL_DISTRO_NAME"
)
_SPEAKS = re.compile(
    r"KEY|TOKEN|SECRET|PASS(?:WORD|WD|PHRASE)?|CREDENTIAL|AUTH|COOKIE|SESSION|DSN|_URL|_URI|WEBHOOK|SALT|PRIVATE",
    re.IGNORECASE,
)
#: A key of a mapping whose value is never shown.
_SECRET_KEY = re.compile(
    r"(?:^|[_.-])(?:api_?key|access_?key\w*|secret\w*|token|password|passwd|passphrase|credentials?|"
    r"authorization|cookie|private_?key|signature_key|dsn)$",
    re.IGNORECASE,
)
_LEAST = 6
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S
)

_PATTERNS = (
    # user:password@ of any URL, and a query's secrets
    (re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]*://)[^\s/@'\"]+@", re.IGNORECASE), rf"\g<keep>{HIDDEN}@"),
    (
        re.compile(
            r"(?P<keep>[?&](?:sig(?:nature)?|token|key|secret|password|x-amz-[a-z-]+|expires)=)[^&\s'\"]+",
            re.IGNORECASE,
        ),
        rf"\g<keep>{HIDDEN}",
    ),
    (
        re.compile(r"(?P<keep>\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE),
        rf"\g<keep>{HIDDEN}",
    ),
    (
        re.compile(
            r"\b(?:(?:sk|pk|rk|fk|npm|glpat|whsec|xox[a-z])[-_]|gh[pousr]_|github_pat_)[A-Za-z0-9_+/=-]{16,}"
            r"|\bhf_[A-Za-z0-9]{16,}|\b(?:AIza|AKIA|ASIA)[A-Za-z0-9_-]{12,}"
        ),
        HIDDEN,
    ),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+)?"), HIDDEN),
    (
        re.compile(
            r"(?P<keep>['\"]?\b[\w.-]*(?:password|passwd|passphrase|secret(?:_?access)?_?(?:key)?|api[_-]?key|"
            r"access[_-]?key(?:[_-]?id)?|(?<!num_)token(?!s|izer|ized)|authorization|cookie|credential)['\"]?"
            r"\s*[=:]\s*)(?:'[^']*'|\"[^\"]*\"|[^\s,;&'\"]+)",
            re.IGNORECASE,
        ),
        rf"\g<keep>{HIDDEN}",
    ),
    # Prompts that no quotes delimit: the rest of the line goes.
    (
        re.compile(
            r"(?P<keep>\b(?:negative[_ ])?prompts?\b['\"]?\s*[=:]\s*(?!\[not logged\])).+", re.IGNORECASE
        ),
        rf"\g<keep>{HIDDEN}",
    ),
)


@dataclass(frozen=True)
class Redactor:
    """Redacts with patterns, and removes these texts literally. `literals` are longest first."""

    literals: tuple[str, ...] = ()

    @classmethod
    def of(cls, environment: Mapping[str, str], more: Iterable[str] = ()) -> Redactor:
        """For a host with this environment; `more` are further texts to remove, such as prompts."""
        texts = [text.strip() for text in more]
        found = {each for text in texts for each in (text, *_passwords(text))}
        for name, value in environment.items():
            if SHOWN.fullmatch(name) is None and _SPEAKS.search(name):
                found |= {value, *_passwords(value)}
        # Short ones would punch holes into words that have nothing to do with them.
        return cls(tuple(sorted((each for each in found if len(each) >= _LEAST), key=len, reverse=True)))

    def text(self, text: str) -> str:
        """The text without secrets; lines that are JSON objects stay JSON."""
        return "\n".join(line and self._line(line) for line in self._literal(text).split("\n"))

    def value(self, value: Any) -> Any:
        """A copy of plain data without secrets: by key, and by pattern in texts."""
        if isinstance(value, Mapping):
            return {
                self._plain(str(key)): HIDDEN
                if item is not None and (str(key) in PRIVATE_KEYS or _SECRET_KEY.search(str(key)))
                else self.value(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
            # Lines of one text, perhaps: a key may reach over several of them.
            return self.text("\n".join(value)).split("\n")
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(item) for item in value]
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        return self.text(str(value))

    def _line(self, line: str) -> str:
        if line.startswith("{"):
            try:
                return json.dumps(self.value(json.loads(line)), ensure_ascii=False)
            except ValueError:
                pass
        return self._plain(line)

    def _plain(self, text: str) -> str:
        clean: str = redact(self._literal(text))
        for pattern, replacement in _PATTERNS:
            clean = pattern.sub(replacement, clean)
        return clean

    def _literal(self, text: str) -> str:
        for literal in self.literals:
            for form in (literal, json.dumps(literal)[1:-1]):
                text = text.replace(form, HIDDEN)
        # Over several lines, so not by line.
        return _PRIVATE_KEY.sub(HIDDEN, text)


def shown_environment(environment: Mapping[str, str], redactor: Redactor) -> dict[str, str | None]:
    """Every name; values only of those on the allow-list, None for the rest."""
    return {
        name: redactor.text(value) if SHOWN.fullmatch(name) else None
        for name, value in sorted(environment.items())
    }


def _passwords(value: str) -> set[str]:
    """User and password of a URL, as written and decoded."""
    try:
        parts = urlsplit(value)
        password = parts.password
    except ValueError:
        return set()
    return {password, unquote(password)} if password else set()
