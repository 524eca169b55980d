"""Redaction of secrets in text: well-known tokens, private keys, passwords.

Only unmistakable shapes are redacted, since a page full of holes is of no use: prefixes chosen to
be recognised, blocks of private keys, credentials in URLs, and long values assigned to a name such
as `api_key`. The signature of a model's thinking, a hash or an id is none of these.
"""

from __future__ import annotations

import re

COVER = "[redacted]"

_WORD = r"[A-Za-z0-9_\-]"
# Each begins with rare letters, so that most text is skipped fast.
_TOKENS = (
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",  # AWS
    r"gh[pousr]_[A-Za-z0-9]{36,255}",  # GitHub
    r"github_pat_[A-Za-z0-9_]{50,255}",
    rf"gl(?:pat|rt|dt|cbt|ptt|ft|soat)-{_WORD}{{20,}}",  # GitLab
    r"xox[abeoprs]-[A-Za-z0-9\-]{10,250}",  # Slack
    r"xapp-[0-9]-[A-Za-z0-9\-]{20,}",
    r"https://hooks\.slack\.com/services/[A-Za-z0-9/]{30,}",
    r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,250}",  # Stripe
    r"whsec_[A-Za-z0-9]{24,}",
    rf"sk-ant-{_WORD}{{20,}}",  # Anthropic
    rf"sk-(?:proj|svcacct|admin|or-v1)-{_WORD}{{20,}}",  # OpenAI, OpenRouter
    r"sk-[A-Za-z0-9]{32,}",
    rf"AIza{_WORD}{{35}}",  # Google
    rf"ya29\.{_WORD}{{20,}}",
    rf"GOCSPX-{_WORD}{{20,}}",
    r"npm_[A-Za-z0-9]{36}",
    rf"pypi-AgE{_WORD}{{50,}}",
    r"hf_[A-Za-z0-9]{30,}",  # Hugging Face
    r"gsk_[A-Za-z0-9]{40,}",  # Groq
    r"xai-[A-Za-z0-9]{60,}",
    r"r8_[A-Za-z0-9]{30,}",  # Replicate
    rf"SG\.{_WORD}{{16,32}}\.{_WORD}{{30,60}}",  # SendGrid
    r"key-[0-9a-f]{32}",  # Mailgun
    r"do[opr]_v1_[0-9a-f]{64}",  # DigitalOcean
    r"dapi[0-9a-f]{32}",  # Databricks
    r"lin_api_[A-Za-z0-9]{32,}",  # Linear
    r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",  # Shopify
    r"ntn_[A-Za-z0-9]{40,}",  # Notion
    r"figd_[A-Za-z0-9_\-]{30,}",  # Figma
    r"dckr_pat_[A-Za-z0-9_\-]{20,}",  # Docker
    r"hv[sb]\.[A-Za-z0-9_\-]{24,}",  # Vault
    r"AGE-SECRET-KEY-1[0-9A-Z]{58}",
    rf"eyJ{_WORD}{{8,}}\.eyJ{_WORD}{{8,}}\.{_WORD}{{10,}}",  # JSON web tokens
    rf"[MNO][A-Za-z0-9]{{23,27}}\.{_WORD}{{6}}\.{_WORD}{{27,38}}",  # Discord
    rf"(?<![0-9A-Za-z])[0-9]{{8,10}}:AA{_WORD}{{33}}",  # Telegram
)
_TOKEN = re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(_TOKENS)})(?![A-Za-z0-9_])")
_KEY = re.compile(r"-----BEGIN ((?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_ADDRESS = re.compile(r"\b([a-z][a-z0-9+.\-]{1,20}://[^\s/:@\"'<>]{0,64}:)([^\s/@\"'<>]{3,256})(@)")
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)"
    r"([A-Za-z0-9+/=_\-.~]{8,})"
)
# A telling name, and a value that nobody would write by hand for another purpose.
_NAMED = re.compile(
    r"(?i)((?:\b|_)(?:api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|access[_-]?token|auth[_-]?token"
    r"|refresh[_-]?token|client[_-]?secret|private[_-]?key|account[_-]?key|passwd|password|passphrase)"
    r"[\"']?\s*(?:=>|:=|[:=])\s*)([\"']?)([^\s\"'`,;<>{}()\[\]$]{8,})"
)
_PLAIN = re.compile(r"[a-z]+(?:[._-][a-z]+)*|[A-Z_]+|\*+|x+|\.+|<.*|process\.env.*|os\.environ.*")


def redact(text: str) -> tuple[str, int]:
    """Return a text without its secrets, and how many there were."""
    count = 0

    def whole(_: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return COVER

    def value(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"{match[1]}{COVER}{match[3] if match.re is _ADDRESS else ''}"

    def named(match: re.Match[str]) -> str:
        nonlocal count
        if _PLAIN.fullmatch(match[3]) or match[3] == COVER:
            return match[0]  # the name of a variable, or a word
        count += 1
        return f"{match[1]}{match[2]}{COVER}"

    text = _KEY.sub(whole, text)
    text = _TOKEN.sub(whole, text)
    text = _ADDRESS.sub(value, text)
    text = _HEADER.sub(value, text)
    return _NAMED.sub(named, text), count
